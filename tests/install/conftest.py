import os
from pathlib import Path

import pytest

from shim.config.model import Config
from shim.install.install import Installation, Options
from shim.install.node import Node
from shim.install.steps import run_steps
from shim.install.uninstall import Removal

SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> {log}
"""


class Tree:
    """A node below a directory, with a systemctl that records its arguments."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "node"
        self.root.mkdir()
        self.log = tmp_path / "systemctl.log"
        bin_directory = tmp_path / "bin"
        bin_directory.mkdir()
        (bin_directory / "systemctl").write_text(SYSTEMCTL.format(log=self.log))
        (bin_directory / "systemctl").chmod(0o755)
        self.environ = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
        self.announced: list[str] = []

    def install(
        self,
        *,
        docker: bool = False,
        cni: str | None = None,
        as_cri_dockerd: bool = False,
        dry: bool = False,
        command: str = "/opt/p/bin/pydockershim",
    ) -> None:
        options = Options(root=self.root, docker=docker, cni=cni, as_cri_dockerd=as_cri_dockerd)
        installation = Installation(options=options, command=command, environ=self.environ)
        run_steps(installation.steps(), announce=self.announced.append, dry=dry)

    def uninstall(self, *, dry: bool = False, keep_configuration: bool = False) -> None:
        removal = Removal(
            root=self.root,
            force=False,
            config=Config(),
            environ=self.environ,
            keep_configuration=keep_configuration,
        )
        run_steps(removal.steps(), announce=self.announced.append, dry=dry)

    def put(self, path: str, text: str) -> Path:
        place = Node(self.root).at(Path(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def text(self, path: str) -> str:
        return Node(self.root).at(Path(path)).read_text()

    def has(self, path: str) -> bool:
        return Node(self.root).exists(Path(path))

    def listing(self) -> dict[str, str]:
        """Return all paths below the root, with their content."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            shown = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "directory"
            found[str(path.relative_to(self.root))] = f"{path.lstat().st_mode:o} {shown}"
        return found

    def said(self, word: str) -> list[str]:
        return [line for line in self.announced if line.split()[0] == word]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)
