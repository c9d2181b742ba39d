import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.start import start_container
from shim.domain.ids import ContainerId
from shim.runtime import Runtime
from shim.stats import disk as module
from shim.stats.containers import list_container_stats
from shim.stats.disk import Budget, LayerMeter, Sum, file_system_of, upper_of, walk
from shim.stats.metrics import list_pod_sandbox_metrics
from shim.stats.sampler import sample
from shim.stats_cache import LayerUsage
from tests.cgroup.trees import group_v2
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.stats.placed import pod_with_container, without_docker
from tests.stats.walks import finished, total
from tests.waits import SECONDS, wait_until


def blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "overlay2/ab/diff"
    (top / "deep/er").mkdir(parents=True)
    (top / "file").write_bytes(os.urandom(100_000))
    (top / "deep/er/other").write_bytes(os.urandom(5000))
    return top


def everything(top: Path) -> list[Path]:
    return [top, top / "deep", top / "deep/er", top / "file", top / "deep/er/other"]


def test_blocks_and_inodes_count_like_du(tree: Path) -> None:
    assert total(tree) == Sum(blocks(*everything(tree)), 5)


def test_a_file_with_several_names_counts_once(tree: Path) -> None:
    os.link(tree / "file", tree / "deep/again")

    assert total(tree).inodes == 5
    assert total(tree).used_bytes == blocks(*everything(tree))


