"""python -m tests.bounds_mutations: checks that a test fails for each row of docs/limits.md if its bound is removed.

In a copy of the code each use of the constant is replaced by a much larger number. Its definition is not changed, and
so neither are tests nor texts of errors.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.test_limits_page import ROOT, TESTS, rows

COPIED = ("shim", "tests", "integration", "docs", "packaging", "pyproject.toml", "README.md")

FACTOR = 64
OTHER_FACTORS = {
    "shim/cri/server.py MAX_MESSAGE": 4,
    "shim/streaming/server.py REQUEST_SECONDS": 1000,
    "shim/streaming/stalls.py CHECK_SECONDS": 10_000,
    "shim/streaming/portforward.py ENDED_SECONDS": 10_000,
    "shim/stream_sessions.py REASON_SECONDS": 10_000,
}
"""gRPC takes 32-bit numbers. A bound that a test sets to a fraction of a second is still short."""

SECONDS = 120
"""Seconds for each test; a test that waits for the bound's effect then counts as failed."""


@dataclass(frozen=True)
class Bound:
    """A constant of docs/limits.md."""

    file: str
    """Path without suffix."""
    name: str
    """A constant of the module, `Class.field` or `TABLE[KEY]`."""

    def __str__(self) -> str:
        return f"{self.file}.py {self.name}"


@dataclass(frozen=True)
class Result:
    """The result of a row's test without the bound."""

    bound: Bound
    uses: int
    """Places where the constant was replaced."""
    failed: bool
    summary: str
    """The last line of pytest."""

    @property
    def held(self) -> bool:
        """Whether the test needs the bound."""
        return self.uses > 0 and self.failed


def main() -> int:
    """Print a line for each row; return 1 if the removal of a bound fails no test."""
    given = _arguments()
    bounds = [Bound(file, name) for file, name in dict.fromkeys(row[:2] for row in rows())]
    bounds = [bound for bound in bounds if not given.only or any(part in str(bound) for part in given.only)]
    with tempfile.TemporaryDirectory(prefix="bounds-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            copies.put(_copy(Path(directory) / str(number)))
        if not _pass_with_all_bounds(bounds, copies):
            return 1
        with ThreadPoolExecutor(given.jobs) as crew:
            missed = [result for result in crew.map(lambda bound: _without(bound, copies), bounds) if not _held(result)]
    print(f"{len(bounds)} bounds, {len(missed)} without a test that fails")
    return int(bool(missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bounds_mutations", description=__doc__)
    parser.add_argument("--only", action="append", metavar="PART", help="rows by a part of their constant; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="rows at a time")
    return parser.parse_args()


def _held(result: Result) -> bool:
    word = "fails " if result.held else "PASSES"
    rest = "" if result.held else f" | {result.uses} uses, {result.summary}"
    print(f"{word} without | {result.bound} | {TESTS[str(result.bound)]}{rest}", flush=True)
    return result.held


def _copy(directory: Path) -> Path:
    directory.mkdir()
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, directory / name)
    return directory


def _pass_with_all_bounds(bounds: list[Bound], copies: SimpleQueue[Path]) -> bool:
    """Run the tests of all rows in an unchanged copy."""
    copy = copies.get()
    code, summary = _pytest(copy, sorted({TESTS[str(bound)] for bound in bounds}))
    copies.put(copy)
    if code:
        print(f"tests fail with all bounds in place: {summary}")
    return not code


def _without(bound: Bound, copies: SimpleQueue[Path]) -> Result:
    """Run the test of a row in a copy without its bound, and restore the copy."""
    copy = copies.get()
    uses, before = 0, {}
    try:
        for path in sorted((copy / "shim").rglob("*.py")):
            text = path.read_bytes()
            file = path.relative_to(copy).with_suffix("").as_posix()
            if bound.name.split(".")[-1].split("[")[0].encode() in text and (spans := list(_uses(text, file, bound))):
                before[path] = text
                uses += len(spans)
                path.write_bytes(_multiplied(text, spans, OTHER_FACTORS.get(str(bound), FACTOR)))
        code, summary = _pytest(copy, [TESTS[str(bound)]])
    finally:
        for path, text in before.items():
            path.write_bytes(text)
        copies.put(copy)
    return Result(bound, uses, code not in {0, 4, 5}, summary)  # neither passed nor without tests


def _pytest(copy: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests in a copy; return the exit status of pytest and its last lines."""
    # Modules are compiled each time: a changed file can have the same time and size.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", f"--timeout={SECONDS}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    last = [line for line in (run.stdout + run.stderr).splitlines() if line and not line.startswith("!!")][-2:]
    return run.returncode, " ".join(last)


def _multiplied(text: bytes, spans: list[tuple[int, int]], factor: int) -> bytes:
    for begin, end in sorted(spans, reverse=True):
        text = b"%b(%b * %d)%b" % (text[:begin], text[begin:end], factor, text[end:])
    return text


def _uses(text: bytes, file: str, bound: Bound) -> Iterator[tuple[int, int]]:
    """Yield the offsets of a module's uses of the constant, without texts of errors."""
    tree = ast.parse(text)
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    quoted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in _nodes(tree, file, bound):
        if id(node) not in quoted:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            yield lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def _nodes(tree: ast.Module, file: str, bound: Bound) -> Iterator[ast.expr]:
    module = bound.file.replace("/", ".")
    if "[" in bound.name:
        if file == bound.file:
            yield from _values(tree, bound.name)
    elif "." in bound.name:
        yield from _fields(tree, bound.name.partition(".")[2])
    else:
        yield from _constants(tree, module, bound.name, own=file == bound.file)


def _values(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """Yield the value of `TABLE[KEY]` in the table: uses do not show which value they take."""
    table, key = name.removesuffix("]").split("[")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and ast.unparse(node.targets[0]) == table:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            yield from (value for member, value in pairs if isinstance(member, ast.Attribute) and member.attr == key)


def _fields(tree: ast.Module, field: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr == field:
            yield node


def _constants(tree: ast.Module, module: str, name: str, *, own: bool) -> Iterator[ast.expr]:
    names, modules = {name} if own else set(), set()
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (node.module, alias.name) == (module, name):  # type: ignore[attr-defined]
                names.add(alias.asname or alias.name)
            elif f"{node.module}.{alias.name}" == module:  # type: ignore[attr-defined]
                modules.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
        if is_name or (isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value) in modules):
            yield node  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
