"""docs/limits.md agrees with the bounds in the code."""

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.cri import rpcs
from shim.streaming.spdy import Limits

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "limits.md").read_text()

TESTS = dict(
    line.split("\t") for line in (ROOT / "tests/data/bounds.tsv").read_text().splitlines() if not line.startswith("#")
)
"""The test of each constant, which `tests.bounds_mutations` runs without the bound."""

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "bytes": 1, "characters": 1, "s": 1}
BOUND = re.compile(r"([\d,]+)(?: (KiB|MiB|bytes|characters|s))?(?: |$)")
CONSTANT = re.compile(r"(shim/[\w/]+)\.py (\w+(?:\.\w+|\[\w+\])?)")
"""File and constant: a constant of the module, `Class.field`, or `TABLE[KEY]` where KEY names a member."""

CONSTANTS = dict(
    line.split("\t") for line in (ROOT / "tests/data/limits.tsv").read_text().splitlines() if not line.startswith("#")
)
"""The constant of each row, by the row's first cell."""

NAMED_AS_A_BOUND = re.compile(r"MAX_\w+|\w+_LIMIT|LIMIT")
"""Names of constants that bound input of peers."""

LEFT_OUT = {
    "shim/cgroup/figures.py NO_LIMIT": "stands for no limit",
    "shim/cgroup/files.py MAX_KEPT_OPEN": "files that the server keeps open to read them sooner",
    "shim/cgroup/keys.py MAX_PIDS": "a number that the kernel has",
    "shim/cgroup/parse.py _MAX_NUMBERS": "a number that the kernel has",
    "shim/cgroup/shares.py MAX_SHARES": "a number that the kernel has",
    "shim/cni/arguments.py MAX_BANDWIDTH": "a number that the plugin takes",
    "shim/container/exec_process.py _MAX_PAUSE": "how often the server polls",
    "shim/container/stop.py MAX_GRACE": "a number that Docker has",
    "shim/cri/validate/limits.py MAX_CPU": "a number that the kernel has",
    "shim/cri/validate/limits.py MAX_NODE": "a number that the kernel has",
    "shim/cri/validate/limits.py MAX_OOM_SCORE_ADJ": "a number that the kernel has",
    "shim/cri/validate/rules.py MAX_PORT": "a number that the protocol has",
    "shim/engine/hijack.py MAX_READ_BYTES": "size of a read; more bytes need more reads",
    "shim/engine/pool.py MAX_IDLE": "idle connections of the server's own",
    "shim/image/identity.py _MAX_UID": "a number that the CRI has",
    "shim/domain/passwd.py MAX_ID": "a number that the kernel has",
    "shim/base/heartbeat.py MAX_ANSWER_SECONDS": "how long the server's own process is waited for",
    "shim/streaming/spdy/flow.py MAX_WINDOW": "a number that the protocol has",
    "shim/streaming/spdy/frames.py MAX_ID": "a number that the protocol has",
    "shim/streaming/spdy/frames.py MAX_LENGTH": "a number that the protocol has",
    "shim/stats/readings.py _MAX_READS": "how often the server reads again",
    "shim/stats_cache.py _MAX_POINTS": "what the server keeps of its own measurements",
    "shim/stats_cache.py _MAX_WINDOW": "a time of the server's own",
    "shim/view/cri_dockerd_pods.py _MAX_ATTEMPT": "a number that the CRI has",
    "shim/view/work_queue.py MAX_RETRY_SECONDS": "a wait of the server's own workers",
}
"""Constants with such a name that need no row, and why."""


def inputs_and_bounds() -> list[tuple[str, str]]:
    """Return first cell and bound of each row."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Input |")]
    return [(cells[1].strip(), cells[3].strip()) for cells in (line.split("|") for line in lines)]


def rows() -> list[tuple[str, str, str]]:
    """Return file without suffix, constant and bound of each row."""
    found = []
    for name, bound in inputs_and_bounds():
        constant = CONSTANT.fullmatch(CONSTANTS[name])
        assert constant, name
        found.append((constant[1], constant[2], bound))
    return found


def value_of(file: str, name: str) -> object:
    """Return the value of a constant, or the default of a field."""
    module = importlib.import_module(file.replace("/", "."))
    name, field, key = re.fullmatch(r"(\w+)(?:\.(\w+))?(?:\[(\w+)\])?", name).groups()  # type: ignore[union-attr]
    value = getattr(module, name)
    if field:
        return getattr(value(), field)
    return {member.name: number for member, number in value.items()}[key] if key else value


def constants() -> Iterator[tuple[str, str]]:
    """Yield file without suffix and name of every constant with a bound's name, and of entries of bound tables."""
    for path in sorted((ROOT / "shim").rglob("*.py")):
        file = path.relative_to(ROOT).with_suffix("").as_posix()
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)):
                of_engine = file == "shim/engine/bounds" and name.isupper() and not name.startswith("_")
                if of_engine or NAMED_AS_A_BOUND.fullmatch(name.lstrip("_")):
                    yield file, name
    yield from (("shim/cri/rpcs", f"LIMITS[{kind.name}]") for kind in rpcs.Kind)
    yield from (("shim/streaming/spdy/limits", f"Limits.{field.name}") for field in dataclasses.fields(Limits))


@pytest.mark.parametrize(("file", "name", "bound"), rows())
def test_a_row_has_the_value_of_its_constant(file: str, name: str, bound: str) -> None:
    value = value_of(file, name)
    number = BOUND.match(bound)

    assert number is not None, bound
    assert int(number[1].replace(",", "")) * UNITS[number[2] or ""] == value


def test_every_bound_has_a_row() -> None:
    there = {f"{file}.py {name}" for file, name, _ in rows()}
    assert {f"{file}.py {name}" for file, name in constants()} <= there | LEFT_OUT.keys()


def test_each_constant_without_a_row_exists() -> None:
    assert LEFT_OUT.keys() <= {f"{file}.py {name}" for file, name in constants()}
    assert not LEFT_OUT.keys() & {f"{file}.py {name}" for file, name, _ in rows()}


def test_each_row_has_its_constant() -> None:
    assert [name for name, _ in inputs_and_bounds()] == list(CONSTANTS)


def test_the_test_of_a_row_exists() -> None:
    assert TESTS.keys() == {f"{file}.py {name}" for file, name, _ in rows()}
    for test in TESTS.values():
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()