def test_remembered_hard_links_are_bounded(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LINKED", 1)
    more = [tree / "third", tree / "fourth"]
    for path in more:
        path.write_bytes(os.urandom(9000))
    for path in (tree / "file", *more):
        for number in range(3):
            os.link(path, tree / f"deep/{path.name}-{number}")

    assert total(tree) == Sum(blocks(*everything(tree), *more), 7)


def test_beyond_the_bound_each_name_counts_its_share(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_LINKED", 1)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    more = [tree / f"more-{number}" for number in range(2)]
    for path in more:
        path.write_bytes(os.urandom(9000))
        os.link(path, elsewhere / path.name)

    assert total(tree).used_bytes == blocks(*everything(tree), more[0]) + blocks(more[1]) // 2


def test_remembered_directories_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 2)
    for outer in range(5):
        for inner in range(3):
            (tmp_path / str(outer) / str(inner)).mkdir(parents=True)
        (tmp_path / f"{outer}/file").touch()
    read: list[os.stat_result] = []
    scandir = os.scandir

    def counted(directory: int) -> Any:
        read.append(os.fstat(directory))
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", counted)

    assert total(tmp_path).inodes == 1 + 5 + 5 * 3 + 5
    # Two at a time: the uppermost three times, those in it twice each, and once those without any.
    assert len(read) == 3 + 5 * 2 + 5 * 3


def test_links_are_not_followed_and_holes_do_not_count(tree: Path) -> None:
    (tree / "link").symlink_to("/")
    with (tree / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)

    found = total(tree)

    assert found.inodes == 7
    assert found.used_bytes == blocks(*everything(tree), tree / "link", tree / "sparse")


def test_vanished_entries_are_omitted(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE", 1)
    walking = walk(tree)
    next(walking)
    (tree / "file").unlink()
    (tree / "deep/er/other").unlink()
    (tree / "deep/er").rmdir()

    assert 1 <= finished(walking).inodes <= 4


@pytest.mark.parametrize(("slices", "inodes"), [(1, 2), (2, 3)], ids=["the directory", "one above"])
def test_directory_replaced_by_a_link_is_not_followed(
    tmp_path: Path, slices: int, inodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE", 1)
    (tmp_path / "top/a/b").mkdir(parents=True)
    (tmp_path / "outside/b").mkdir(parents=True)
    for number in range(50):
        (tmp_path / "outside/b" / str(number)).touch()
    walking = walk(tmp_path / "top")
    for _ in range(slices):
        next(walking)
    (tmp_path / "top/a").rename(tmp_path / "elsewhere")
    (tmp_path / "top/a").symlink_to(tmp_path / "outside")

    assert finished(walking).inodes == inodes


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        total(tmp_path / "nothing")


def test_long_walk_yields_in_slices(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / str(number)).touch()

    assert len(list(walk(tmp_path))) == 2


def test_budget_is_a_share_of_elapsed_time() -> None:
    now = [0.0]
    budget = Budget(share=0.1, burst=1.0, clock=lambda: now[0])

    assert budget.spend(0.6) == 0
    assert budget.spend(0.6) == pytest.approx(2.0)
    now[0] += 2.0
    assert budget.spend(0.05) == pytest.approx(0.5)
    now[0] += 1000
    assert budget.spend(1.0) == 0
    assert budget.spend(0.1) == pytest.approx(1.0)


def container_with_layer(rt: Runtime, upper: Path, name: str = "app") -> ContainerId:
    """Set the directory before the container is seen, because the fake Engine mounts nothing."""
    container = created(rt, ready_pod(rt, name), name)
    rt.stats_cache.uppers[container] = upper
    start_container(rt, container_id=container)
    return container


def wait_measured(rt: Runtime, container: str) -> LayerUsage:
    wait_until(lambda: container in rt.stats_cache.layers)
    return rt.stats_cache.layers[container]


@pytest.fixture
def no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers of these tests have no layers but those that a test sets."""
    monkeypatch.setattr(module, "upper_directory", lambda _process: Path())


@pytest.mark.usefixtures("no_mounts")
def test_layers_are_measured_without_docker(rt: Runtime, tree: Path) -> None:
    container = container_with_layer(rt, tree)
    meter = LayerMeter(without_docker(rt))
    meter.start()
    try:
        usage = wait_measured(rt, container)
    finally:
        meter.stop()

    assert (usage.used_bytes, usage.inodes) == (blocks(*everything(tree)), 5)
    assert usage.store == str(tree.parents[2])
    assert abs(usage.at - time.time_ns()) < 60 * 10**9


@pytest.mark.usefixtures("no_mounts")
def test_huge_layer_does_not_delay_others(rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = container_with_layer(rt, tree, "small")
    large = container_with_layer(rt, tree.parent / "large", "large")
    (tree.parent / "large").mkdir()
    endless = threading.Event()

    def walking(top: Path) -> Generator[None, None, Sum]:
        while top.name == "large" and not endless.is_set():
            yield
        return Sum(1, 1)

    monkeypatch.setattr(module, "walk", walking)
    meter = LayerMeter(rt, interval=0.05)
    meter.start()
    try:
        wait_measured(rt, small)
        assert large not in rt.stats_cache.layers
        endless.set()
        wait_measured(rt, large)
    finally:
        meter.stop()


@pytest.mark.usefixtures("no_mounts")
def test_unreadable_layer_does_not_block_others(rt: Runtime, tree: Path) -> None:
    container_with_layer(rt, tree.parent / "missing", "broken")
    container = container_with_layer(rt, tree)
    meter = LayerMeter(rt, interval=0.05)
    meter.start()
    try:
        wait_measured(rt, container)
    finally:
        meter.stop()


@pytest.mark.usefixtures("no_mounts")
def test_budget_holds_for_many_small_layers(rt: Runtime, tree: Path) -> None:
    container_with_layer(rt, tree.parent / "missing", "broken")
    containers = [container_with_layer(rt, tree, name) for name in ("one", "two")]
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return False

    meter = LayerMeter(rt, budget=Budget(share=0.5, burst=0, clock=lambda: 0.0), interval=0.05, wait=wait)
    meter.start()
    try:
        for container in containers:
            wait_measured(rt, container)
        wait_until(lambda: len(pauses) == 3)
    finally:
        meter.stop()

    assert pauses[0] > 0
    assert pauses == sorted(set(pauses))


@pytest.mark.usefixtures("no_mounts")
def test_unexpected_error_does_not_stop_the_meter(rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = {container_with_layer(rt, tree, name) for name in ("one", "two")}
    failed: list[Path] = []

    def walking(top: Path) -> Generator[None, None, Sum]:
        if not failed:
            failed.append(top)
            raise ValueError("unforeseen")
        return (yield from walk(top))

    monkeypatch.setattr(module, "walk", walking)
    monkeypatch.setattr(module, "PERIOD", 0.05)
    meter = LayerMeter(rt, interval=0.05)
    meter.start()
    try:
        wait_until(lambda: rt.stats_cache.layers.keys() == containers)
    finally:
        meter.stop()

    assert failed == [tree]


class GivenParts:
    def __init__(self, *parts: Path | Exception) -> None:
        self.waiting = list(parts)
        self.noted: dict[str, Sum] = {}

    def next_part(self) -> tuple[str, Path] | None:
        part = self.waiting.pop(0) if self.waiting else None
        if isinstance(part, Exception):
            raise part
        return (part.name, part) if part else None

    def note(self, name: str, total: Sum) -> None:
        self.noted[name] = total


def test_failing_part_does_not_stop_other_parts(rt: Runtime, tree: Path) -> None:
    parts = GivenParts(Path("/no\0path"), ValueError("unforeseen"), tree)
    meter = LayerMeter(rt, parts=parts, interval=0.05)
    meter.start()
    try:
        wait_until(lambda: len(parts.noted) == 2)
    finally:
        meter.stop()

    assert parts.noted.pop("no\0path") == Sum(0, 0)
    assert parts.noted[tree.name].inodes > 0


@pytest.mark.usefixtures("no_mounts")
def test_a_started_container_is_measured_at_once(rt: Runtime, tree: Path) -> None:
    meter = LayerMeter(rt, interval=1000)
    meter.start()
    try:
        container = container_with_layer(rt, tree)
        rt.stats_cache.container_started()
        wait_measured(rt, container)
    finally:
        meter.stop()


@pytest.mark.usefixtures("no_mounts")
@pytest.mark.parametrize(
    "budget", [Budget(share=1000, burst=1000), Budget(share=1e-9, burst=0)], ids=["walking", "waiting for its budget"]
)
def test_started_container_is_measured_during_other_walks(
    rt: Runtime, tree: Path, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = threading.Event()

    def walking(top: Path) -> Generator[None, None, Sum]:
        while top.name == "deep":
            walks.set()
            yield
        return Sum(1, 1)

    monkeypatch.setattr(module, "walk", walking)
    meter = LayerMeter(rt, parts=OneByOne(tree / "deep"), budget=budget, interval=1000)
    meter.start()
    try:
        assert walks.wait(SECONDS)
        container = container_with_layer(rt, tree)
        wait_measured(rt, container)
    finally:
        meter.stop()


@pytest.mark.usefixtures("no_mounts")
def test_constant_container_starts_do_not_starve_layers(
    rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = {container_with_layer(rt, tree, name) for name in ("one", "two")}
    meter = LayerMeter(rt)
    monkeypatch.setattr(meter._container_started, "clear", lambda: None)  # there is always one more
    rt.stats_cache.container_started()
    meter.start()
    try:
        wait_until(lambda: rt.stats_cache.layers.keys() == containers)
    finally:
        meter.stop()


@pytest.mark.usefixtures("no_mounts")
def test_container_without_a_visible_layer_has_no_usage(rt: Runtime) -> None:
    record = rt.view.container(running(rt, ready_pod(rt)))

    assert upper_of(rt, record) is None


def test_layer_that_was_not_found_is_searched_again(rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = rt.view.container(running(rt, ready_pod(rt)))
    answers = [Path(), tree]
    monkeypatch.setattr(module, "upper_directory", lambda _process: answers.pop(0))

    assert [upper_of(rt, record) for _ in range(3)] == [None, tree, tree]


def test_layer_of_an_image_with_many_layers_is_found(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker mounts it with paths relative to the directory of its driver."""
    record = rt.view.container(running(rt, ready_pod(rt)))
    monkeypatch.setattr(module, "upper_directory", lambda _process: Path("ab/diff"))

    assert upper_of(rt, record) == Path("/var/lib/docker/overlay2/ab/diff")


@pytest.mark.usefixtures("no_mounts")
def test_only_written_data_counts_if_the_driver_copies_the_image(
    rt: Runtime, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, driver="vfs", docker_root_dir=str(tmp_path))
    rt.facts.info(max_age=0)
    container = running(rt, ready_pod(rt))
    record = tmp_path / "image/vfs/layerdb/mounts" / container
    record.mkdir(parents=True)
    (record / "mount-id").write_text("ab")
    for name in ("ab-init", "ab"):
        (tmp_path / "vfs/dir" / name / "of the image").mkdir(parents=True)
        (tmp_path / "vfs/dir" / name / "of the image/big").write_bytes(bytes(1 << 20))
    (tmp_path / "vfs/dir/ab/written").write_bytes(bytes(1 << 16))
    meter = LayerMeter(rt)
    meter.start()
    try:
        usage = wait_measured(rt, container)
    finally:
        meter.stop()
    assert (usage.used_bytes, usage.inodes, usage.store) == (1 << 16, 1, str(tmp_path))


@pytest.mark.usefixtures("no_mounts")
def test_store_path_may_be_invalid_utf8(rt: Runtime, tmp_path: Path) -> None:
    upper = tmp_path / os.fsdecode(b"docker\xff") / "overlay2/ab/diff"
    upper.mkdir(parents=True)
    container = container_with_layer(rt, upper)
    meter = LayerMeter(rt)
    meter.start()
    try:
        assert wait_measured(rt, container).store == f"{tmp_path}/docker\ufffd"
    finally:
        meter.stop()


def test_file_system_of_a_layer_is_described(tree: Path) -> None:
    real = os.statvfs(tree)

    found = file_system_of(tree)

    assert found is not None
    assert (found.size, found.inodes) == (real.f_blocks * real.f_frsize, real.f_files)
    assert 0 < found.inodes_free <= found.inodes or real.f_files == 0
    assert (found.major, found.minor) == (os.major(tree.stat().st_dev), os.minor(tree.stat().st_dev))
    assert file_system_of(tree / "missing") is None


@pytest.mark.usefixtures("no_mounts")
def test_hanging_disk_blocks_nothing_else(rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.uppers[pod.container] = tree
    hangs, answers = threading.Event(), threading.Event()

    def hang(_path: object) -> os.statvfs_result:
        hangs.set()
        assert answers.wait(SECONDS)
        raise OSError("it has gone")

    monkeypatch.setattr(os, "statvfs", hang)
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.05)
    meter = LayerMeter(rt)
    meter.start()
    try:
        assert hangs.wait(SECONDS)
        sample(rt, with_metrics=True)
        assert len(list_container_stats(rt, filter=pb.ContainerStatsFilter())) == 1
        [metrics] = list_pod_sandbox_metrics(rt)
        assert len(metrics.container_metrics) == 1
    finally:
        meter.stop()
        answers.set()


class OneByOne:
    """Parts that are handed out in turn, and their measurements."""

    def __init__(self, *tops: Path) -> None:
        self._waiting = list(tops)
        self.found: dict[str, Sum] = {}

    def next_part(self) -> tuple[str, Path] | None:
        return (str(self._waiting[0]), self._waiting.pop(0)) if self._waiting else None

    def note(self, name: str, total: Sum) -> None:
        self.found[name] = total


@pytest.mark.usefixtures("no_mounts")
def test_parts_are_measured_between_the_layers(rt: Runtime, tree: Path) -> None:
    container = container_with_layer(rt, tree)
    parts = OneByOne(tree / "deep", tree / "missing", tree)
    meter = LayerMeter(rt, parts=parts, interval=1000)
    meter.start()
    try:
        wait_measured(rt, container)
        wait_until(lambda: len(parts.found) == 3)
    finally:
        meter.stop()

    assert parts.found == {
        str(tree / "deep"): total(tree / "deep"),
        str(tree / "missing"): Sum(0, 0),
        str(tree): total(tree),
    }
    assert rt.stats_cache.layers.keys() == {container}


@pytest.mark.usefixtures("no_mounts")
def test_endless_part_does_not_delay_layers(rt: Runtime, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = threading.Event()

    def walking(top: Path) -> Generator[None, None, Sum]:
        while top.name == "deep" and not endless.is_set():
            yield
        return Sum(1, 1)

    monkeypatch.setattr(module, "walk", walking)
    parts = OneByOne(tree / "deep")
    meter = LayerMeter(rt, parts=parts, interval=0.05)
    meter.start()
    try:
        wait_measured(rt, container_with_layer(rt, tree))
        assert not parts.found
        endless.set()
        wait_until(lambda: bool(parts.found))
    finally:
        meter.stop()
