"""The loopback interface of a real namespace."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shim.netns.enter import in_netns
from shim.netns.links import missing_addresses, prepare_links


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
def test_prepare_links_makes_loopback_carry_packets(pinned: Path, family: socket.AddressFamily, address: str) -> None:
    prepare_links(pinned, disable_ipv6={})
    prepare_links(pinned, disable_ipv6={})
    assert in_netns(pinned, lambda: echo(family, address)) == b"hello"


IPV6 = Path("/proc/sys/net/ipv6/conf")


def disable_ipv6(path: Path, *names: str) -> list[str]:
    return in_netns(path, lambda: [(IPV6 / name / "disable_ipv6").read_text().strip() for name in names])


def disable_as_engine_20_10_does(path: Path) -> None:
    in_netns(path, lambda: (IPV6 / "all/disable_ipv6").write_text("1"))
    assert disable_ipv6(path, "all", "default", "lo") == ["1", "1", "1"]


def test_prepare_links_enables_disabled_ipv6(pinned: Path) -> None:
    disable_as_engine_20_10_does(pinned)

    prepare_links(pinned, disable_ipv6={})

    assert in_netns(pinned, lambda: echo(socket.AF_INET6, "::1")) == b"hello"
    assert disable_ipv6(pinned, "all", "default", "lo") == ["0", "0", "0"]


def test_a_later_interface_has_ipv6(pinned: Path) -> None:
    disable_as_engine_20_10_does(pinned)
    prepare_links(pinned, disable_ipv6={})

    subprocess.run(["nsenter", f"--net={pinned}", "ip", "link", "add", "eth0", "type", "veth"], check=True)

    assert disable_ipv6(pinned, "eth0", "veth0") == ["0", "0"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"all": "1"}, ["1", "1", "1"]),
        ({"default": "1"}, ["0", "1", "0"]),
        ({"lo": "1"}, ["0", "0", "1"]),
        ({"lo": "0", "all": "1"}, ["1", "1", "0"]),
    ],
)
def test_ipv6_stays_disabled_if_the_pod_asks_for_that(pinned: Path, asked: dict[str, str], found: list[str]) -> None:
    prepare_links(pinned, disable_ipv6=asked)

    assert in_netns(pinned, lambda: echo(socket.AF_INET, "127.0.0.1")) == b"hello"
    assert disable_ipv6(pinned, "all", "default", "lo") == found


BRING_UP = """
import sys
from pathlib import Path
from shim.netns.links import missing_addresses, prepare_links

def refuse(event, arguments):
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
        raise RuntimeError(event)

sys.addaudithook(refuse)
prepare_links(Path(sys.argv[1]), disable_ipv6={})
print([name for name in sys.modules if name.startswith("pyroute2")])
"""


def bring_up(path: Path, *, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run BRING_UP in a new process that cannot fork."""
    command = [*under, sys.executable, "-c", BRING_UP, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_prepare_links_neither_forks_nor_imports_pyroute2(pinned: Path) -> None:
    """pyroute2 would take 9.5 MiB of the server's memory."""
    ended = bring_up(pinned)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
    assert in_netns(pinned, lambda: echo(socket.AF_INET, "127.0.0.1")) == b"hello"


def test_an_error_of_the_kernel_names_interface_and_namespace(pinned: Path) -> None:
    ended = bring_up(pinned, under=("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"))
    assert ended.returncode == 1
    assert f"shim.domain.errors.ShimError: bring up interface lo in {pinned}: " in ended.stderr
    assert "Operation not permitted" in ended.stderr


def test_missing_addresses_are_those_that_no_interface_has(pinned: Path) -> None:
    prepare_links(pinned, disable_ipv6={})

    assert missing_addresses(pinned, ["127.0.0.1", "10.1.2.3", "::1", "fd00::1"]) == ["10.1.2.3", "fd00::1"]
