"""Orders: the runtime reads the server's orders, and refuses all others."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.oci_runtime.order import FILE_LIMIT, Order, OrderError, UserNamespace, decode, encode, read

CONTAINER = "c" * 64
ORDER = Order(
    CONTAINER,
    UserNamespace(uid=65536, uids=65536, gid=131072, gids=65536, pause="p" * 64),
    "/var/lib/docker",
    ("/data",),
)


def test_order_survives_a_round_trip() -> None:
    assert decode(encode(ORDER), container=CONTAINER) == ORDER


def test_first_line_has_the_form_that_the_shell_script_reads() -> None:
    assert encode(ORDER).split(b" ")[:5] == [b"1", b"65536", b"131072", b"1", b"0"]
    assert encode(Order(CONTAINER)).split(b" ")[:5] == [b"1", b"0", b"0", b"0", b"0"]
    adjusted = Order(CONTAINER, adjustment={"args": ["x"]}, process={"rlimits": []})
    assert encode(adjusted).split(b" ")[:5] == [b"1", b"0", b"0", b"1", b"1"]


def test_plugin_changes_survive_a_round_trip() -> None:
    order = Order(
        CONTAINER, adjustment={"env": {"set": [["A", "\u00e9"]], "remove": []}}, process={"env": {"A": [None, "b"]}}
    )
    assert decode(encode(order), container=CONTAINER) == order


@given(place=st.integers(min_value=0), byte=st.integers(min_value=0, max_value=255))
def test_single_changed_byte_is_noticed(place: int, byte: int) -> None:
    content = bytearray(encode(ORDER))
    place %= len(content)
    if content[place] == byte:
        return
    content[place] = byte
    with pytest.raises(OrderError):
        decode(bytes(content), container=CONTAINER)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not begin with the line of an order"),
        (encode(ORDER)[:-1], "its checksum does not match"),
        (encode(ORDER).replace(b"1 ", b"2 ", 1), "it has version 2, and this program reads version 1"),
        (encode(Order(**vars(ORDER) | {"container": "d"})), "it is of container 'd'"),
    ],
)
def test_invalid_order_gives_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(OrderError, match=reason):
        decode(content, container=CONTAINER)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    path = tmp_path / CONTAINER
    path.write_bytes(encode(ORDER))
    path.chmod(0o600)
    return tmp_path


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of root")
def test_private_file_of_root_is_read(directory: Path) -> None:
    assert read(str(directory), CONTAINER) == ORDER


@pytest.mark.parametrize("name", ["../x", "", "A", "c/d"])
def test_invalid_container_id_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(OrderError, match="is not a container id"):
        read(str(directory), name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of root")
def test_file_that_others_can_reach_is_refused(directory: Path) -> None:
    path = directory / CONTAINER
    path.chmod(0o640)
    with pytest.raises(OrderError, match="must belong to root"):
        read(str(directory), CONTAINER)
    path.chmod(0o600)
    os.chown(path, 1000, 0)
    with pytest.raises(OrderError, match="must belong to root"):
        read(str(directory), CONTAINER)
    os.chown(path, 0, 0)
    directory.chmod(0o711)
    with pytest.raises(OrderError, match="must belong to root"):
        read(str(directory), CONTAINER)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of root")
def test_order_that_is_too_large_is_refused(directory: Path) -> None:
    many = Order(**vars(ORDER) | {"mapped": tuple(f"/{number}" for number in range(FILE_LIMIT // 8))})
    (directory / CONTAINER).write_bytes(encode(many))
    with pytest.raises(OrderError, match=f"has more than {FILE_LIMIT} bytes"):
        read(str(directory), CONTAINER)


def test_link_is_not_followed(directory: Path) -> None:
    (directory / CONTAINER).rename(directory / "elsewhere")
    (directory / CONTAINER).symlink_to("elsewhere")
    with pytest.raises(OrderError, match=CONTAINER):
        read(str(directory), CONTAINER)


def test_missing_order_is_reported(directory: Path) -> None:
    with pytest.raises(OrderError, match=f"has no order {directory}/d"):
        read(str(directory), "d")
