"""Bounds on Docker's answers, for bytes and through the adapter."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.domain.errors import ResourceExhausted, ShimError
from shim.engine import bounds
from shim.engine.answers import ContainerInspect
from shim.engine.bounds import Rows, RowTrimmer, TooLarge, Whole
from shim.engine.client import DockerEngine
from tests.fakes.http_unix import HANG, ScriptedServer, chunk, chunked, response

MIB = 1 << 20
INSPECT = "GET /v1.51/containers/c/json"
LIST = "GET /v1.51/containers/json"
EVENTS = "GET /v1.51/events"


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """Return the peak of allocated bytes since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def trimmed(text: bytes, *, cuts: int = 64) -> bytes:
    trimmer = RowTrimmer()
    for at in range(0, len(text), cuts):
        trimmer.feed(text[at : at + cuts])
    return trimmer.trimmed()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), max_size=5)


@given(ROWS, st.integers(1, 30), st.booleans())
def test_rows_within_the_bounds_are_not_changed(rows: list[object], cuts: int, compact: bool) -> None:
    text = json.dumps(rows, ensure_ascii=compact, indent=None if compact else 1).encode()

    assert trimmed(text, cuts=cuts) == text


@given(ROWS, st.integers(1, 30), st.integers(0, 12))
def test_a_trimmed_list_is_json_of_the_same_rows(rows: list[dict[str, object]], cuts: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "ROW_VALUE", most)
        patch.setattr(bounds, "ROW_STRINGS", most)
        found = json.loads(trimmed(json.dumps(rows).encode(), cuts=cuts))

    assert len(found) == len(rows)
    for row, left in zip(rows, found, strict=True):
        kept = {key: value for key, value in row.items() if len(json.dumps(key)) - 2 <= most}
        assert left.keys() - {""} == kept.keys() - {""}
        for key in kept.keys() - {""}:
            assert left[key] in (kept[key], [], {}, "")


def test_a_long_list_has_smaller_row_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LIST", 40_000)
    monkeypatch.setattr(bounds, "ROW_VALUE", 5000)
    rows = [{"Id": str(number), "Labels": {"a": "x" * 4900}} for number in range(20)]

    found = json.loads(trimmed(json.dumps(rows).encode()))

    assert [row["Id"] for row in found] == [row["Id"] for row in rows]
    assert [bool(row["Labels"]) for row in found] == [True] * 5 + [False] * 15


def test_a_list_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LIST", 1000)
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        trimmed(json.dumps([{"Id": str(number)} for number in range(100)]).encode())


def test_a_body_of_many_values_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ITEMS", 10)
    body = Whole(1000)
    body.take(b"[" + b"[]," * 12)
    with pytest.raises(TooLarge, match="more than 10 values"):
        body.content()


def test_rows_with_too_many_strings_lose_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ROW_STRINGS", 20)
    rows = [{"Id": "a", "Labels": {str(number): "" for number in range(60)}}, {"Id": "b", "Labels": {"k": "v"}}]
    few, many = Rows(), Rows()
    few.take(json.dumps(rows).encode())
    assert json.loads(few.content()) == rows
    monkeypatch.setattr(bounds, "ITEMS", 10)
    many.take(json.dumps(rows).encode())
    assert json.loads(many.content()) == [{"Id": "a", "Labels": {}}, {"Id": "b", "Labels": {"k": "v"}}]


# Through the adapter


def test_an_oversized_inspect_is_an_error_of_that_container(
    adapter: DockerEngine, server: ScriptedServer, peak: Callable[[], int]
) -> None:
    piece = chunk(b"x" * MIB)
    server.on(INSPECT, chunked(), chunk(b'{"Id":"c","Name":"'), *[piece] * 100)
    server.on("GET /v1.51/containers/d/json", response(200, {"Id": "d"}))

    with pytest.raises(ResourceExhausted, match="inspect container c: Docker's answer has more than 8388608 bytes"):
        adapter.inspect_container("c")

    assert peak() < 4 * bounds.INSPECT
    assert adapter.inspect_container("d") == ContainerInspect(id="d")
    assert [request.connection for request in server.requests if "json" in request.line] == [1, 2]


