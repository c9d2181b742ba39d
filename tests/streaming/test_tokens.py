import pytest

from shim.domain.errors import ResourceExhausted
from shim.domain.ids import SandboxId
from shim.streaming.tokens import LIFETIME, MAX_OUTSTANDING, MAX_OUTSTANDING_EACH, PortForwardTask, Tokens
from tests.clock import Clock
from tests.streaming.client import task

FORWARD = PortForwardTask(sandbox_id=SandboxId("s"), ports=(80,))


@pytest.fixture
def tokens(clock: Clock) -> Tokens:
    return Tokens(base_url="http://127.0.0.1:4242", clock=clock)


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_url_is_absolute_and_its_token_has_256_bits(tokens: Tokens) -> None:
    url = tokens.url_of(task())

    assert url.startswith("http://127.0.0.1:4242/exec/")
    assert len(token_of(url)) == 43
    assert tokens.url_of(task()) != url


def test_a_token_works_once(tokens: Tokens) -> None:
    token = token_of(tokens.url_of(FORWARD))

    assert tokens.peek("portforward", token) is FORWARD
    assert tokens.take("portforward", token) is FORWARD
    assert tokens.take("portforward", token) is None
    assert tokens.peek("portforward", token) is None


def test_a_token_expires_after_a_minute(tokens: Tokens, clock: Clock) -> None:
    token = token_of(tokens.url_of(FORWARD))
    clock.now += LIFETIME - 1
    assert tokens.peek("portforward", token) is FORWARD
    clock.now += 1

    assert tokens.take("portforward", token) is None


def test_a_token_works_only_for_its_kind(tokens: Tokens) -> None:
    token = token_of(tokens.url_of(task()))

    assert tokens.take("attach", token) is None
    assert tokens.take("exec", token) is not None


@pytest.mark.parametrize("token", ["", "x", "A" * 43])
def test_a_guessed_token_never_works(tokens: Tokens, token: str) -> None:
    tokens.url_of(task())

    assert tokens.take("exec", token) is None


def test_the_tokens_of_one_container_leave_room_for_others(tokens: Tokens) -> None:
    issued = [token_of(tokens.url_of(task())) for _ in range(MAX_OUTSTANDING_EACH)]
    with pytest.raises(ResourceExhausted, match="100 streaming requests for c wait"):
        tokens.url_of(task())
    assert tokens.url_of(task(container_id="other"))
    tokens.take("exec", issued[0])

    assert tokens.url_of(task())


def test_the_size_of_waiting_commands_is_bounded(tokens: Tokens, clock: Clock) -> None:
    long = task(cmd=("x" * 1_000_000,))
    for _ in range(4):
        tokens.url_of(long)
    with pytest.raises(ResourceExhausted, match="more than 16777216 bytes"):
        tokens.url_of(long)
    clock.now += LIFETIME

    assert tokens.url_of(long)


def test_the_number_of_unused_tokens_is_bounded(tokens: Tokens, clock: Clock) -> None:
    issued = [token_of(tokens.url_of(task(container_id=str(number)))) for number in range(MAX_OUTSTANDING)]
    with pytest.raises(ResourceExhausted, match="1000 streaming requests wait"):
        tokens.url_of(task())
    tokens.take("exec", issued[500])
    tokens.url_of(task())
    clock.now += LIFETIME

    assert tokens.url_of(task())
