import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.base import deadline
from shim.domain.errors import Cancelled, FailedPrecondition
from shim.nri.connection import MAX_WAITING, Connection, Disconnected, NoAnswer, PluginFailed, UnknownMethod
from tests.nri.plugin import TO_PLUGIN, TO_RUNTIME, Refused, TestPlugin
from tests.waits import wait_until

LONG = 20.0


class Ends:
    """Both ends of a connection."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.release = threading.Event()
        self.served: list[str] = []
        self.reasons: list[str] = []
        self.connection = Connection(
            ours, serve=self._serve, send_seconds=0.3, on_end=lambda _, why: self.reasons.append(why)
        )
        self.connection.start()

    def plugin(self) -> TestPlugin:
        return TestPlugin(self.theirs)

    def _serve(self, method: str, payload: bytes) -> bytes:
        self.served.append(method)
        match method:
            case "Wait":
                assert self.release.wait(LONG)
                return b""
            case "Echo":
                return payload
            case "Fail":
                raise FailedPrecondition("not now")
            case _:
                raise UnknownMethod


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.release.set()
    made.connection.close("the test ends")
    made.theirs.close()


def call(ends: Ends, *, seconds: float = LONG) -> nri.ConfigureResponse:
    return ends.connection.call("Configure", nri.ConfigureRequest(config="x"), nri.ConfigureResponse, seconds=seconds)


def test_a_call_is_answered(ends: Ends) -> None:
    plugin = ends.plugin()
    plugin.handlers["Configure"] = lambda request: nri.ConfigureResponse(events=len(request.config))

    assert call(ends).events == 1


def test_concurrent_calls_get_their_own_replies(ends: Ends) -> None:
    plugin = ends.plugin()
    both = threading.Barrier(2, timeout=LONG)

    def configure(request: nri.ConfigureRequest) -> nri.ConfigureResponse:
        both.wait()
        return nri.ConfigureResponse(events=int(request.config))

    plugin.handlers["Configure"] = configure
    found = dict[int, int]()

    def ask(number: int) -> None:
        request = nri.ConfigureRequest(config=str(number))
        found[number] = ends.connection.call("Configure", request, nri.ConfigureResponse, seconds=LONG).events

    threads = [threading.Thread(target=ask, args=(number,)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {3: 3, 4: 4}


def test_an_error_of_the_plugin_is_raised_with_its_code(ends: Ends) -> None:
    def refuse(_: object) -> None:
        raise Refused("never " * 1000, code=7)

    ends.plugin().handlers["Configure"] = refuse
    with pytest.raises(PluginFailed, match=r"^never ") as raised:
        call(ends)
    assert raised.value.code == 7
    assert len(str(raised.value)) <= 1024


def test_a_call_without_a_reply_fails_after_its_timeout(ends: Ends) -> None:
    ends.plugin().handlers["Configure"] = lambda _: ends.release.wait(LONG)
    with pytest.raises(NoAnswer, match=r"Configure: no answer within 0\.1 s"):
        call(ends, seconds=0.1)


def test_a_cancelled_call_ends(ends: Ends) -> None:
    ends.plugin().handlers["Configure"] = lambda _: ends.release.wait(LONG)
    with deadline.entered(deadline.Scope()) as scope:
        threading.Timer(0.05, scope.cancel).start()
        with pytest.raises(Cancelled):
            call(ends)
    assert not ends.connection.ended


def test_the_end_of_the_connection_ends_a_call(ends: Ends) -> None:
    plugin = ends.plugin()
    plugin.handlers["Configure"] = lambda _: plugin.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Disconnected, match="Configure: the plugin has closed its connection"):
        call(ends)
    assert ends.reasons == ["the plugin has closed its connection"]


def test_a_malformed_reply_ends_the_connection(ends: Ends) -> None:
    def answer() -> None:
        ends.theirs.recv(1 << 16)
        plain = b"\x12\x02\xff\xff"  # the payload is not a message
        ends.theirs.sendall(struct.pack(">IIIIBB", TO_PLUGIN, 10 + len(plain), len(plain), 1, 2, 0) + plain)

    threading.Thread(target=answer).start()
    with pytest.raises(Disconnected, match="is not a valid ConfigureResponse"):
        call(ends)
    assert ends.connection.ended


def test_unexpected_replies_are_dropped(ends: Ends) -> None:
    plugin = ends.plugin()
    for stream in (2, 99, 1001):
        plugin.send(TO_PLUGIN, 2, b"", stream=stream)
    plugin.handlers["Configure"] = lambda _: nri.ConfigureResponse(events=5)
    assert call(ends).events == 5


def test_calls_of_the_plugin_are_served_during_a_call_to_it(ends: Ends) -> None:
    plugin = ends.plugin()

    def configure(_: object) -> nri.ConfigureResponse:
        plugin.call("Echo", nri.Empty())
        return nri.ConfigureResponse(events=1)

    plugin.handlers["Configure"] = configure
    assert call(ends).events == 1
    assert ends.served == ["Echo"]


@pytest.mark.parametrize(("method", "code"), [("Fail", 2), ("Unknown", 12)])
def test_an_error_of_the_server_is_sent_to_the_plugin(ends: Ends, method: str, code: int) -> None:
    with pytest.raises(Refused) as raised:
        ends.plugin().call(method, nri.Empty())
    assert raised.value.code == code


def test_calls_of_another_service_are_not_served(ends: Ends) -> None:
    with pytest.raises(Refused) as raised:
        ends.plugin().call("Echo", nri.Empty(), service="somebody.Else")
    assert raised.value.code == 12


def test_calls_of_a_plugin_beyond_the_queue_are_refused(ends: Ends) -> None:
    plugin = ends.plugin()
    request = b"\n\x1cnri.pkg.api.v1alpha1.Runtime\x12\x04Wait"
    plugin.send(TO_RUNTIME, 1, request, stream=1)
    wait_until(lambda: ends.served == ["Wait"])
    for number in range(MAX_WAITING):
        plugin.send(TO_RUNTIME, 1, request, stream=3 + 2 * number)
    with pytest.raises(Refused, match=f"{MAX_WAITING} calls of the plugin are waiting") as raised:
        plugin.call("Echo", nri.Empty())
    assert raised.value.code == 8

    ends.release.set()
    wait_until(lambda: len(ends.served) == MAX_WAITING + 1)


def test_a_plugin_that_reads_nothing_fails_a_call(ends: Ends) -> None:
    request = nri.ConfigureRequest(config="x" * (3 << 20))
    with pytest.raises(NoAnswer, match="reads no more bytes"):
        ends.connection.call("Configure", request, nri.ConfigureResponse, seconds=0.2)


def test_a_plugin_that_sends_calls_and_reads_nothing_loses_its_connection(ends: Ends) -> None:
    request = b"\n\x1cnri.pkg.api.v1alpha1.Runtime\x12\x04Echo\x1a\x80\x80\x04" + b"x" * (1 << 16)
    message = struct.pack(">IIBB", len(request), 1, 1, 0) + request
    frame = struct.pack(">II", TO_RUNTIME, len(message)) + message
    with suppress(OSError):
        for _ in range(10_000):
            ends.theirs.sendall(frame)
    assert ends.reasons == ["the plugin reads no more bytes"]


def test_a_request_that_is_too_long_is_not_sent(ends: Ends) -> None:
    request = nri.ConfigureRequest(config="x" * (5 << 20))
    with pytest.raises(PluginFailed, match="at most"):
        ends.connection.call("Configure", request, nri.ConfigureResponse, seconds=LONG)
    assert not ends.connection.ended