@pytest.mark.parametrize(
    ("path", "most", "ask"),
    [
        pytest.param("images/i/json", 2 * MIB, lambda adapter: adapter.inspect_image("i"), id="image"),
        pytest.param("info", 4 * MIB, lambda adapter: adapter.info(), id="info"),
        pytest.param("containers/c/exec", MIB, lambda adapter: adapter.create_exec("c", body={}), id="any other"),
    ],
)
def test_the_bytes_of_each_kind_of_answer_are_bounded(
    adapter: DockerEngine, server: ScriptedServer, path: str, most: int, ask: Callable[[DockerEngine], object]
) -> None:
    begin = b'{"Id":"i","ID":"i","Name":"'
    verb = "POST" if path.endswith("exec") else "GET"
    server.on(f"{verb} /v1.51/{path}", chunked(), *[chunk(begin), chunk(b"x" * (most - len(begin) + 1)), chunk(b"")])

    with pytest.raises(ResourceExhausted, match=f"Docker's answer has more than {most} bytes"):
        ask(adapter)


def test_an_inspect_of_many_labels_is_not_decoded(adapter: DockerEngine, server: ScriptedServer) -> None:
    labels = {f"{number:x}": "" for number in range(bounds.ITEMS)}
    server.on(INSPECT, response(200, {"Id": "c", "Config": {"Labels": labels}}))

    with pytest.raises(ResourceExhausted, match=f"more than {bounds.ITEMS} values"):
        adapter.inspect_container("c")


def test_an_oversized_container_does_not_hide_others_in_the_list(
    adapter: DockerEngine, server: ScriptedServer, peak: Callable[[], int]
) -> None:
    label = chunk(b"x" * MIB)
    server.on(
        LIST,
        chunked(),
        chunk(b'[{"Id":"a","Labels":{"k":"v"},"State":"running"},{"Id":"b","Names":["/n"],"Labels":{"big":"'),
        *[label] * 100,
        chunk(b'"},"State":"exited"},{"Id":"c","Labels":{"k":"w"},"State":"created"}]'),
        chunk(b""),
    )

    found = adapter.list_containers()

    assert peak() < 4 * bounds.LIST_AT_ONCE
    assert [(one.id, one.state, one.labels) for one in found] == [
        ("a", "running", {"k": "v"}),
        ("b", "exited", {}),
        ("c", "created", {"k": "w"}),
    ]


def test_a_thousand_containers_with_annotations_are_listed_untrimmed(
    adapter: DockerEngine, server: ScriptedServer
) -> None:
    rows = [{"Id": str(number), "Labels": {"annotation": "x" * 20_000}} for number in range(1000)]
    server.on(LIST, response(200, rows))

    found = adapter.list_containers()

    assert [(one.id, len((one.labels or {})["annotation"])) for one in found] == [
        (str(number), 20_000) for number in range(1000)
    ]


def test_an_oversized_error_is_cut(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(INSPECT, chunked(500), *[chunk(b"no " * 100_000)] * 10)

    with pytest.raises(ShimError, match="inspect container c: no no") as failed:
        adapter.inspect_container("c")

    assert len(str(failed.value)) < 5000


def test_a_deeply_nested_answer_is_an_error(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(INSPECT, response(200, b'{"Id":"c","X":' + b"[" * 100_000))

    with pytest.raises(ShimError, match="Docker's answer cannot be read"):
        adapter.inspect_container("c")


def test_an_event_of_a_container_with_oversized_labels_is_not_lost(
    adapter: DockerEngine, server: ScriptedServer, peak: Callable[[], int]
) -> None:
    begin = b'{"status":"die","id":"c0","from":"i","Type":"container","Action":"die","Actor":{"ID":"c0","Attributes":'
    server.on(
        EVENTS,
        chunked(),
        chunk(begin + b'{"big":"'),
        *[chunk(b"x" * MIB)] * 50,
        chunk(b'"}},"timeNano":5}\n{"Type":"container","Action":"start","Actor":{"ID":"c1"},"timeNano":6}\n'),
        chunk(b"y" * 2 * MIB + b"\n"),
        chunk(b'{"Type":"image","Action":"pull"}\n'),
        HANG,
    )

    with adapter.events(since=None) as events:
        found = list(islice(events, 3))

    assert peak() < 8 * MIB
    assert [(event.type, event.action, event.actor.id, event.time_nano) for event in found] == [
        ("container", "die", "c0", 0),
        ("container", "start", "c1", 6),
        ("image", "pull", "", 0),
    ]


def test_an_oversized_pull_message_is_an_error(adapter: DockerEngine, server: ScriptedServer) -> None:
    too_large = chunk(b'{"error":"' + b"x" * 2 * MIB + b'"}\r\n')
    server.on("POST /v1.51/images/create", chunked(), too_large, chunk(b""))

    with pytest.raises(ResourceExhausted, match="pull image a:1: a message of Docker's has more than 1048576 bytes"):
        adapter.pull_image("a:1", auth=None, progress=lambda _: None)
