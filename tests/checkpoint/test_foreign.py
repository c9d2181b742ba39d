"""Checkpoints of cri-dockerd, whole and damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shim.checkpoint.foreign import ForeignCheckpoint, ForeignPortMapping, read_cri_dockerd

# As cri-dockerd 0.3 and 0.4 write it: one line, fields of `data` left out when empty.
WHOLE = (
    '{"version":"v1","name":"web-0","namespace":"shop","data":{"port_mappings":['
    '{"protocol":"tcp","container_port":80,"host_port":8080,"host_ip":""},'
    '{"protocol":"udp","container_port":53,"host_port":5353,"host_ip":"192.0.2.1"},'
    '{"protocol":"tcp","container_port":9000,"host_port":0,"host_ip":""}]},"checksum":3712672205}'
)


def read(tmp_path: Path, content: str | bytes) -> ForeignCheckpoint | None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_cri_dockerd(path)


def test_host_ports_are_read_and_the_rest_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == ForeignCheckpoint(
        name="web-0",
        namespace="shop",
        port_mappings=(
            ForeignPortMapping(protocol="tcp", container_port=80, host_port=8080, host_ip=""),
            ForeignPortMapping(protocol="udp", container_port=53, host_port=5353, host_ip="192.0.2.1"),
        ),
        host_network=False,
    )


def test_a_pod_of_the_host_network(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '{"version":"v1","name":"p","namespace":"n","data":{"host_network":true},"checksum":12315789}',
    )
    assert found == ForeignCheckpoint(name="p", namespace="n", port_mappings=(), host_network=True)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"name": None, "namespace": 7, "data": None},
        {"data": []},
        {"data": {"port_mappings": None, "host_network": None}},
        {"data": {"port_mappings": {}, "host_network": "true"}},
        {"data": {"port_mappings": [None, 7, [], {}, {"host_port": 80}, {"host_port": "80", "container_port": 1}]}},
        {"data": {"port_mappings": [{"host_port": 80, "container_port": 80, "protocol": "icmp"}]}},
        {"data": {"port_mappings": [{"host_port": -1, "container_port": 80}]}},
    ],
    ids=str,
)
def test_parts_that_cannot_be_read_count_as_empty(tmp_path: Path, content: dict[str, Any]) -> None:
    assert read(tmp_path, json.dumps(content)) == ForeignCheckpoint(
        name="", namespace="", port_mappings=(), host_network=False
    )


def test_a_broken_mapping_does_not_hide_the_others(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '{"data":{"port_mappings":[null,{"protocol":null,"container_port":80,"host_port":8080,"host_ip":null}]}}',
    )
    assert found is not None
    assert found.port_mappings == (ForeignPortMapping(container_port=80, host_port=8080),)


def test_a_missing_file_is_nothing_to_speak_of(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert read_cri_dockerd(tmp_path / "missing") is None
    assert logs == []


@pytest.mark.parametrize(
    "content",
    [b"", WHOLE.encode()[:-30], b"[]", b"null", b"\xff", b'{"name":"\xff"}', b"[" * 100_000],
    ids=["empty", "truncated", "list", "null", "not text", "not text inside", "too deep"],
)
def test_what_is_no_checkpoint_is_logged_and_ignored(tmp_path: Path, content: bytes) -> None:
    with capture_logs() as logs:
        assert read(tmp_path, content) is None
    assert [(line["log_level"], line["file"]) for line in logs] == [("warning", str(tmp_path / "checkpoint"))]


def test_a_directory_is_ignored(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert read_cri_dockerd(tmp_path) is None
    assert len(logs) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["host_port", "container_port"]) | st.text(), inner)
    ),
    max_leaves=10,
)


@given(data=values, mappings=values)
def test_any_json_is_read(tmp_path_factory: pytest.TempPathFactory, data: object, mappings: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    with capture_logs():
        for content in (data, {"data": data}, {"data": {"port_mappings": mappings}}):
            path.write_text(json.dumps(content))
            found = read_cri_dockerd(path)
            assert found is None or all(mapping.host_port > 0 for mapping in found.port_mappings)
