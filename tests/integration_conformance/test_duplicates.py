import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest

from integration.conformance.duplicates import Watch, identity, refused
from integration.node.engine import Engine
from shim.base.times import SECOND

NAME = "k8s_main_pod_ns_uid_0"


class Api:
    """A Docker API where these containers run."""

    def __init__(self, *, running: str = "ab", streams: Iterable[Iterator[dict[str, Any]]] = ()) -> None:
        self._running = running
        self.streams = list(streams)
        self.watch: Watch | None = None

    def inspect_container(self, container: str) -> dict[str, Any]:
        if container[0] == "z":
            raise docker.errors.NotFound("no such container")
        return {"State": {"Running": container[0] in self._running}}

    def events(self, **_: object) -> Iterator[dict[str, Any]]:
        if len(self.streams) == 1 and self.watch is not None:
            self.watch._over.set()
        return self.streams.pop(0)


def _watch(**settings: Any) -> Watch:
    api = Api(**settings)
    api.watch = Watch(cast("Engine", SimpleNamespace(api=api)))
    return api.watch


def _event(action: str, container: str, name: str = NAME) -> dict[str, Any]:
    return {"Action": action, "Actor": {"ID": container * 64, "Attributes": {"name": name}}}


def test_two_live_containers_of_a_name_are_duplicates() -> None:
    watch = _watch()
    watch.take([_event("start", "a"), _event("start", "b", f"{NAME}_1f2e")])
    assert watch.duplicates == [f"{NAME[:-2]}: {'b' * 12} was started while {'a' * 12} ran"]


def test_a_next_attempt_is_a_duplicate_while_the_last_runs() -> None:
    watch = _watch()
    watch.take([_event("start", "a"), _event("start", "b", NAME[:-1] + "1")])
    assert len(watch.duplicates) == 1


@pytest.mark.parametrize("before", ["e", "z"], ids=["ended", "removed"])
def test_a_container_whose_exit_docker_reports_late_is_no_duplicate(before: str) -> None:
    watch = _watch()
    watch.take([_event("start", before), _event("start", "b", NAME[:-1] + "1")])
    assert watch.duplicates == []


def test_consecutive_containers_of_a_name_are_no_duplicates() -> None:
    watch = _watch()
    watch.take([_event("start", "a"), _event("die", "a"), _event("start", "b", NAME[:-1] + "1")])
    assert watch.duplicates == []
    assert watch.starts == 2


def test_a_new_stream_continues_without_repeating_events() -> None:
    """Docker returns events from the start of a second."""
    before, since = (
        {**_event(action, name), "timeNano": time.time_ns() + number}
        for number, (action, name) in enumerate([("start", "a"), ("die", "a")], start=SECOND)
    )
    later = {**_event("start", "b"), "timeNano": since["timeNano"] + 1}
    streams = [iter([before]), iter([before, since, later])]

    watch = _watch(streams=streams)
    watch._follow()
    assert watch.duplicates == []
    assert watch.starts == 2


def test_the_exit_of_an_older_container_does_not_end_the_newer() -> None:
    watch = _watch()
    watch.take([_event("start", "a"), _event("start", "b"), _event("die", "a"), _event("start", "c")])
    assert len(watch.duplicates) == 2


def test_containers_of_others_are_ignored() -> None:
    assert identity("registry") == ""
    assert identity("k8s_short") == ""
    assert identity(f"{NAME}_suffix") == NAME[:-2]


def test_a_kubelets_duplicate_create_is_found_in_its_log() -> None:
    failed = (
        'E1 remote_runtime.go:410] "CreateContainer in sandbox from runtime service failed" err="rpc error: code = '
    )
    twice = failed + 'AlreadyExists desc = create container: attempt 1 of main runs" podSandboxID="b"\n'
    other = failed + 'NotFound desc = no image" podSandboxID="b"\n'
    retold = 'E1 pod_workers.go:1324] "Error syncing pod" err="create container: attempt 1 of main runs"\n'
    assert refused(other + twice + retold) == ["create container: attempt 1 of main runs"]
