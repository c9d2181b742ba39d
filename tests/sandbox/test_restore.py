"""RestorePod makes a pod of a checkpoint, or nothing."""

import os
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.remove import remove_container
from shim.container.restoring import start_seconds
from shim.criu.layout import MANIFEST, manifest, needed_files
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.domain import labels
from shim.domain.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ShimError
from shim.engine.answers import Runtime as OciRuntime
from shim.engine.interface import JsonObject
from shim.oci_runtime.order import read
from shim.runtime import Runtime
from shim.sandbox.restore import RestoredPod, restore_pod
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import container_config, pod_config, ready_pod

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

Fields = dict[str, Any]


@pytest.fixture
def orders(engine: FakeEngine, tmp_path: Path) -> Path:
    """Have Docker know the server's OCI runtime. Return the directory of its orders."""
    directory = tmp_path / "orders"
    known = OciRuntime(path="/oci-runtime", runtime_args=["--orders", str(directory)])
    info = engine.engine_info
    runtimes = {**(info.runtimes or {}), ORDERED_RUNTIME: known, "kata": OciRuntime(path="kata")}
    engine.engine_info = msgspec.structs.replace(info, runtimes=runtimes)
    return directory


@pytest.fixture(autouse=True)
def criu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a criu in the PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/criu").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin/criu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.fixture
def checkpoint(rt: Runtime, tmp_path: Path) -> Path:
    """Write a checkpoint of two containers."""
    directory = tmp_path / "checkpoint"
    entries = []
    for number, name in enumerate(("web", "log")):
        images = directory / str(number) / "checkpoint"
        images.mkdir(mode=0o700, parents=True)
        (images / "inventory.img").write_text(name)
        tarfile.open(directory / str(number) / "rootfs-diff.tar", "w").close()
        (directory / str(number) / "spec.dump").write_text("{}")
        entries.append(
            {
                "name": name,
                "directory": str(number),
                "files": needed_files(directory / str(number), check=lambda: None),
                "layers": rt.engine.inspect_image(BUSYBOX).root_fs.layers or [],
                "config": labels.config_as_dict(configured(name)),
            }
        )
    (directory / MANIFEST).write_bytes(manifest(entries))
    return directory


def configured(name: str, **fields: Any) -> pb.ContainerConfig:
    """Return a container of the checkpoint; `fields` are other ones."""
    mounts = [pb.Mount(host_path="/tmp", container_path="/data")]
    return container_config(name, **({"mounts": mounts} | fields))


def restored(rt: Runtime, checkpoint: Path, *configs: pb.ContainerConfig, **fields: Any) -> RestoredPod:
    """Restore the pod."""
    wanted: Fields = {
        "checkpoint_path": str(checkpoint),
        "config": pod_config(),
        "runtime_handler": "",
        "container_configs": configs or (configured("log"), configured("web")),
        "refuse_connections": False,
    }
    return restore_pod(rt, **(wanted | fields))


def assert_nothing_left(rt: Runtime, engine: FakeEngine, orders: Path) -> None:
    assert not engine.containers
    assert list((rt.config.root_directory / "restoring").glob("*")) == []
    assert list(rt.checkpoints.all()) == []
    assert list(orders.glob("*")) == []


def test_each_container_is_created_with_its_own_part(
    rt: Runtime, engine: FakeEngine, orders: Path, checkpoint: Path
) -> None:
    made = restored(rt, checkpoint)
    assert made.containers.keys() == {"web", "log"}
    for name, container in made.containers.items():
        record = rt.view.container(container)
        assert (record.state.phase, record.sandbox_id) == (pb.CONTAINER_CREATED, made.sandbox)
        order = read(str(orders), container)
        assert order.restore is not None
        directory = Path(order.restore.directory)
        assert directory == rt.config.root_directory / "restoring" / container
        assert (directory / "checkpoint/inventory.img").read_text() == name
        assert (orders / container).read_bytes().split()[3] == b"2"
        assert engine.containers[container].body["HostConfig"]["Runtime"] == ORDERED_RUNTIME
    kept = {path.name for path in (rt.config.root_directory / "restoring").iterdir()}
    assert kept == set(made.containers.values())


@pytest.mark.usefixtures("orders")
def test_a_start_has_time_to_read_its_checkpoint(rt: Runtime, checkpoint: Path) -> None:
    made = restored(rt, checkpoint)
    container = made.containers["web"]
    assert 0 < start_seconds(rt, container) < 1
    images = rt.config.root_directory / "restoring" / container / "checkpoint/pages-1.img"
    images.touch()
    os.truncate(images, 60 << 30)
    assert 1800 < start_seconds(rt, container) < 2000
    assert start_seconds(rt, "another") == 0


