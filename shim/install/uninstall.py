"""Uninstall: stop the server and undo a recorded installation."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shim.base.atomic_files import failing_as
from shim.checkpoint.root import remove_state
from shim.config.model import Config
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.doctor.units import SERVICE
from shim.domain.errors import FailedPrecondition, ShimError
from shim.install import daemon_json, layout
from shim.install.docker import knows_runtime, reload_docker
from shim.install.node import Node
from shim.install.pods import pods_on_node
from shim.install.record import (
    DAEMON_JSON_BEFORE,
    FOR_PURGE,
    PLACE,
    DockerChange,
    Record,
    digest,
    encode_record,
    files_for_purge,
    read_record,
)
from shim.install.steps import Step
from shim.install.systemd import DOCKER, OURS, Systemd
from shim.netns.loopback_guard import TABLE, has_guard, remove_guard
from shim.netns.pin import remove_empty_directory

_SHOWN = 5
_STILL_THERE = f"the runtime {ORDERED_RUNTIME} is still there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A run of `pydockershim uninstall`."""

    root: Path
    force: bool
    """Uninstall even with pods on the node, whose state then stays."""
    config: Config
    environ: Mapping[str, str]
    keep_configuration: bool = False
    """Keep configuration (also Docker's, CNI's and crictl's) and its record for a purge or a later run."""
    unpacked: Path | None = None
    """Where a single-file build unpacked its environments. Removed last, because this process runs from there."""
    pods: Callable[[Config], list[str]] = pods_on_node

    def steps(self) -> Iterator[Step]:
        """Yield the steps. Raise FailedPrecondition before the first if pods are left."""
        node = Node(self.root)
        systemd = Systemd(node, self.environ)
        record = read_record(node.at(PLACE))
        left = self.pods(self.config) if node.is_this_machine else []
        if left and not self.force:
            raise FailedPrecondition(_refusal(left))
        yield from _stop(node, systemd)
        if record.docker is not None and not self.keep_configuration:
            yield from _docker(node, record.docker, systemd=systemd, endpoint=self.config.docker_endpoint)
        kept = {name: of for name, of in record.files.items() if self.keep_configuration and _is_configuration(name)}
        for name in kept:
            yield Step(f"keep  {name}")
        yield from _files(node, {name: of for name, of in record.files.items() if name not in kept})
        yield from _links(node, record)
        if left:
            yield Step(f"keep  {self.config.root_directory}, for {len(left)} containers of pods that are left")
        else:
            yield from self._state(node)
        if node.is_this_machine and _is_guarded():
            yield _guard(are_pods_left=bool(left))
        if self.keep_configuration:
            rest = Record(files=kept, directories=record.directories, docker=record.docker)
            yield Step(f"write {PLACE}, for what is kept", lambda: _keep_record(node, rest))
        else:
            yield Step(f"remove {PLACE}", lambda: _remove_record(node))
        for directory in reversed(record.directories):
            yield from _directory(node, Path(directory))
        if systemd.is_running:
            yield Step("run   systemctl daemon-reload", lambda: systemd.run("daemon-reload"))
        if self.unpacked is not None:
            yield Step(f"remove {self.unpacked}", partial(_remove_tree, self.unpacked))

    def _state(self, node: Node) -> Iterator[Step]:
        state = self.config.root_directory
        if node.at(state).is_dir():
            yield Step(f"remove {state}", lambda: remove_state(node.at(state)))
        pins = self.config.netns_directory
        if node.is_this_machine and pins.is_dir():
            yield Step(f"remove {pins}, if it is empty", partial(remove_empty_directory, pins))
        for cache in (self.config.cni_cache_dir / "results", self.config.cni_cache_dir):
            yield from _directory(node, cache)


def _is_guarded() -> bool:
    try:
        return has_guard()
    except FailedPrecondition:  # nftables is not available
        return False


