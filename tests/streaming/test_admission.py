from shim.domain.ids import SandboxId
from shim.streaming.admission import Admission
from shim.streaming.sessions import PortForwardTask
from tests.streaming.client import task


def test_containers_and_pods_have_limits_of_their_own_and_one_together() -> None:
    admission = Admission(most=3, most_each=2)
    pod = PortForwardTask(sandbox_id=SandboxId("p"), ports=())
    found = [admission.enter(task()), admission.enter(task()), admission.enter(task()), admission.enter(pod)]

    assert [bool(why) for why in found] == [False, False, True, False]
    assert "2 streaming sessions of c are open" in found[2]
    assert "streaming_max_sessions allows" in admission.enter(pod)
    admission.leave(task())
    assert admission.enter(pod) == ""


def test_nothing_is_kept_of_sessions_that_have_ended() -> None:
    admission = Admission(most=3, most_each=2)
    for number in range(100):
        one = task(container_id=str(number))
        assert admission.enter(one) == ""
        admission.leave(one)
    for number in range(100):
        assert admission.enter(task(container_id="full")) == "" or number >= 2

    assert len(admission._open) == 1
