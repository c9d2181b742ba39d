r"""Text of the kernel and of other programs is read as bytes, because names may hold any byte.

`str.splitlines` splits at `\x0b`, `\x85` and other bytes that a name may hold, and `bytes.splitlines` at `\r`. A
file or pipe opened as text turns `\r` into `\n`, and bytes that are not UTF-8 make its reader fail. Kernel tables are
read by `shim/base/proc.py`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shim

ROOT = Path(shim.__file__).parent
OF_ADMINISTRATORS = {"share/__init__.py", "config/load.py"}
"""Places that read text files written by this program or an administrator."""
_TEXT_PIPES = {"text", "universal_newlines", "encoding"}


def text_reads(code: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call that reads or splits text as `str`."""
    for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
        function = ast.unparse(call.func)
        name = function.rpartition(".")[2]
        if (
            name == "splitlines"
            or (name == "read_text" and not function.endswith("node.read_text"))  # `shim.install.node` decodes bytes
            or (name in {"open", "fdopen"} and _is_text(function, call))
            or (name in {"Popen", "run", "check_output"} and _TEXT_PIPES & {each.arg for each in call.keywords})
        ):
            yield call.lineno, name


def _is_text(function: str, call: ast.Call) -> bool:
    """Return whether a call opens a file as text: its mode says so, or the builtin `open` has no mode."""
    match call.args[1:2] if function in {"open", "os.fdopen"} else call.args[:1]:
        case [ast.Constant(value=str(mode))]:
            return set(mode) <= set("rwax+t")
        case _:
            return function == "open" and len(call.args) == 1


@pytest.mark.parametrize(
    "code",
    [
        "table.splitlines()",
        "Path('/proc/self/mountinfo').read_text(errors='surrogateescape').split('\\n')",
        "open('/proc/net/unix')",
        "open('/proc/net/unix', 'r')",
        "path.open('rt')",
        "os.fdopen(descriptor, 'r+')",
        "subprocess.run(['ip'], text=True)",
        "Popen(['ip'], encoding='utf-8')",
    ],
)
def test_each_text_read_is_found(code: str) -> None:
    assert len(list(text_reads(code))) == 1


def test_no_text_of_other_programs_is_read_as_str() -> None:
    files = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py")}
    assert files.keys() >= OF_ADMINISTRATORS
    found = [
        f"shim/{name}:{line}: {call}"
        for name, path in files.items()
        if name not in OF_ADMINISTRATORS
        for line, call in text_reads(path.read_text())
    ]
    assert found == []
