"""The checkpoint program, run by the exec program, with scripts in place of runc and criu."""

import os
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shim.base import deadline
from shim.criu.checkpoint import carry_out, upper_directory
from shim.criu.order import ContainerOrder, Source
from shim.domain.errors import AlreadyExists, Cancelled, FailedPrecondition, ResourceExhausted, ShimError, Unsupported
from shim.own_exec.own_exec import OwnExec
from tests.waits import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

RUNC = """#!/bin/sh
echo "$3" >> {directory}/verbs
[ "$3" = checkpoint ] || exit 0
{checkpoint}
"""
WHOLE = 'echo image > "$8/inventory.img"; echo log > "${10}/dump.log"; echo stats > "${10}/stats-dump"'


@dataclass(frozen=True, slots=True)
class Node:
    """Directories of a test, and a checkpoint order."""

    directory: Path
    order: ContainerOrder

    def runc(self, script: str) -> None:
        """Set the script that runc runs for a checkpoint."""
        write(self.directory / "runc", RUNC.format(directory=self.directory, checkpoint=script))

    @property
    def verbs(self) -> list[str]:
        """Return the commands that runc was called with."""
        return (self.directory / "verbs").read_text().split()

    def assert_nothing_left(self) -> None:
        """Assert that no file of a checkpoint is left, and that the container was resumed."""
        assert not Path(self.order.work).exists()
        assert list((self.directory / "archives").iterdir()) == []
        assert self.verbs[-1] == "resume"


