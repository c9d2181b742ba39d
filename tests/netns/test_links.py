"""The loopback interface of a real namespace."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shim.netns.enter import in_netns
from shim.netns.links import ensure_loopback_up


def echo(family: socket.AddressFamily, address: str) -> bytes:
    with socket.socket(family, socket.SOCK_DGRAM) as server, socket.socket(family, socket.SOCK_DGRAM) as client:
        server.settimeout(10)
        server.bind((address, 0))
        client.sendto(b"hello", server.getsockname())
        return server.recv(16)


def test_loopback_is_down_in_a_new_namespace(pinned: Path) -> None:
    with pytest.raises(OSError, match="unreachable"):
        in_netns(pinned, lambda: echo(socket.AF_INET, "127.0.0.1"))


@pytest.mark.parametrize(
    ("family", "address"),
    [pytest.param(socket.AF_INET, "127.0.0.1", id="IPv4"), pytest.param(socket.AF_INET6, "::1", id="IPv6")],
)
def test_loopback_carries_packets_afterwards(pinned: Path, family: socket.AddressFamily, address: str) -> None:
    ensure_loopback_up(pinned)
    ensure_loopback_up(pinned)
    assert in_netns(pinned, lambda: echo(family, address)) == b"hello"


def test_ipv6_that_was_switched_off_works_afterwards(pinned: Path) -> None:
    in_netns(pinned, lambda: Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("1"))

    ensure_loopback_up(pinned)

    assert in_netns(pinned, lambda: echo(socket.AF_INET6, "::1")) == b"hello"


def test_ipv6_that_the_pod_has_switched_off_stays_so(pinned: Path) -> None:
    setting = Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
    in_netns(pinned, lambda: setting.write_text("1"))

    ensure_loopback_up(pinned, with_ipv6=False)

    assert in_netns(pinned, lambda: echo(socket.AF_INET, "127.0.0.1")) == b"hello"
    assert in_netns(pinned, setting.read_text) == "1\n"


BRING_UP = """
import sys
from pathlib import Path
from shim.netns.links import ensure_loopback_up

def refuse(event, arguments):
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
        raise RuntimeError(event)

sys.addaudithook(refuse)
ensure_loopback_up(Path(sys.argv[1]))
print([name for name in sys.modules if name.startswith("pyroute2")])
"""


def bring_up(path: Path, *, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, which must not fork."""
    command = [*under, sys.executable, "-c", BRING_UP, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_forks_nothing_and_loads_no_netlink(pinned: Path) -> None:
    """pyroute2 would take 9.5 MiB of the server's memory."""
    ended = bring_up(pinned)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
    assert in_netns(pinned, lambda: echo(socket.AF_INET, "127.0.0.1")) == b"hello"


def test_a_refusal_of_the_kernel_names_interface_and_namespace(pinned: Path) -> None:
    ended = bring_up(pinned, under=("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"))
    assert ended.returncode == 1
    assert f"shim.domain.errors.ShimError: bring up interface lo in {pinned}: " in ended.stderr
    assert "Operation not permitted" in ended.stderr
