import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument, Unsupported
from shim.spec.capabilities import docker_capabilities


def docker(add: list[str], drop: list[str], *, api: tuple[int, int] = (1, 44)) -> tuple[list[str], list[str]]:
    wanted = pb.Capability(add_capabilities=add, drop_capabilities=drop)
    return docker_capabilities(wanted, api_version=api, field="f")


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ([], [], ([], [])),
        (["NET_ADMIN"], ["ALL"], (["NET_ADMIN"], ["ALL"])),
        (["cap_net_admin"], ["Net_Raw"], (["NET_ADMIN"], ["NET_RAW"])),
        (["all"], ["NET_RAW"], (["ALL"], ["NET_RAW"])),
        # In Docker, the addition would win.
        (["NET_RAW", "KILL"], ["CAP_NET_RAW"], (["KILL"], ["NET_RAW"])),
        (["ALL", "KILL"], ["ALL"], (["KILL"], ["ALL"])),
    ],
    ids=["none", "all but", "spelled", "all", "drop wins", "drop all wins"],
)
def test_capabilities_are_converted_for_docker(
    add: list[str], drop: list[str], expected: tuple[list[str], list[str]]
) -> None:
    assert docker(add, drop) == expected


@pytest.mark.parametrize("name", ["", "NONE_SUCH", "CAP_ALL", " KILL", "CAP_CAP_KILL"])
def test_an_unknown_capability_is_refused_with_its_index(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^f\.add_capabilities\[1\] '.*' is not a capability"):
        docker(["KILL", name], [])
    with pytest.raises(InvalidArgument, match=r"^f\.drop_capabilities\[0\]"):
        docker([], [name])


def test_ambient_capabilities_are_checked_and_left_out() -> None:
    wanted = pb.Capability(add_ambient_capabilities=["KILL"])
    assert docker_capabilities(wanted, api_version=(1, 44), field="f") == ([], [])
    with pytest.raises(InvalidArgument, match=r"f\.add_ambient_capabilities\[0\] 'X'"):
        docker_capabilities(pb.Capability(add_ambient_capabilities=["X"]), api_version=(1, 44), field="f")


def test_an_old_engine_refuses_newer_capabilities() -> None:
    assert docker([], ["BPF", "KILL"], api=(1, 41)) == ([], ["KILL"])
    with pytest.raises(Unsupported, match=r"f\.add_capabilities BPF: needs Docker Engine 23\.0 \(API 1\.42\)"):
        docker(["BPF"], [], api=(1, 41))
    assert docker(["BPF"], [], api=(1, 42)) == (["BPF"], [])