def _guard(*, are_pods_left: bool) -> Step:
    """Return the step for the loopback rule, which remaining pods need longer than the server."""
    if are_pods_left:
        return Step(f"keep  table {TABLE} of nftables, for pods that are left (later: nft delete table ip {TABLE})")
    return Step(f"remove table {TABLE} of nftables", remove_guard)


def _remove_tree(path: Path) -> None:
    with failing_as(f"remove {path}"):
        shutil.rmtree(path)


def _refusal(left: list[str]) -> str:
    shown = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
    return (
        f"{len(left)} containers of pods are on this node ({shown}), and without the server nothing releases their "
        "addresses: drain the node and remove them (crictl rmp --all --force), or leave them with --force"
    )


def _stop(node: Node, systemd: Systemd) -> Iterator[Step]:
    directories = (layout.UNIT_DIRECTORY, *layout.PACKAGED_UNITS)
    if systemd.is_there and any(node.exists(directory / SERVICE) for directory in directories):
        now = ("--now",) if systemd.is_running else ()
        words = ("disable", *now, *OURS)
        yield Step(f"run   systemctl {' '.join(words)}", lambda: systemd.run(*words))


def _docker(node: Node, change: DockerChange, *, systemd: Systemd, endpoint: str) -> Iterator[Step]:
    path = layout.DAEMON_JSON
    text = node.read_text(path)
    if text is None:
        return
    restored = daemon_json.restored(text, change, path=str(path))
    if daemon_json.RUNTIMES in change.added and systemd.is_running and systemd.is_active(DOCKER):
        without = daemon_json.without_runtime(restored, path=str(path))

        def forget() -> None:
            node.write(path, without.encode())
            try:
                reload_docker(systemd, endpoint, lambda info: _STILL_THERE if knows_runtime(info) else "")
            except ShimError as error:  # for example because it is the default runtime
                node.write(path, text.encode())
                said = systemd.last_words(DOCKER) or str(error)
                raise FailedPrecondition(
                    f"Docker does not drop the runtime {ORDERED_RUNTIME}, so {path} was restored: {said}"
                ) from error

        yield Step(f"run   systemctl reload {DOCKER}, without {daemon_json.RUNTIMES} of an installation", forget)
    if restored is None:
        yield Step(f"remove {path}", lambda: node.remove(path))
    else:
        yield Step(f"write {path} as it was", lambda: node.write(path, restored.encode()))
    yield Step("to do: systemctl restart docker, to make Docker drop these settings")


def _is_configuration(name: str) -> bool:
    return layout.UNIT_DIRECTORY not in Path(name).parents


def _keep_record(node: Node, rest: Record) -> None:
    node.write(PLACE, encode_record(rest))
    for name, text in files_for_purge(rest, daemon_json=layout.DAEMON_JSON).items():
        node.write(FOR_PURGE / name, text.encode())


def _remove_record(node: Node) -> None:
    for name in ("files", "directories", DAEMON_JSON_BEFORE):
        node.remove(FOR_PURGE / name)
    node.remove_directory_if_empty(FOR_PURGE)
    node.remove(PLACE)


def _files(node: Node, files: Mapping[str, str]) -> Iterator[Step]:
    for name, written in files.items():
        path = Path(name)
        there = node.read(path)
        if there is None:
            continue
        if digest(there) != written and _is_configuration(name):
            yield Step(f"keep  {path}, which was changed after the installation")
        else:
            yield Step(f"remove {path}", partial(node.remove, path))


def _links(node: Node, record: Record) -> Iterator[Step]:
    for name, target in record.links.items():
        link = node.at(Path(name))
        if link.is_symlink() and str(link.readlink()) == target:
            yield Step(f"remove {name}", partial(node.remove, Path(name)))


def _directory(node: Node, path: Path) -> Iterator[Step]:
    if node.at(path).is_dir():
        yield Step(f"remove {path}, if it is empty", partial(node.remove_directory_if_empty, path))