def write(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


@pytest.fixture
def own_exec() -> Iterator[OwnExec]:
    made = OwnExec(is_wanted=False)
    yield made
    made.stop()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name in ("upper", "archives", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "upper/written").write_text("by the container")
    (tmp_path / "log").write_text("line\n")
    write(tmp_path / "bin/criu", "#!/bin/sh\nexit 0\n")
    made = Node(
        tmp_path,
        ContainerOrder(
            source=Source(
                container="c1",
                pid=1,
                shared_pids=0,
                runc=str(tmp_path / "runc"),
                state_root=str(tmp_path / "states"),
                upper=str(tmp_path / "upper"),
                log=str(tmp_path / "log"),
                documents={"config.dump": "{}", "spec.dump": "{}"},
            ),
            path=f"{tmp_path / 'bin'}:/usr/bin:/bin",
            work=str(tmp_path / "state/work"),
            location=str(tmp_path / "archives/c.tar"),
        ),
    )
    made.runc(WHOLE)
    return made


def test_an_archive_has_all_parts_and_belongs_to_root(own_exec: OwnExec, node: Node) -> None:
    carry_out(own_exec, node.order, what="checkpoint container c1")
    archive = Path(node.order.location)
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as found:
        assert sorted(found.getnames()) == [
            "checkpoint",
            "checkpoint/inventory.img",
            "config.dump",
            "container.log",
            "dump.log",
            "rootfs-diff.tar",
            "spec.dump",
            "stats-dump",
        ]
        with tarfile.open(fileobj=found.extractfile("rootfs-diff.tar")) as layer:
            assert layer.getnames() == ["written"]
    assert node.verbs == ["pause", "checkpoint", "resume"]
    archive.unlink()
    node.assert_nothing_left()


def test_the_error_has_crius_message(own_exec: OwnExec, node: Node) -> None:
    node.runc('echo "(00.1) Error (criu/x.c:1): no such socket" > "${10}/dump.log"; exit 1')
    with pytest.raises(FailedPrecondition, match=r"criu: .*no such socket"):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    node.assert_nothing_left()


def test_the_error_has_runcs_message_if_criu_has_none(own_exec: OwnExec, node: Node) -> None:
    node.runc("echo container is not running; exit 1")
    with pytest.raises(FailedPrecondition, match="runc: container is not running"):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    node.assert_nothing_left()


def test_without_criu_nothing_is_paused(own_exec: OwnExec, node: Node) -> None:
    (node.directory / "bin/criu").unlink()
    order = replace(node.order, path=str(node.directory / "bin"))
    with pytest.raises(Unsupported, match=r"no program criu in .*install the package criu"):
        carry_out(own_exec, order, what="checkpoint container c1")
    assert not (node.directory / "verbs").exists()
    assert not Path(order.work).exists()


def test_the_error_of_crius_check_is_reported(own_exec: OwnExec, node: Node) -> None:
    write(
        node.directory / "bin/criu",
        "#!/bin/sh\n[ $1 = check ] || exec echo Version: 3.17.1\necho unexpected bounds; exit 1\n",
    )
    with pytest.raises(Unsupported, match=r"criu 3\.17\.1: criu check: unexpected bounds; install"):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    assert not (node.directory / "verbs").exists()


def test_an_existing_archive_is_not_overwritten(own_exec: OwnExec, node: Node) -> None:
    Path(node.order.location).write_text("older")
    with pytest.raises(AlreadyExists):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    assert Path(node.order.location).read_text() == "older"


def test_the_error_names_a_missing_directory(own_exec: OwnExec, node: Node) -> None:
    with pytest.raises(FailedPrecondition, match="/nowhere"):
        carry_out(own_exec, replace(node.order, location="/nowhere/c.tar"), what="checkpoint container c1")
    assert not (node.directory / "verbs").exists()


def test_images_beyond_the_bound_are_refused(own_exec: OwnExec, node: Node) -> None:
    node.runc(f'{WHOLE}; truncate -s {(64 << 30) - 1} "$8/pages-1.img" "$8/pages-2.img"')
    with pytest.raises(ResourceExhausted, match="more than 68719476736 bytes"):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    node.assert_nothing_left()


SLOW = """#!/bin/sh
touch {directory}/began
for i in $(seq 300); do sleep 0.1; echo x >> "$1/pages-1.img" || exit 1; done
"""
"""A criu that writes for half a minute, and exits when a write fails."""


def test_a_cancelled_checkpoint_fails_criu_and_leaves_no_file(own_exec: OwnExec, node: Node) -> None:
    write(node.directory / "bin/slow", SLOW.format(directory=node.directory))
    node.runc(f'trap "" XFSZ; {node.directory}/bin/slow "$8"')
    with deadline.bound(60) as scope:

        def leave() -> None:
            wait_until((node.directory / "began").exists)
            scope.cancel()

        leaving = threading.Thread(target=leave)
        leaving.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            carry_out(own_exec, node.order, what="checkpoint container c1")
        assert time.monotonic() - began < 20
        leaving.join()
    node.assert_nothing_left()


def test_a_container_is_resumed_if_the_process_that_paused_it_is_killed(own_exec: OwnExec, node: Node) -> None:
    node.runc("kill -9 $PPID")
    with pytest.raises(ShimError, match="has ended without an answer"):
        carry_out(own_exec, node.order, what="checkpoint container c1")
    node.assert_nothing_left()


def test_a_stopped_exec_program_leaves_no_file(own_exec: OwnExec, node: Node) -> None:
    write(node.directory / "bin/slow", SLOW.format(directory=node.directory))
    node.runc(f'trap "" XFSZ; {node.directory}/bin/slow "$8"')
    failed = []

    def ask() -> None:
        try:
            carry_out(own_exec, node.order, what="checkpoint container c1")
        except Exception as error:  # noqa: BLE001 - the test checks its type
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until((node.directory / "began").exists)
    own_exec.stop()
    asking.join()
    assert failed
    wait_until(lambda: not Path(node.order.work).exists())
    node.assert_nothing_left()


@pytest.mark.parametrize(
    ("mounts", "upper"),
    [
        (b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/u,workdir=/w", Path("/var/lib/u")),
        (b"1 0 0:1 / / rw - overlay overlay rw,upperdir=/a\\040b", Path("/a b")),
        (b"1 0 0:1 / / rw - overlay overlay rw,upperdir=relative/diff", None),
        (b"1 0 0:1 / / rw - btrfs /dev/sda rw", None),
        (b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/l", None),
        (b"1 0 0:1 / /proc rw - proc proc rw", None),
    ],
)
def test_the_upper_directory_is_read_from_the_mounts(mounts: bytes, upper: Path | None) -> None:
    assert upper_directory(mounts + b"\n2 1 0:2 / /proc rw - proc proc rw\n") == upper
