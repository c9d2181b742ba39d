"""ImageFsInfo: the last measurement, before that an estimate; never a call to Docker."""

import time
from pathlib import Path

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import Unavailable
from shim.image.fs_info import image_fs_info
from shim.runtime import Runtime
from shim.stats_cache import LayerUsage, StoreUsage
from tests.fakes.engine import FakeEngine

ROOT = Path("/var/lib/docker")
MEASURED = StoreUsage(at=7, root=ROOT, used_bytes=900, inodes=30, is_measured=True)


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine()
    engine.engine_info = msgspec.structs.replace(engine.engine_info, docker_root_dir=str(tmp_path))
    engine.add_image("r.example/a:1", size=700)
    engine.add_image("r.example/b:1", size=500)
    return engine


def usage(rt: Runtime) -> pb.FilesystemUsage:
    info = image_fs_info(rt)
    (reported,) = info.image_filesystems
    (containers,) = info.container_filesystems
    assert containers.fs_id == reported.fs_id
    return reported


def test_writable_layers_are_reported_separately(rt: Runtime) -> None:
    (empty,) = image_fs_info(rt).container_filesystems
    for number, written in enumerate((4096, 8192)):
        layer = LayerUsage(at=7 + number, used_bytes=written, inodes=3, store="/var/lib/docker")
        rt.stats_cache.layers[str(number)] = layer

    (found,) = image_fs_info(rt).container_filesystems

    assert (empty.used_bytes.value, empty.inodes_used.value) == (0, 0)
    assert (found.used_bytes.value, found.inodes_used.value, found.timestamp) == (12_288, 6, 8)


def test_measured_usage_is_reported(rt: Runtime, engine: FakeEngine) -> None:
    rt.stats_cache.images = MEASURED
    engine.calls.clear()

    reported = usage(rt)

    assert reported.fs_id.mountpoint == "/var/lib/docker"
    assert (reported.timestamp, reported.used_bytes.value, reported.inodes_used.value) == (7, 900, 30)
    assert engine.calls == []


@pytest.mark.parametrize(("in_use", "expected"), [(1 << 40, 1200), (1100, 1100)], ids=["room for all", "shared layers"])
def test_estimate_is_reported_before_the_measurement_is_complete(
    rt: Runtime, engine: FakeEngine, in_use: int, expected: int
) -> None:
    rt.stats_cache.images = StoreUsage(at=7, root=ROOT, used_bytes=in_use, inodes=30, is_measured=False)
    engine.calls.clear()

    reported = usage(rt)

    assert (reported.used_bytes.value, reported.inodes_used.value) == (expected, 30)
    assert abs(reported.timestamp - time.time_ns()) < 60 * 10**9
    assert engine.calls == []


def test_store_that_was_not_found_is_estimated(rt: Runtime, tmp_path: Path) -> None:
    reported = usage(rt)
    assert (reported.fs_id.mountpoint, reported.used_bytes.value) == (str(tmp_path), 1200)
    assert not reported.HasField("inodes_used")


def test_unreachable_docker_is_unavailable(rt: Runtime) -> None:
    rt.stats_cache.images = MEASURED
    rt.view.disconnect("docker has gone")
    with pytest.raises(Unavailable):
        usage(rt)
