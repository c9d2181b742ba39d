import socket

import pytest

from shim.domain.errors import FailedPrecondition, ShimError
from shim.runtime import Runtime
from shim.sandbox.portforward import dial
from shim.sandbox.stop import stop_pod_sandbox
from tests.pods import ready_pod


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
def test_a_host_network_pod_is_dialled_on_both_loopbacks(
    rt: Runtime, family: socket.AddressFamily, address: str
) -> None:
    sandbox = ready_pod(rt)
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        with dial(rt, sandbox_id=sandbox, port=port) as connected:
            assert connected.getpeername()[:2] == (address, port)


def test_the_error_of_a_closed_port_has_both_addresses(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        with pytest.raises(ShimError, match=rf"port {port} .*127\.0\.0\.1: connection refused, ::1: "):
            dial(rt, sandbox_id=sandbox, port=port)


def test_a_pod_that_is_not_ready_is_not_dialled(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    stop_pod_sandbox(rt, sandbox_id=sandbox)

    with pytest.raises(FailedPrecondition, match="not ready"):
        dial(rt, sandbox_id=sandbox, port=80)
