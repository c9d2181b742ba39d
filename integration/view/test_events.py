"""After damages of the event stream the view agrees with Docker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import docker
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.conftest import Images
from integration.node.engine import Engine
from integration.pods.kubelet import unused_name
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.domain.errors import NotFound
from shim.domain.names import sandbox_name
from shim.engine.client import DockerEngine
from shim.view import translate
from shim.view.node_view import NodeView
from shim.view.records import Record
from shim.view.watch import Timings, Watcher

FAULTS = ("pass", "drop", "twice", "late", "cut", "half")
OPERATIONS = ("create", "create", "start", "start", "kill", "restart", "rename", "remove", "cut")
TIMINGS = Timings(
    resync=0.3,
    missed_exit=0.2,
    event_delay=0.05,
    retry_delay=0.1,
    min_reconnect_delay=0.02,
    max_reconnect_delay=0.1,
)


class Pods:
    """Pause containers of a Hypothesis example, changed as by other users of Docker."""

    def __init__(self, api: docker.APIClient, image: str) -> None:
        self._api = api
        self._image = image
        self.made: list[str] = []

    def do(self, what: str, choice: int) -> None:
        """Apply an action to a container."""
        if what == "create":
            self.made.append(self._created())
            return
        if not self.made:
            return
        chosen = self.made[choice % len(self.made)]
        match what:
            case "start":
                self._api.start(chosen)
            case "kill" if self._api.inspect_container(chosen)["State"]["Running"]:
                self._api.kill(chosen)
            case "restart":
                self._api.restart(chosen, timeout=0)
            case "rename":
                self._api.rename(chosen, unused_name("renamed"))
            case "remove":
                self.made.remove(chosen)
                self._api.remove_container(chosen, force=True)

    def clear(self) -> None:
        for container in self.made:
            self._api.remove_container(container, force=True)

    def _created(self) -> str:
        metadata = pb.PodSandboxMetadata(name=unused_name("pod"), namespace="view", uid="u")
        tags = labels.sandbox_labels(pb.PodSandboxConfig(metadata=metadata), runtime_handler="")
        made = self._api.create_container(
            self._image,
            ["sleep", "3600"],
            name=sandbox_name(metadata),
            labels=dict(tags),
            network_disabled=True,
            host_config=self._api.create_host_config() | labels.ownership_fields(tags),
        )
        return str(made["Id"])


@contextmanager
def watched(url: str, *, timings: Timings = TIMINGS) -> Iterator[NodeView]:
    engine = DockerEngine(url, request_timeout=30)
    view = NodeView(engine)
    watcher = Watcher(engine, view, timings=timings)
    watcher.start()
    try:
        yield view
    finally:
        watcher.stop()
        engine.close()


@pytest.fixture
def direct(engine: Engine) -> Iterator[DockerEngine]:
    """Connect to Docker without the proxy."""
    made = DockerEngine(engine.url, request_timeout=30)
    yield made
    made.close()


EXAMPLES = settings(
    max_examples=15,
    deadline=None,
    database=None,
    # The fixtures keep no state between examples.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3)), min_size=4, max_size=10),
    faults=st.lists(st.sampled_from(FAULTS), max_size=30),
)
@EXAMPLES
def test_the_view_agrees_with_docker_after_a_damaged_event_stream(
    engine: Engine,
    images: Images,
    proxy: DockerProxy,
    direct: DockerEngine,
    operations: list[tuple[str, int]],
    faults: list[str],
) -> None:
    pods = Pods(engine.api, images.busybox)
    proxy.damage(iter(faults))
    try:
        with watched(proxy.url) as view:
            for what, choice in operations:
                if what == "cut":
                    proxy.cut()
                pods.do(what, choice)
            proxy.damage(iter(()))
            wait_until(lambda: _is_true(view, direct, pods.made))
    finally:
        proxy.damage(iter(()))
        pods.clear()


@given(
    operations=st.lists(
        st.tuples(
            st.sampled_from([each for each in OPERATIONS if each != "cut"]),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=4,
        max_size=10,
    ),
    faults=st.lists(st.sampled_from(["pass", "twice", "late"]), max_size=30),
    settle=st.sampled_from([0.0, TIMINGS.event_delay]),
)
@EXAMPLES
def test_the_view_agrees_with_docker_after_refreshes_between_events(
    engine: Engine,
    images: Images,
    proxy: DockerProxy,
    direct: DockerEngine,
    operations: list[tuple[str, int, bool]],
    faults: list[str],
    settle: float,
) -> None:
    """An event before the last inspect causes none; every later event does."""
    pods = Pods(engine.api, images.busybox)
    proxy.damage(iter(faults))
    try:
        with watched(proxy.url, timings=replace(TIMINGS, resync=1000, event_delay=settle)) as view:
            view.sandboxes()
            for what, choice, refreshes in operations:
                pods.do(what, choice)
                if refreshes and pods.made:
                    view.refresh_container(pods.made[choice % len(pods.made)])
            wait_until(lambda: _is_true(view, direct, pods.made))
    finally:
        proxy.damage(iter(()))
        pods.clear()


def _is_true(view: NodeView, direct: DockerEngine, made: list[str]) -> bool:
    """Return whether the view answers, and agrees with Docker on these containers."""
    if view.stats().outage:
        return False
    seen = {record.id: record for record in view.sandboxes() if record.config.metadata.namespace == "view"}
    return seen.keys() == set(made) and all(_as_inspected(direct, record) == record for record in seen.values())


def _as_inspected(direct: DockerEngine, record: Record) -> Record | None:
    try:
        return translate.record_from_inspect(direct.inspect_container(record.id), previous=record)
    except NotFound:
        return None
