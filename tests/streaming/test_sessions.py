import pytest

from shim.domain.errors import ResourceExhausted
from shim.domain.ids import SandboxId
from shim.streaming.sessions import LIFETIME, MAX_OUTSTANDING, MAX_OUTSTANDING_EACH, PortForwardTask, Sessions
from tests.clock import Clock
from tests.streaming.client import task

FORWARD = PortForwardTask(sandbox_id=SandboxId("s"), ports=(80,))


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(base_url="http://127.0.0.1:4242", clock=clock)


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_url_is_absolute_and_its_token_has_256_bits(sessions: Sessions) -> None:
    url = sessions.url_of(task())

    assert url.startswith("http://127.0.0.1:4242/exec/")
    assert len(token_of(url)) == 43
    assert sessions.url_of(task()) != url


def test_a_token_works_once(sessions: Sessions) -> None:
    token = token_of(sessions.url_of(FORWARD))

    assert sessions.peek("portforward", token) is FORWARD
    assert sessions.take("portforward", token) is FORWARD
    assert sessions.take("portforward", token) is None
    assert sessions.peek("portforward", token) is None


def test_a_token_works_for_a_minute(sessions: Sessions, clock: Clock) -> None:
    token = token_of(sessions.url_of(FORWARD))
    clock.now += LIFETIME - 1
    assert sessions.peek("portforward", token) is FORWARD
    clock.now += 1

    assert sessions.take("portforward", token) is None


def test_a_token_works_for_its_own_kind(sessions: Sessions) -> None:
    token = token_of(sessions.url_of(task()))

    assert sessions.take("attach", token) is None
    assert sessions.take("exec", token) is not None


@pytest.mark.parametrize("token", ["", "x", "A" * 43])
def test_a_guessed_token_works_never(sessions: Sessions, token: str) -> None:
    sessions.url_of(task())

    assert sessions.take("exec", token) is None


def test_those_of_one_container_leave_room_for_the_others(sessions: Sessions) -> None:
    tokens = [token_of(sessions.url_of(task())) for _ in range(MAX_OUTSTANDING_EACH)]
    with pytest.raises(ResourceExhausted, match="100 streaming requests for c wait"):
        sessions.url_of(task())
    assert sessions.url_of(task(container_id="other"))
    sessions.take("exec", tokens[0])

    assert sessions.url_of(task())


def test_the_commands_that_wait_are_bounded(sessions: Sessions, clock: Clock) -> None:
    long = task(cmd=("x" * 1_000_000,))
    for _ in range(4):
        sessions.url_of(long)
    with pytest.raises(ResourceExhausted, match="more than 16777216 bytes"):
        sessions.url_of(long)
    clock.now += LIFETIME

    assert sessions.url_of(long)


def test_there_are_never_more_than_the_limit(sessions: Sessions, clock: Clock) -> None:
    tokens = [token_of(sessions.url_of(task(container_id=str(number)))) for number in range(MAX_OUTSTANDING)]
    with pytest.raises(ResourceExhausted, match="1000 streaming requests wait"):
        sessions.url_of(task())
    sessions.take("exec", tokens[500])
    sessions.url_of(task())
    clock.now += LIFETIME

    assert sessions.url_of(task())
