"""The network of another server, and the order of rounds."""

from pathlib import Path

import msgspec

from integration.bench.rivals import known, own_network
from integration.bench.rounds import rotated
from integration.bench.setup import CONFLIST


def test_another_server_has_the_same_plugins_and_separate_addresses() -> None:
    shared = msgspec.json.decode(CONFLIST.read_bytes())
    first, second = (
        own_network(shared, bridge=f"beside{number}", number=number, leases=Path("/leases")) for number in range(2)
    )

    for own in (first, second):
        assert [plugin["type"] for plugin in own["plugins"]] == [plugin["type"] for plugin in shared["plugins"]]
    for of in (str, lambda network: network["name"], subnet):
        assert len({of(network) for network in (shared, first, second)}) == 3
    assert first["plugins"][0]["ipam"]["dataDir"] == "/leases"
    assert shared == msgspec.json.decode(CONFLIST.read_bytes())


def subnet(network: dict[str, list[dict[str, dict[str, list[list[dict[str, str]]]]]]]) -> str:
    return network["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]


def test_programs_are_known_by_their_names() -> None:
    assert known(Path("/anywhere/containerd"))
    assert known(Path("/anywhere/cri-dockerd"))
    assert not known(Path("/anywhere/crio"))


def test_each_side_is_first_as_often_as_the_others() -> None:
    orders = [rotated(["a", "b", "c"], number) for number in range(6)]

    assert [order[0] for order in orders] == ["a", "b", "c"] * 2
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