def in_context(**fields: Any) -> pb.LinuxContainerConfig:
    return pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(**fields))


DIFFERENT: dict[str, tuple[list[pb.ContainerConfig], type[ShimError], str]] = {
    "one is missing": ([configured("web")], InvalidArgument, "has containers that are missing: log"),
    "one too many": (
        [configured("web"), configured("log"), configured("more")],
        InvalidArgument,
        "does not have the containers: more",
    ),
    "one twice": ([configured("web"), configured("log"), configured("web")], InvalidArgument, "same name"),
    "a mount is missing": (
        [configured("web"), configured("log", mounts=[])],
        FailedPrecondition,
        r"container_configs\[1\].mounts: the checkpoint has mounts that are missing: /data",
    ),
    "a mount is new": (
        [
            configured(
                "web",
                mounts=[
                    pb.Mount(host_path="/tmp", container_path="/data"),
                    pb.Mount(host_path="/tmp", container_path="/x"),
                ],
            ),
            configured("log"),
        ],
        FailedPrecondition,
        r"container_configs\[0\].mounts: the checkpoint does not have the mounts: /x",
    ),
    "a mount is read-only now": (
        [
            configured("web", mounts=[pb.Mount(host_path="/tmp", container_path="/data", readonly=True)]),
            configured("log"),
        ],
        FailedPrecondition,
        "other options than at the checkpoint: /data",
    ),
    "fewer rights": (
        [configured("web", linux=in_context(no_new_privs=True)), configured("log")],
        FailedPrecondition,
        r"container_configs\[0\].linux.security_context differs from the checkpoint",
    ),
    "a terminal": ([configured("web", tty=True), configured("log")], FailedPrecondition, "tty differs from"),
    "no such image": ([configured("web", image="none"), configured("log")], NotFound, "'none' is not on this node"),
}


@pytest.mark.parametrize(("configs", "kind", "text"), DIFFERENT.values(), ids=DIFFERENT)
def test_containers_that_differ_are_refused(
    rt: Runtime,
    engine: FakeEngine,
    orders: Path,
    checkpoint: Path,
    configs: list[pb.ContainerConfig],
    kind: type[ShimError],
    text: str,
) -> None:
    with pytest.raises(kind, match=text):
        restored(rt, checkpoint, *configs)
    assert_nothing_left(rt, engine, orders)


def test_another_image_is_refused(rt: Runtime, engine: FakeEngine, orders: Path, checkpoint: Path) -> None:
    content = (checkpoint / MANIFEST).read_text()
    (checkpoint / MANIFEST).write_text(content.replace('"layers": [', '"layers": ["sha256:other"', 1))
    with pytest.raises(FailedPrecondition, match="is not the image of the checkpoint"):
        restored(rt, checkpoint)
    assert_nothing_left(rt, engine, orders)


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"runtime_handler": "none"}, InvalidArgument, "runtime_handler: Docker has no runtime 'none'"),
        ({"runtime_handler": "kata"}, FailedPrecondition, "runtime_handler: the OCI runtime kata is not runc"),
    ],
)
def test_a_handler_that_cannot_restore_is_refused(
    rt: Runtime, engine: FakeEngine, orders: Path, checkpoint: Path, fields: Fields, kind: type[ShimError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        restored(rt, checkpoint, **fields)
    assert_nothing_left(rt, engine, orders)


def test_without_the_oci_runtime_it_is_refused(rt: Runtime, engine: FakeEngine, checkpoint: Path) -> None:
    with pytest.raises(FailedPrecondition, match="pydockershim install --docker adds it"):
        restored(rt, checkpoint)
    assert not engine.containers


def test_a_pod_that_is_there_stays(rt: Runtime, engine: FakeEngine, orders: Path, checkpoint: Path) -> None:
    sandbox = ready_pod(rt)
    with pytest.raises(AlreadyExists, match=sandbox):
        restored(rt, checkpoint)
    assert list(engine.containers) == [sandbox]


def test_all_is_removed_when_a_container_cannot_be_made(
    rt: Runtime, engine: FakeEngine, orders: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = engine.create_container

    def fails_at_the_third(*, name: str, body: JsonObject) -> str:
        if len(engine.containers) == 2:
            raise ShimError("no room")
        return create(name=name, body=body)

    monkeypatch.setattr(engine, "create_container", fails_at_the_third)
    with pytest.raises(ShimError, match="no room"):
        restored(rt, checkpoint)
    assert_nothing_left(rt, engine, orders)


def test_a_removed_container_leaves_no_file(rt: Runtime, orders: Path, checkpoint: Path) -> None:
    made = restored(rt, checkpoint)
    for container in made.containers.values():
        remove_container(rt, container_id=container)
    assert list((rt.config.root_directory / "restoring").iterdir()) == []
