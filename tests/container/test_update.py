import errno
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.limits import LimitStore
from shim.config.model import Config
from shim.container.remove import remove_container
from shim.container.start import start_container
from shim.container.status import container_status
from shim.container.update import update_container_resources
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound, ShimError, Unavailable
from shim.domain.ids import ContainerId
from shim.runtime import Runtime
from shim.spec.resources import START_MEMORY
from tests.conftest import BUSYBOX
from tests.container.limited import Groups, RuncEngine, composed_groups
from tests.pods import created, ready_pod, running

MIB = 1 << 20
Resources = pb.LinuxContainerResources
LIMITS = Resources(cpu_shares=512, memory_limit_in_bytes=64 * MIB)


@pytest.fixture
def engine() -> RuncEngine:
    engine = RuncEngine()
    engine.add_image(Config().pod_infra_container_image)
    engine.add_image(BUSYBOX)
    return engine


@pytest.fixture
def v1(rt: Runtime, engine: RuncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return composed_groups(rt, engine, tmp_path / "groups", monkeypatch, version="1")


@pytest.fixture
def v2(rt: Runtime, engine: RuncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return composed_groups(rt, engine, tmp_path / "groups", monkeypatch, version="2")


def update(rt: Runtime, container: ContainerId, resources: Resources) -> None:
    update_container_resources(rt, container_id=container, linux=resources)


def actual(rt: Runtime, container: ContainerId) -> Resources:
    return container_status(rt, container_id=container, verbose=False).status.resources.linux


def test_created_and_running_containers_can_be_changed(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    for container in (created(rt, sandbox, "a"), running(rt, sandbox, "b")):
        update(rt, container, LIMITS)
        assert (actual(rt, container).cpu_shares, actual(rt, container).memory_limit_in_bytes) == (512, 64 * MIB)


def test_an_ended_container_cannot_be_changed(rt: Runtime, engine: RuncEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    rt.view.refresh_container(container)
    with pytest.raises(FailedPrecondition, match="has ended"):
        update(rt, container, LIMITS)
    with pytest.raises(NotFound):
        update(rt, ContainerId("e" * 64), LIMITS)


def test_a_bad_key_changes_nothing(rt: Runtime, engine: RuncEngine) -> None:
    container = running(rt, ready_pod(rt))
    bad = Resources(cpu_shares=512, unified={"memory.high": "1"})
    with pytest.raises(InvalidArgument, match=r"linux\.unified needs cgroup v2"):
        update(rt, container, bad)
    assert ("update_container", container) not in engine.calls


def test_an_update_refused_by_docker_changes_nothing(
    rt: Runtime, engine: RuncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = running(rt, ready_pod(rt))
    run_as(rt, engine, container, pid=os.getpid())
    monkeypatch.setattr("shim.container.cgroup.EXIT_SECONDS", 0.0)
    engine.fail_next("update_container", ShimError("memory limit is below what is in use"))
    with pytest.raises(ShimError, match="below what is in use"):
        update(rt, container, LIMITS)


def test_a_limit_discarded_by_docker_fails_the_update(rt: Runtime, engine: RuncEngine, v1: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container)
    update(rt, container, Resources(cpu_shares=256, memory_limit_in_bytes=32 * MIB))
    engine.discards = {"CpuShares": 0}
    with pytest.raises(FailedPrecondition, match=r"linux\.cpu_shares 512: Docker has discarded it"):
        update(rt, container, LIMITS)
    assert engine.containers[container].host["Memory"] == 32 * MIB
    assert v1.file(container, "memory.limit_in_bytes") == str(32 * MIB)
    assert actual(rt, container).cpu_shares == 256


def test_cgroup_files_are_written_after_dockers_update(rt: Runtime, v2: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v2.of(container)
    update(
        rt,
        container,
        Resources(
            memory_limit_in_bytes=64 * MIB,
            unified={"memory.high": "1048576", "memory.swap.max": "4096"},
            hugepage_limits=[pb.HugepageLimit(page_size="2Mi", limit=2 * MIB)],
        ),
    )
    assert v2.file(container, "memory.max") == str(64 * MIB)
    assert v2.file(container, "memory.high") == str(MIB)
    assert v2.file(container, "memory.swap.max") == "4096"
    assert v2.file(container, "hugetlb.2MB.max") == v2.file(container, "hugetlb.2MB.rsvd.max") == str(2 * MIB)
    # Docker's next update resets its limits; then the server writes the files again.
    update(rt, container, Resources(memory_limit_in_bytes=32 * MIB))
    assert (v2.file(container, "memory.max"), v2.file(container, "memory.swap.max")) == (str(32 * MIB), "4096")


def test_limits_below_dockers_minimum_are_written_to_the_cgroup(rt: Runtime, v1: Groups, engine: RuncEngine) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container, memory__usage_in_bytes="2000000")
    update(rt, container, Resources(memory_limit_in_bytes=4 * MIB))
    assert engine.containers[container].host["Memory"] == START_MEMORY
    assert (
        v1.file(container, "memory.limit_in_bytes") == v1.file(container, "memory.memsw.limit_in_bytes") == str(4 * MIB)
    )
    update(rt, container, Resources(cpu_shares=512))
    assert v1.file(container, "memory.limit_in_bytes") == str(4 * MIB)
    update(rt, container, Resources(memory_limit_in_bytes=64 * MIB))
    assert (
        v1.file(container, "memory.limit_in_bytes")
        == v1.file(container, "memory.memsw.limit_in_bytes")
        == str(64 * MIB)
    )


def test_limits_can_be_lifted(rt: Runtime, v2: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v2.of(container)
    update(rt, container, Resources(memory_limit_in_bytes=64 * MIB, cpu_quota=50_000))
    update(rt, container, Resources(memory_limit_in_bytes=-1, cpu_quota=-1))
    assert v2.file(container, "memory.swap.max") == "max"
    assert v2.file(container, "cpu.max") == "max 100000"
    assert (actual(rt, container).memory_limit_in_bytes, actual(rt, container).cpu_quota) == (0, -1)


def test_the_swap_limit_can_be_lifted_alone(rt: Runtime, v1: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container)
    update(rt, container, Resources(memory_limit_in_bytes=64 * MIB))
    update(rt, container, Resources(memory_swap_limit_in_bytes=-1))
    assert v1.file(container, "memory.limit_in_bytes") == str(64 * MIB)
    assert v1.file(container, "memory.memsw.limit_in_bytes") == "-1"


def test_a_memory_file_below_the_usage_is_refused(rt: Runtime, engine: RuncEngine, v2: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v2.of(container, memory__current="9000000")
    for limit in (0, 64 * MIB):
        with pytest.raises(
            FailedPrecondition, match=r"linux\.unified\['memory\.max'\] 4194304 is less than the 8000000"
        ):
            update(rt, container, Resources(memory_limit_in_bytes=limit, unified={"memory.max": "4M"}))
    assert ("update_container", container) not in engine.calls
    assert v2.file(container, "memory.max") == "max"
    for text in ("16M", "max"):
        update(rt, container, Resources(unified={"memory.max": text}))
        assert v2.file(container, "memory.max") == text


def test_a_memory_limit_below_the_usage_is_refused(rt: Runtime, engine: RuncEngine, v1: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container)
    with pytest.raises(
        FailedPrecondition,
        match=rf"linux\.memory_limit_in_bytes 7000000 is less than the 8000000 bytes container {container} uses now"
        r" \(9000000 with page cache\)",
    ):
        update(rt, container, Resources(cpu_shares=512, memory_limit_in_bytes=7_000_000))
    assert ("update_container", container) not in engine.calls
    update(rt, container, Resources(memory_limit_in_bytes=8_500_000))


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        (
            Resources(memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=MIB),
            r"swap_limit_in_bytes 1048576 is l",
        ),
        (Resources(memory_swap_limit_in_bytes=64 * MIB), r"swap_limit_in_bytes 67108864 needs a memory_limit"),
        (Resources(memory_limit_in_bytes=-1, memory_swap_limit_in_bytes=MIB), r"swap_limit_in_bytes 1048576 needs"),
    ],
    ids=["less than memory", "without memory", "with memory unlimited"],
)
def test_a_swap_limit_below_the_memory_limit_is_refused(
    rt: Runtime, engine: RuncEngine, resources: Resources, named: str
) -> None:
    container = created(rt, ready_pod(rt))
    with pytest.raises(InvalidArgument, match=rf"linux\.memory_{named}"):
        update(rt, container, resources)
    assert ("update_container", container) not in engine.calls


def test_a_missing_cgroup_file_fails_before_docker_is_called(rt: Runtime, engine: RuncEngine, v2: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v2.of(container)
    with pytest.raises(FailedPrecondition, match=r"linux\.unified\['memory\.hihg'\]: this node has no memory\.hihg"):
        update(rt, container, Resources(cpu_quota=50_000, unified={"memory.hihg": "1"}))
    assert ("update_container", container) not in engine.calls
    assert rt.limits.get(container) is None


@pytest.fixture
def kernel_refuses_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(descriptor: int, content: bytes) -> int:
        if content == b"garbage":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", write)


@pytest.mark.usefixtures("kernel_refuses_garbage")
def test_a_failed_write_after_dockers_update_is_rolled_back(rt: Runtime, v2: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v2.of(container)
    update(rt, container, Resources(cpu_quota=50_000, memory_limit_in_bytes=64 * MIB, unified={"memory.high": "4096"}))
    before, kept = actual(rt, container), rt.limits.get(container)
    with pytest.raises(InvalidArgument, match=r"linux\.unified\['memory\.oom\.group'\]: write 'garbage'"):
        update(
            rt,
            container,
            Resources(
                cpu_quota=20_000,
                cpu_shares=512,
                memory_limit_in_bytes=32 * MIB,
                unified={"memory.high": "8192", "memory.oom.group": "garbage"},
            ),
        )
    assert actual(rt, container) == before
    assert v2.file(container, "cpu.max") == "50000 100000"
    assert v2.file(container, "memory.high") == "4096"
    assert (rt.limits.get(container), LimitStore(rt.config.root_directory / "limits").get(container)) == (kept, kept)
    host = rt.view.container(container).host
    assert (host.cpu_quota, host.memory, host.memory_and_swap) == (50_000, 64 * MIB, 64 * MIB)


def test_dockers_fields_are_restored_after_a_lost_answer(rt: Runtime, engine: RuncEngine, v1: Groups) -> None:
    """A limit without a former value gets the kernel's: Docker cannot remove a limit."""
    container = running(rt, ready_pod(rt))
    v1.of(container)
    engine.loses_answers = True
    with pytest.raises(Unavailable, match="was lost"):
        update(
            rt, container, Resources(cpu_quota=20_000, cpu_shares=512, cpuset_cpus="0", memory_limit_in_bytes=64 * MIB)
        )
    host = engine.containers[container].host
    assert (host["CpuQuota"], host["CpuShares"], host["CpusetCpus"]) == (-1, 1024, "0-1")
    assert v1.file(container, "memory.limit_in_bytes") == "9223372036854771712"
    assert actual(rt, container).memory_limit_in_bytes == 0


def test_files_written_by_a_failed_runtime_are_restored(
    rt: Runtime, engine: RuncEngine, v1: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container)
    run_as(rt, engine, container, pid=os.getpid())
    monkeypatch.setattr("shim.container.cgroup.EXIT_SECONDS", 0.0)
    engine.runtime_fails = "runc did not terminate successfully"
    with pytest.raises(ShimError, match="did not terminate"):
        update(rt, container, Resources(cpu_shares=512, memory_limit_in_bytes=64 * MIB))
    assert v1.file(container, "cpu.shares") == "1024"
    assert engine.calls.count(("update_container", container)) == 1


def test_an_undo_that_fails_is_reported_and_the_rest_is_undone(rt: Runtime, engine: RuncEngine, v1: Groups) -> None:
    container = running(rt, ready_pod(rt))
    v1.of(container)
    engine.loses_answers, engine.then = True, "docker hangs"
    failure = failure_of(rt, container, LIMITS)
    assert isinstance(failure, Unavailable)
    assert failure.__notes__ == ["undo of the update failed: docker hangs"]
    assert v1.file(container, "cpu.shares") == "1024"


def failure_of(rt: Runtime, container: ContainerId, resources: Resources) -> ShimError:
    with pytest.raises(ShimError) as failure:
        update(rt, container, resources)
    return failure.value


def restarted(rt: Runtime) -> Runtime:
    """The limits that another server reads."""
    return replace(rt, limits=LimitStore(rt.config.root_directory / "limits"))


def test_a_created_container_gets_its_limits_when_it_starts_also_from_another_server(rt: Runtime, v2: Groups) -> None:
    container = created(rt, ready_pod(rt))
    update(rt, container, Resources(memory_limit_in_bytes=4 * MIB, unified={"memory.high": "4096"}))
    assert actual(rt, container).memory_limit_in_bytes == 4 * MIB
    v2.of(container)
    start_container(restarted(rt), container_id=container)
    assert (v2.file(container, "memory.max"), v2.file(container, "memory.high")) == (str(4 * MIB), "4096")


@pytest.mark.usefixtures("v2")
def test_limits_whose_file_is_damaged_keep_a_container_from_starting(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))
    update(rt, container, Resources(unified={"memory.high": "4096"}))
    (file,) = (rt.config.root_directory / "limits").iterdir()
    file.write_bytes(file.read_bytes().replace(b"4096", b"9096"))
    after = restarted(rt)
    with pytest.raises(FailedPrecondition, match="are lost"):
        start_container(after, container_id=container)
    assert isinstance(failure_of(after, container, LIMITS), FailedPrecondition)
    remove_container(after, container_id=container)
    assert not file.exists()


def test_only_limits_that_docker_cannot_store_are_stored(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))
    update(rt, container, LIMITS)
    assert rt.limits.get(container) is None
    update(rt, container, Resources(memory_limit_in_bytes=MIB))
    assert rt.limits.get(container) == Resources(memory_limit_in_bytes=MIB, memory_swap_limit_in_bytes=MIB)
    update(rt, container, Resources(memory_limit_in_bytes=64 * MIB))
    assert rt.limits.get(container) == Resources()


def test_updates_of_a_container_are_serialised(rt: Runtime, engine: RuncEngine) -> None:
    container = created(rt, ready_pod(rt))
    with engine.held("update_container", container) as gate:
        threads = [
            threading.Thread(target=update, args=(rt, container, Resources(cpu_shares=shares))) for shares in (512, 256)
        ]
        threads[0].start()
        gate.wait_entered()
        threads[1].start()
        other = created(rt, ready_pod(rt, "other"))
        update(rt, other, Resources(cpu_quota=20_000))
        assert engine.calls.count(("update_container", container)) == 1
    for thread in threads:
        thread.join()
    assert actual(rt, container).cpu_shares == 256


@pytest.mark.parametrize(
    "words",
    [
        "Cannot update container: runc did not terminate successfully: exit status 1: container not running",
        "Cannot update container: cannot update a stopped container",
    ],
)
def test_a_container_that_ends_meanwhile_is_a_failed_precondition(
    rt: Runtime, engine: RuncEngine, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = running(rt, ready_pod(rt))
    with subprocess.Popen(["sleep", "600"]) as first:
        monkeypatch.setattr("shim.container.cgroup.EXIT_SECONDS", 0.0)
        run_as(rt, engine, container, pid=first.pid)
        engine.fail_next("update_container", ShimError(words))
        goes_on = failure_of(rt, container, LIMITS)

        engine.fail_next("update_container", ShimError(words))
        first.kill()  # Docker learns of the end later
        first.wait()
        ended = failure_of(rt, container, LIMITS)
    assert (type(goes_on), str(goes_on)) == (ShimError, words)
    assert isinstance(ended, FailedPrecondition)
    assert str(ended) == f"container {container} has ended; its resources cannot be changed"


def run_as(rt: Runtime, engine: RuncEngine, container: ContainerId, *, pid: int) -> None:
    """Make a real process the first process of a container."""
    engine.containers[container].pid = pid
    rt.view.refresh_container(container)
