"""ImageFsInfo: never an error, never a wait for df."""

import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject
from shim.errors import DeadlineExceeded
from shim.image import fs_info
from shim.image.fs_info import image_fs_info
from shim.refreshed import Refreshed
from shim.runtime import Runtime
from shim.samples import LayerUsage
from tests.fakes.engine import FakeEngine


class MeasuredEngine(FakeEngine):
    """A fake Engine whose df answers what the test ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.usage: JsonObject = {}

    def disk_usage(self) -> JsonObject:
        super().disk_usage()
        return self.usage


@pytest.fixture
def engine(tmp_path: Path) -> MeasuredEngine:
    engine = MeasuredEngine()
    engine.engine_info = msgspec.structs.replace(engine.engine_info, docker_root_dir=str(tmp_path))
    engine.add_image("r.example/a:1", size=700)
    engine.add_image("r.example/b:1", size=500)
    return engine


def usage(rt: Runtime) -> pb.FilesystemUsage:
    info = image_fs_info(rt)
    (told,) = info.image_filesystems
    (containers,) = info.container_filesystems
    assert containers.fs_id == told.fs_id
    return told


def test_what_containers_have_written_is_told_apart(rt: Runtime) -> None:
    (empty,) = image_fs_info(rt).container_filesystems
    for number, written in enumerate((4096, 8192)):
        layer = LayerUsage(at=7 + number, used_bytes=written, inodes=3, store="/var/lib/docker")
        rt.samples.layers[str(number)] = layer

    (found,) = image_fs_info(rt).container_filesystems

    assert (empty.used_bytes.value, empty.inodes_used.value) == (0, 0)
    assert (found.used_bytes.value, found.inodes_used.value, found.timestamp) == (12_288, 6, 8)


@pytest.mark.parametrize(
    ("df", "expected"),
    [
        ({"LayersSize": 900}, 900),
        ({"LayersSize": 0}, 0),
        ({"ImageUsage": {"TotalSize": 800, "TotalCount": 2}}, 800),
        ({"ImageUsage": {"TotalSize": 800}, "LayersSize": 900}, 800),
        ({"LayersSize": -1}, 1200),
        ({"LayersSize": None}, 1200),
        ({}, 1200),
    ],
    ids=["layers", "no images", "api 1.52", "both", "unknown", "null", "missing"],
)
def test_used_bytes(rt: Runtime, engine: MeasuredEngine, df: JsonObject, expected: int) -> None:
    engine.usage = df
    assert usage(rt).used_bytes.value == expected


def test_fields(rt: Runtime, tmp_path: Path) -> None:
    told = usage(rt)
    assert told.fs_id.mountpoint == str(tmp_path)
    assert abs(time.time_ns() - told.timestamp) < 60 * 10**9
    used = os.statvfs(tmp_path)
    assert abs(told.inodes_used.value - (used.f_files - used.f_ffree)) < 100_000


def test_a_slow_df_is_not_waited_for(rt: Runtime, engine: MeasuredEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_info, "_PATIENCE", 0.02)
    engine.usage = {"LayersSize": 900}
    with engine.held("disk_usage") as gate:
        estimate = usage(rt)
        gate.wait_entered()
        assert (estimate.used_bytes.value, estimate.fs_id.mountpoint) == (1200, engine.engine_info.docker_root_dir)
        assert not estimate.HasField("inodes_used")
    monkeypatch.setattr(fs_info, "_PATIENCE", 10.0)
    assert usage(rt).used_bytes.value == 900


def test_a_failing_df_leaves_the_last_known(rt: Runtime, engine: MeasuredEngine) -> None:
    eager = replace(rt, image_usage=Refreshed(period=0.0))
    engine.usage = {"LayersSize": 900}
    first = usage(eager)
    engine.fail_next("disk_usage", *[DeadlineExceeded("docker did not answer within 120 s")] * 3)
    assert usage(eager) == first
    assert usage(eager) == first


def test_a_store_that_is_not_on_this_machine(rt: Runtime, engine: MeasuredEngine) -> None:
    engine.usage = {"LayersSize": 900}
    engine.engine_info = msgspec.structs.replace(engine.engine_info, docker_root_dir="/nowhere/docker")
    told = usage(rt)
    assert (told.fs_id.mountpoint, told.used_bytes.value) == ("/nowhere/docker", 1200)
