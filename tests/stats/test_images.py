"""The image store is measured layer by layer, each layer once."""

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.domain.errors import Unavailable
from shim.runtime import Runtime
from shim.stats.images import PERIOD, StoreMeter
from tests.clock import Clock
from tests.fakes.engine import FakeEngine
from tests.stats.walks import total


@pytest.fixture
def root(engine: FakeEngine, tmp_path: Path) -> Path:
    """The data root of an Engine with overlay2 and no layers."""
    root = tmp_path / "docker"
    (root / "image/overlay2/layerdb/sha256").mkdir(parents=True)
    engine.engine_info = msgspec.structs.replace(
        engine.engine_info, docker_root_dir=str(root), driver="overlay2", driver_status=[]
    )
    return root


@pytest.fixture
def meter(rt: Runtime, root: Path, clock: Clock) -> StoreMeter:
    return StoreMeter(rt, clock=clock)


def add_layer(root: Path, chain: str, *, size: int = 5000) -> Path:
    directory = root / "overlay2" / f"of-{chain}"
    (directory / "diff").mkdir(parents=True)
    (directory / "diff/file").write_bytes(os.urandom(size))
    entry = root / "image/overlay2/layerdb/sha256" / chain
    entry.mkdir()
    (entry / "cache-id").write_text(directory.name)
    return directory


def remove_layer(root: Path, chain: str) -> None:
    shutil.rmtree(root / "overlay2" / f"of-{chain}")
    shutil.rmtree(root / "image/overlay2/layerdb/sha256" / chain)


def measure(meter: StoreMeter) -> list[str]:
    """Measure everything that is due; return the names."""
    names = []
    while (part := meter.next_part()) is not None:
        names.append(part[0])
        meter.note(part[0], total(part[1]))
    return names


def figures(rt: Runtime) -> tuple[int, int, bool]:
    usage = rt.stats_cache.images
    assert usage is not None
    return usage.used_bytes, usage.inodes, usage.is_measured


def test_image_layers_are_added_up(rt: Runtime, root: Path, meter: StoreMeter) -> None:
    sums = [total(add_layer(root, chain, size=size)) for chain, size in (("a", 100), ("b", 90_000))]
    (root / "overlay2/a-container/diff").mkdir(parents=True)

    assert sorted(measure(meter)) == ["a", "b"]

    assert figures(rt) == (sum(each.used_bytes for each in sums), 6, True)
    usage = rt.stats_cache.images
    assert usage is not None
    assert usage.root == root
    assert abs(usage.at - time.time_ns()) < 60 * 10**9


def test_measured_layers_are_not_measured_again(rt: Runtime, root: Path, meter: StoreMeter, clock: Clock) -> None:
    for chain in "abc":
        add_layer(root, chain)
    assert len(measure(meter)) == 3
    before = figures(rt)
    add_layer(root, "d")
    remove_layer(root, "a")
    assert measure(meter) == []
    clock.now += PERIOD
    assert measure(meter) == ["d"]
    assert figures(rt) == before
    remove_layer(root, "b")
    clock.now += PERIOD
    assert measure(meter) == []
    assert figures(rt)[1] == 6


def test_empty_store_is_measured_without_a_warning(rt: Runtime, root: Path, meter: StoreMeter) -> None:
    (root / "image/overlay2/layerdb/sha256").rmdir()
    rt.view.sandboxes()  # its sync is logged too, and over now
    with capture_logs() as logs:
        assert measure(meter) == []

    assert logs == []
    assert figures(rt) == (0, 0, True)


def test_file_system_usage_is_reported_until_all_is_measured(rt: Runtime, root: Path, meter: StoreMeter) -> None:
    for chain in "ab":
        add_layer(root, chain)
    name, top = meter.next_part() or ("", Path())
    meter.note(name, total(top))

    used, inodes, is_measured = figures(rt)
    real = os.statvfs(root)
    assert not is_measured
    assert abs(used - (real.f_blocks - real.f_bfree) * real.f_frsize) < 1 << 30
    assert abs(inodes - (real.f_files - real.f_ffree)) < 100_000


def test_containerd_store_is_measured(rt: Runtime, engine: FakeEngine, meter: StoreMeter, tmp_path: Path) -> None:
    root = tmp_path / "containerd/daemon/io.containerd.snapshotter.v1.overlayfs"
    (root / "snapshots/1/fs").mkdir(parents=True)
    blobs = root.with_name("io.containerd.content.v1.content") / "blobs/sha256"
    blobs.mkdir(parents=True)
    (blobs / "ab").write_bytes(b"packed")
    engine.engine_info = msgspec.structs.replace(
        engine.engine_info,
        docker_root_dir=str(tmp_path),
        driver="overlayfs",
        driver_status=[["driver-type", "io.containerd.snapshotter.v1"]],
    )

    assert len(measure(meter)) == 2

    assert figures(rt)[1:] == (4, True)
    usage = rt.stats_cache.images
    assert usage is not None
    assert usage.root == root


def test_unmeasurable_store_reports_its_file_system(rt: Runtime, engine: FakeEngine, meter: StoreMeter) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, driver="btrfs")
    assert measure(meter) == []
    assert figures(rt)[2] is False


def test_missing_store_is_logged_once(rt: Runtime, engine: FakeEngine, meter: StoreMeter, clock: Clock) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, docker_root_dir="/nowhere/docker")
    with capture_logs() as logs:
        for _ in range(3):
            assert measure(meter) == []
            clock.now += PERIOD
    [complaint] = [line for line in logs if line["event"] == "failed to measure image store"]
    assert "/nowhere/docker" in str(complaint["error"])
    assert rt.stats_cache.images is None


def test_unreachable_docker_leaves_the_store_unmeasured(
    rt: Runtime, root: Path, engine: FakeEngine, meter: StoreMeter, clock: Clock
) -> None:
    add_layer(root, "a")
    engine.fail_next("info", Unavailable("docker cannot be reached"))
    assert measure(meter) == []
    clock.now += PERIOD
    assert measure(meter) == ["a"]
