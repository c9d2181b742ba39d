import os
from pathlib import Path

from shim.stats.network import Interface, interfaces_from_net_dev, interfaces_of
from tests.cgroup.pieces import in_pieces
from tests.stats.kernel import NET_DEV


def test_counters_are_read_by_interface() -> None:
    net1, eth0 = interfaces_from_net_dev(NET_DEV)

    assert (net1.name, net1.rx_bytes, net1.tx_bytes) == ("net1", 0, 0)
    assert eth0 == Interface(
        name="eth0",
        rx_bytes=4_294_967_296_001,
        rx_packets=111,
        rx_errors=2,
        rx_dropped=3,
        tx_bytes=222,
        tx_packets=444,
        tx_errors=5,
        tx_dropped=6,
    )


def test_truncated_line_is_omitted() -> None:
    assert interfaces_from_net_dev(NET_DEV[:-40]) == interfaces_from_net_dev(NET_DEV)[:1]
    assert interfaces_from_net_dev(b"") == []


def test_counters_of_a_process_namespace_are_read() -> None:
    found = interfaces_of(os.getpid())

    assert found is not None
    assert "lo" not in [interface.name for interface in found]


def test_more_interfaces_than_fit_into_a_single_read(tmp_path: Path) -> None:
    line = b"  eth%d: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    (tmp_path / "7/net").mkdir(parents=True)
    with in_pieces(tmp_path / "7/net/dev", b"".join(line % number for number in range(5000))):
        found = interfaces_of(7, proc=tmp_path)

    assert found is not None
    assert len(found) == 5000


def test_exited_process_has_no_counters() -> None:
    assert interfaces_of(2**22 + 1) is None
