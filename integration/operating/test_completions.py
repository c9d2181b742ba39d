"""fish and zsh load their completions; unit tests cover bash, which every machine has."""

import subprocess
from pathlib import Path

import pytest

from integration.node.isolation import Node

_COMPLETE = "source $argv[1]; complete -C $argv[2]"
COMPLETIONS = Path(__file__).parents[2] / "packaging/completions"


def library_path(root: Path) -> str:
    return ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu")))


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("pydockershim d", "doctor"),
        ("pydockershim serve --log-le", "--log-level"),
        ("pydockershim serve --log-level w", "warning"),
        ("pydockershim config --format to", "toml"),
    ],
)
def test_fish_completes(node: Node, tmp_path: Path, line: str, completed: str) -> None:
    root = node.shells.root

    reported = subprocess.run(
        [root / "usr/bin/fish", "--no-config", "-c", _COMPLETE, "--", COMPLETIONS / "pydockershim.fish", line],
        env={"HOME": str(tmp_path), "LD_LIBRARY_PATH": library_path(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [row.split("\t")[0] for row in reported.stdout.splitlines()] == [completed]
    assert reported.stderr == ""


def test_zsh_loads_the_completions(node: Node, tmp_path: Path) -> None:
    root = node.shells.root
    [modules] = root.glob("usr/lib/*-linux-gnu/zsh/*")
    functions = root / "usr/share/zsh/functions/Completion"
    script = tmp_path / "try.zsh"
    script.write_text(
        f"module_path=({modules})\n"
        f"fpath=({COMPLETIONS} {functions} {functions}/*(/))\n"
        f"autoload -Uz compinit && compinit -u -d {tmp_path}/dump\n"
        "print -r -- $_comps[pydockershim]\n"
        "autoload +X _pydockershim && functions _pydockershim > /dev/null && print loaded\n"
    )

    reported = subprocess.run(
        [root / "bin/zsh", "-f", script],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (reported.stdout.split(), reported.stderr) == (["_pydockershim", "loaded"], "")
