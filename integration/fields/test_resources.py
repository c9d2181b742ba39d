"""Limits given at create: in the kernel, and in the status."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.fields.limits import (
    CASES,
    MIB,
    REFUSED,
    V2,
    Case,
    huge_page_files,
    kernel,
    limited,
    limited_huge_pages,
    path_of,
    reported,
)
from integration.node.commands import run
from integration.pods.kubelet import Kubelet, Pod, failure, pid_of
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_limit_is_in_the_kernel_and_in_the_status(kubelet: Kubelet, pod: Pod, served: Served, case: Case) -> None:
    container = kubelet.created(pod, linux=limited(**case.asked))
    assert reported(kubelet.cri, container, case.asked) == case.asked

    kubelet.cri.start(container)

    assert case.differing(kernel(served, container, case.files)) == {}
    assert reported(kubelet.cri, container, case.asked) == case.asked


@pytest.mark.parametrize(("asked", "named"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_limit_is_refused_with_the_fields_name(
    kubelet: Kubelet, pod: Pod, served: Served, asked: dict[str, Any], named: str
) -> None:
    before = served.snapshot()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, linux=limited(**asked))

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in message
    assert served.snapshot() == before


def test_an_oom_score_below_this_machines_minimum_is_raised_to_it(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    """The status reports the score in force."""
    container = kubelet.started(pod, linux=limited(oom_score_adj=-997))

    score = int(Path(f"/proc/{pid_of(served, container)}/oom_score_adj").read_text())
    floor = int(Path(f"/proc/{served.engine.daemon.pid}/oom_score_adj").read_text())
    assert score in {-997, floor}
    assert reported(kubelet.cri, container, {"oom_score_adj": 0}) == {"oom_score_adj": score}


def test_the_process_has_exactly_the_requested_oom_score(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=limited(oom_score_adj=500))

    assert Path(f"/proc/{pid_of(served, container)}/oom_score_adj").read_text() == "500\n"
    assert reported(kubelet.cri, container, {"oom_score_adj": 0}) == {"oom_score_adj": 500}


def test_limits_changed_by_others_are_reported(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(
        pod, linux=limited(memory_limit_in_bytes=64 * MIB, cpu_quota=50_000, cpu_period=100_000)
    )

    if V2:
        path_of(served, container, "cpu.max").write_text("20000 100000")
        path_of(served, container, "memory.max").write_text(str(32 * MIB))
    else:
        path_of(served, container, "cpu.cfs_quota_us").write_text("20000")
        path_of(served, container, "memory.limit_in_bytes").write_text(str(32 * MIB))

    actual = {"memory_limit_in_bytes": 32 * MIB, "cpu_quota": 20_000, "cpu_period": 100_000}
    assert reported(kubelet.cri, container, actual) == actual


def test_an_exited_container_reports_the_limits_docker_knows(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, linux=limited(memory_limit_in_bytes=64 * MIB, cpu_shares=512))
    kubelet.cri.stop_container(container)

    assert reported(kubelet.cri, container, {"memory_limit_in_bytes": 0, "cpu_shares": 0}) == {
        "memory_limit_in_bytes": 64 * MIB,
        "cpu_shares": 512,
    }


def test_limits_do_not_fail_a_container_that_exits_at_once(kubelet: Kubelet, pod: Pod) -> None:
    """The server writes them after the start, when the container may have exited."""
    for _ in range(5):
        kubelet.started(pod, "true", linux=limited(memory_limit_in_bytes=4 * MIB))


def test_a_zero_limit_for_every_size_of_huge_pages_is_accepted(kubelet: Kubelet, pod: Pod) -> None:
    """The kubelet sends a 0 for every size, whether the kernel limits huge pages or not."""
    none = [pb.HugepageLimit(page_size=size, limit=0) for size in ("2MB", "1GB")]
    container = kubelet.started(pod, linux=limited(hugepage_limits=none))

    assert list(kubelet.cri.container_status(container).resources.linux.hugepage_limits) == none


def test_a_swap_limit_of_zero_survives_a_reload_of_systemd(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    if served.engine.cgroup_driver != "systemd" or not V2:
        pytest.skip("control groups of version 2 that systemd makes")
    container = kubelet.started(pod, linux=limited(memory_limit_in_bytes=64 * MIB))
    run(["systemctl", "daemon-reload"], timeout=60)
    # systemd writes limits after it answered, in order: once this later limit is there, the reload's are too.
    run(["systemctl", "set-property", "--runtime", f"docker-{container}.scope", "MemoryMax=48M"], timeout=60)
    wait_until(lambda: kernel(served, container, ["memory.max"]) == {"memory.max": str(48 * MIB)})

    assert kernel(served, container, ["memory.swap.max"]) == {"memory.swap.max": "0"}


@pytest.fixture
def huge_pages(served: Served) -> Iterator[None]:
    """Enable limits of huge pages."""
    with limited_huge_pages(served) as there:
        if not there:
            pytest.skip("this kernel does not limit huge pages of 2 MiB")
        yield


@pytest.mark.usefixtures("huge_pages")
@pytest.mark.parametrize("limit", [4 * MIB, 0], ids=["some", "none"])
def test_limits_of_huge_pages_are_in_the_kernel_and_in_the_status(kubelet: Kubelet, served: Served, limit: int) -> None:
    own = kubelet.pod()
    asked = pb.HugepageLimit(page_size="2Mi", limit=limit)
    container = kubelet.started(own, linux=limited(hugepage_limits=[asked]))

    assert {path.read_text().strip() for path in huge_page_files(served, container)} == {str(limit)}
    (reported_limit,) = kubelet.cri.container_status(container).resources.linux.hugepage_limits
    assert reported_limit == pb.HugepageLimit(page_size="2MB", limit=limit)
    kubelet.remove_all()


def test_an_unknown_size_of_huge_pages_is_refused(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, linux=limited(hugepage_limits=[pb.HugepageLimit(page_size="16MB", limit=16 * MIB)]))

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "config.linux.resources.hugepage_limits" in message


@pytest.mark.skipif(not V2, reason="files of cgroup v2")
class TestUnified:
    """Files of cgroup v2 that a container names in `unified`."""

    ASKED = {"memory.oom.group": "1", "memory.high": str(32 * MIB), "memory.swap.max": "4096", "pids.max": "50"}  # noqa: RUF012

    def test_unified_files_are_written_and_reported(self, kubelet: Kubelet, pod: Pod, served: Served) -> None:
        linux = limited(memory_limit_in_bytes=64 * MIB, unified=self.ASKED)
        container = kubelet.started(pod, linux=linux)

        assert kernel(served, container, self.ASKED) == self.ASKED
        assert dict(kubelet.cri.container_status(container).resources.linux.unified) == self.ASKED

    def test_a_unified_file_that_the_kernel_lacks_is_refused_at_create(self, kubelet: Kubelet, pod: Pod) -> None:
        with pytest.raises(grpc.RpcError) as refusal:
            kubelet.created(pod, linux=limited(unified={"memory.no_such": "1"}))

        assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION
        assert "config.linux.resources.unified['memory.no_such']" in failure(refusal)[1]
