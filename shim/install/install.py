"""Install: put units, command, configuration and `crictl.yaml` onto a node, and start the server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shim.config.load import drop_in_directory
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition
from shim.install import layout
from shim.install.docker import DockerSetup
from shim.install.layout import NodeFile
from shim.install.node import Node
from shim.install.record import PLACE, DockerChange, Record, digest, encode_record, read_record
from shim.install.steps import Step
from shim.install.systemd import CRI_DOCKERD, OURS, Systemd


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `pydockershim install`."""

    root: Path = Path("/")
    """The node's `/`. Anything but `/` is a node that does not run."""
    docker: bool = False
    """Change Docker's daemon.json."""
    cni: str | None = None
    """Name of the CNI example to copy to /etc/cni/net.d."""
    as_cri_dockerd: bool = False
    """Also give the command and units cri-dockerd's names."""
    start: bool = True
    """Start the server."""
    from_package: bool = False
    """Called by a package manager, which must not fail because the server cannot start yet."""


@dataclass
class Installation:
    """A run of `pydockershim install`."""

    options: Options
    command: str
    """The program that the unit runs."""
    environ: Mapping[str, str]
    node: Node = field(init=False)
    systemd: Systemd = field(init=False)
    record: Record = field(init=False)

    def __post_init__(self) -> None:
        """Read the record of an earlier installation."""
        self.node = Node(self.options.root)
        self.systemd = Systemd(self.node, self.environ)
        self.record = read_record(self.node.at(PLACE))

    def steps(self) -> Iterator[Step]:
        """Yield the steps; foreseeable failures of later steps are raised before the first."""
        packaged = self._is_packaged()
        starts = self.options.start and self.systemd.is_running
        rivals = self._rivals() if starts else ""
        if rivals and not self.options.from_package:
            raise FailedPrecondition(rivals)
        aliases = self.options.as_cri_dockerd
        with_runtime = self.options.docker or str(layout.OCI_RUNTIME) in self.record.files
        files = list(
            layout.node_files(
                command=self.command,
                cni=self.options.cni,
                aliases=aliases,
                packaged=packaged,
                docker=with_runtime,
            )
        )
        docker = list(self._docker()) if self.options.docker else []
        for file in files:
            yield from self._file(file)
        if not packaged:
            yield from self._drop_ins()
        if not packaged and Path(self.command).parent not in layout.ON_THE_PATH:
            yield from self._link(layout.COMMAND_LINK)
        if aliases:
            yield from self._link(layout.CRI_DOCKERD_LINK)
        yield from docker
        if rivals:
            yield Step(f"to do: {rivals}")
        else:
            yield from self._enable(starts=starts)
        yield from self._pod_network()

    def _is_packaged(self) -> bool:
        """Return whether the units came in a package with this program.

        FailedPrecondition for another program's package.
        """
        for path in layout.packaged_unit_paths():
            unit = self.node.read_text(path)
            if unit is None:
                continue
            program = layout.started_command(unit)
            if Path(program).resolve() == Path(self.command).resolve():
                return True
            raise FailedPrecondition(
                f"a package has installed {path}, which runs {program}: remove that package first, or use its command"
            )
        return False

    def _rivals(self) -> str:
        """Return how to stop another server on the same socket; empty if there is none."""
        rivals = self.systemd.active_rivals() if self.systemd.is_there else []
        if not rivals:
            return ""
        return (
            f"{' and '.join(rivals)} uses {Config().container_runtime_endpoint}: "
            f"systemctl disable --now {' '.join(CRI_DOCKERD)}, then pydockershim install"
        )

    def _file(self, file: NodeFile) -> Iterator[Step]:
        there = self.node.read(file.path)
        if there == file.content:
            if not file.is_ours and str(file.path) not in self.record.files:
                yield Step(f"keep  {file.path}, which is the same")
            else:
                yield Step(f"keep  {file.path}", lambda: self._note_file(file))
            return
        known = self.record.files.get(str(file.path))
        if there is not None and not file.is_ours and digest(there) != known:
            yield Step(f"keep  {file.path}, which is not from an installation")
            return
        yield Step(f"write {file.path}", lambda: self._write(file))

    def _drop_ins(self) -> Iterator[Step]:
        directory = drop_in_directory()
        if not self.node.at(directory).is_dir():
            yield Step(f"make  {directory}", lambda: self._make_directory(directory))

    def _make_directory(self, directory: Path) -> None:
        inside = directory / "settings.toml"
        self._note_directories(inside)
        self._save()
        self.node.make_directories(inside)

    def _write(self, file: NodeFile) -> None:
        self._note_file(file)
        self.node.write(file.path, file.content, is_program=file.is_program)

    def _note_file(self, file: NodeFile) -> None:
        self._note_directories(file.path)
        self.record.files[str(file.path)] = digest(file.content)
        self._save()

    def _link(self, link: Path) -> Iterator[Step]:
        if self.node.exists(link) and str(link) not in self.record.links:
            yield Step(f"keep  {link}, which is not from an installation")
            return
        yield Step(f"link  {link} to {self.command}", lambda: self._make_link(link))

    def _make_link(self, link: Path) -> None:
        self._note_directories(link)
        self.record.links[str(link)] = self.command
        self._save()
        self.node.remove(link)
        self.node.link(link, self.command)

    def _docker(self) -> Iterator[Step]:
        def note(change: DockerChange | None) -> None:
            self._note_directories(layout.DAEMON_JSON)
            self.record.docker = change
            self._save()

        earlier = self.record.docker
        setup = DockerSetup(node=self.node, systemd=self.systemd, environ=self.environ, earlier=earlier, note=note)
        return setup.steps()

    def _enable(self, *, starts: bool) -> Iterator[Step]:
        if not self.systemd.is_there:
            yield Step("to do: there is no systemctl: start the server with pydockershim serve")
            return
        if self.systemd.is_running:
            yield Step("run   systemctl daemon-reload", lambda: self.systemd.run("daemon-reload"))
        yield Step(f"run   systemctl enable {' '.join(OURS)}", lambda: self.systemd.run("enable", *OURS))
        if starts:
            yield Step(f"run   systemctl restart {' '.join(OURS)}", self._start)

    def _start(self) -> None:
        socket, service = OURS
        if not self.systemd.is_active(socket):
            # systemd cannot listen on the socket of a running service that has created it itself.
            self.systemd.run("stop", service)
            self.systemd.run("start", socket)
        self.systemd.run("restart", service)

    def _pod_network(self) -> Iterator[Step]:
        directory = self.node.at(layout.CNI_DIRECTORY)
        if self.options.cni is None and not (directory.is_dir() and any(directory.iterdir())):
            yield Step(
                f"to do: {layout.CNI_DIRECTORY} is empty: install a network add-on, or for a single node "
                "pydockershim install --cni 10-bridge"
            )

    def _note_directories(self, path: Path) -> None:
        known = self.record.directories
        known += [str(above) for above in self.node.missing_directories(path) if str(above) not in known]

    def _save(self) -> None:
        self._note_directories(PLACE)
        self.node.write(PLACE, encode_record(self.record))
