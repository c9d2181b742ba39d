import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition, ShimError, Unavailable
from shim.nri import plugin as events
from shim.nri.installed import CONFIG_LIMIT, MAX_INSTALLED, installed_plugins, running_plugins
from shim.nri.listener import Listener, listening_pid
from shim.nri.plugin import MAX_NAME, identity, identity_of_file
from shim.nri.plugins import MAX_PLUGINS, Peer, Plugins, Timeouts
from tests.descriptors import no_descriptor_free
from tests.nri.plugin import Refused, TestPlugin, arriving, connected
from tests.threads import no_thread_for
from tests.waits import wait_until

LONG = 20.0
POD = nri.PodSandbox(id="p")
ASK = nri.RunPodSandboxRequest(pod=POD)


class FakeNode:
    """An in-memory node."""

    def __init__(self) -> None:
        self.pods: list[nri.PodSandbox] = []
        self.containers: list[nri.Container] = []
        self.updates: list[nri.ContainerUpdate] = []
        self.outages = 0

    def snapshot(self, *, first: bool) -> tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]]:
        if self.outages:
            self.outages -= 1
            raise Unavailable("docker is away")
        return self.pods, self.containers

    def update(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        self.updates += updates
        return [update for update in self.updates if update.container_id == "gone"]


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def plugins(node: FakeNode) -> Iterator[Plugins]:
    made = Plugins(Timeouts(registration=LONG, request=LONG))
    made.start(node)
    yield made
    made.stop()


@pytest.fixture
def path(tmp_path: Path, plugins: Plugins) -> Iterator[Path]:
    """A socket on which plugins can connect."""
    path = tmp_path / "nri" / "nri.sock"
    with Listener(path, plugins).serving():
        yield path


def names(plugins: Plugins) -> list[object]:
    return [row["name"] for row in plugins.rows()]


def run_pod(plugins: Plugins) -> list[str]:
    """Send RunPodSandbox; return the plugins that have answered."""
    with plugins.turn():
        return [str(plugin) for plugin, _ in plugins.call(events.RUN_POD_SANDBOX, ASK)]


def test_plugins_are_called_in_the_order_of_their_indexes(plugins: Plugins, path: Path) -> None:
    with connected(path, "20", "late"), connected(path, "05", "early"), connected(path, "20", "later"):
        wait_until(lambda: len(names(plugins)) == 3)
        assert run_pod(plugins) == ["05-early", "20-late", "20-later"]


def test_fifty_plugins_are_called_in_order(plugins: Plugins, path: Path) -> None:
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context(connected(path, f"{number % 10:02}", f"plugin{number}"))
        wait_until(lambda: len(names(plugins)) == 50)
        asked = run_pod(plugins)
    assert len(asked) == 50
    assert [name[:2] for name in asked] == sorted(name[:2] for name in asked)
    wait_until(lambda: not plugins.active)


def test_a_plugin_receives_the_events_it_subscribes_to(plugins: Plugins, path: Path) -> None:
    with (
        connected(path, "10", "run", events=events.RUN_POD_SANDBOX.mask) as run,
        connected(path, "11", "stop", events=events.STOP_POD_SANDBOX.mask) as stop,
        connected(path, "12", "all") as every,
    ):
        wait_until(lambda: len(names(plugins)) == 3)
        run_pod(plugins)
        assert [each.methods() for each in (run, stop, every)] == [["RunPodSandbox"], [], ["RunPodSandbox"]]
        assert plugins.wants(events.CREATE_CONTAINER)
    wait_until(lambda: not names(plugins))
    assert not plugins.wants(events.CREATE_CONTAINER)


def test_configure_has_the_runtimes_name_and_timeouts(plugins: Plugins, path: Path) -> None:
    with connected(path, "10", "a") as plugin:
        request = plugin.wait_heard("Configure")
    assert (request.runtime_name, request.config) == ("pydockershim", "")
    assert (request.registration_timeout, request.request_timeout) == (LONG * 1000, LONG * 1000)


def test_rows_have_calls_and_their_times(plugins: Plugins, path: Path) -> None:
    with connected(path, "10", "a") as plugin:
        wait_until(plugins.rows)
        plugin.handlers["RunPodSandbox"] = lambda _: threading.Event().wait(0.02)
        for _ in range(2):
            run_pod(plugins)
        [row] = plugins.rows()
    assert (row["pid"], row["calls"]) == (os.getpid(), 2)
    assert 20 <= float(str(row["meanMilliseconds"])) <= float(str(row["slowestMilliseconds"]))


def test_an_older_plugin_gets_state_change(plugins: Plugins, path: Path) -> None:
    with connected(path, "10", "old", only={"StateChange"}) as plugin:
        wait_until(lambda: names(plugins))
        assert run_pod(plugins) == ["10-old"]
        event = plugin.wait_heard("StateChange")
    assert (event.event, event.pod.id) == (nri.RUN_POD_SANDBOX, "p")


def test_an_error_of_a_plugin_fails_the_operation(plugins: Plugins, path: Path) -> None:
    def refuse(_: object) -> None:
        raise Refused("no room")

    with connected(path, "10", "a") as first, connected(path, "11", "b") as second:
        wait_until(lambda: len(names(plugins)) == 2)
        first.handlers["RunPodSandbox"] = refuse
        with pytest.raises(FailedPrecondition, match=r"^NRI plugin 10-a: RunPodSandbox: no room$"):
            run_pod(plugins)
        assert second.methods() == []
        assert len(names(plugins)) == 2


def test_a_slow_plugin_is_dropped_and_the_event_continues(node: FakeNode, tmp_path: Path) -> None:
    plugins, path = Plugins(Timeouts(registration=LONG, request=0.3)), tmp_path / "nri.sock"
    plugins.start(node)
    release = threading.Event()
    with Listener(path, plugins).serving(), connected(path, "10", "slow") as slow, connected(path, "11", "quick"):
        wait_until(lambda: len(names(plugins)) == 2)
        slow.handlers["RunPodSandbox"] = lambda _: release.wait(LONG)
        assert run_pod(plugins) == ["11-quick"]
        wait_until(lambda: names(plugins) == ["11-quick"])
        assert slow.closed.wait(LONG)
        release.set()
    plugins.stop()


def test_a_plugin_that_dies_during_a_call_is_dropped(plugins: Plugins, path: Path) -> None:
    with connected(path, "10", "dying") as dying, connected(path, "11", "b"):
        wait_until(lambda: len(names(plugins)) == 2)
        dying.handlers["RunPodSandbox"] = lambda _: dying.socket.shutdown(socket.SHUT_RDWR)
        assert run_pod(plugins) == ["11-b"]
        wait_until(lambda: names(plugins) == ["11-b"])


def test_one_event_is_delivered_at_a_time(plugins: Plugins, path: Path) -> None:
    inside, most = 0, list[int]()

    def count(_: object) -> None:
        nonlocal inside
        inside += 1
        most.append(inside)
        threading.Event().wait(0.01)
        inside -= 1

    with connected(path, "10", "a") as plugin:
        wait_until(lambda: names(plugins))
        plugin.handlers["RunPodSandbox"] = count
        threads = [threading.Thread(target=run_pod, args=(plugins,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1] * 8


# Synchronization


def test_synchronize_has_all_pods_and_containers(plugins: Plugins, path: Path, node: FakeNode) -> None:
    node.pods, node.containers = [POD], [nri.Container(id="c", pod_sandbox_id="p")]
    with connected(path, "10", "a") as plugin:
        request = plugin.wait_heard("Synchronize")
    assert [each.id for each in (*request.pods, *request.containers)] == ["p", "c"]
    assert not request.more


def test_a_large_synchronize_is_sent_in_several_messages(plugins: Plugins, path: Path, node: FakeNode) -> None:
    node.pods = [nri.PodSandbox(id=str(number), annotations={"note": "x" * (1 << 19)}) for number in range(20)]
    with connected(path, "10", "a") as plugin:
        wait_until(lambda: names(plugins))
        requests = [request for method, request in plugin.heard if method == "Synchronize"]
    assert [each.id for request in requests for each in request.pods] == [str(number) for number in range(20)]
    assert [request.more for request in requests] == [True] * (len(requests) - 1) + [False]
    assert all(request.ByteSize() < 4 << 20 for request in requests)


def test_updates_in_the_answer_to_synchronize_are_applied(plugins: Plugins, path: Path, node: FakeNode) -> None:
    with arriving(path) as plugin:
        plugin.handlers["Synchronize"] = lambda _: nri.SynchronizeResponse(
            update=[nri.ContainerUpdate(container_id="c")]
        )
        plugin.register("10", "a")
        wait_until(lambda: node.updates)
        assert [each.container_id for each in node.updates] == ["c"]


def test_synchronization_is_retried_while_docker_is_unavailable(plugins: Plugins, path: Path, node: FakeNode) -> None:
    node.outages = 1
    with connected(path, "10", "a"):
        wait_until(lambda: names(plugins))
    assert node.outages == 0


def test_events_wait_for_a_synchronization(plugins: Plugins, path: Path) -> None:
    release, told = threading.Event(), threading.Event()
    with arriving(path) as plugin:
        plugin.handlers["Synchronize"] = lambda _: release.wait(LONG)
        plugin.register("10", "a")
        plugin.wait_heard("Synchronize")

        def work() -> None:
            run_pod(plugins)
            told.set()

        threading.Thread(target=work).start()
        assert not told.wait(0.1)
        release.set()
        assert told.wait(LONG)
        assert plugin.methods() == ["RunPodSandbox"]


# Registration


@pytest.mark.parametrize(
    ("index", "name"), [("1", "a"), ("aa", "a"), ("10", ""), ("10", "a/b"), ("10", "x" * (MAX_NAME + 1))]
)
def test_a_plugin_with_a_malformed_name_is_refused(path: Path, plugins: Plugins, index: str, name: str) -> None:
    with arriving(path) as plugin:
        with pytest.raises(Refused, match="plugin"):
            plugin.register(index, name)
        assert names(plugins) == []


def test_a_name_of_more_than_64_characters_is_refused() -> None:
    assert identity("10", "x" * MAX_NAME).name == "x" * MAX_NAME
    with pytest.raises(FailedPrecondition):
        identity("10", "x" * (MAX_NAME + 1))


def test_a_file_name_gives_index_and_name() -> None:
    assert str(identity_of_file("07-a-b")) == "07-a-b"
    with pytest.raises(FailedPrecondition):
        identity_of_file("plugin")


def test_a_plugin_that_does_not_register_is_dropped(node: FakeNode) -> None:
    plugins = Plugins(Timeouts(registration=0.1, request=LONG))
    plugins.start(node)
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ShimError, match=r"has not registered within 0\.1 s"):
        plugins.admit(ours, Peer())


def test_a_subscription_to_unknown_events_is_refused(plugins: Plugins, path: Path) -> None:
    with arriving(path, events=1 << 20) as plugin:
        plugin.register("10", "a")
        assert plugin.closed.wait(LONG)
        assert names(plugins) == []


def test_connections_beyond_the_limit_are_refused(plugins: Plugins) -> None:
    kept = []
    for _ in range(MAX_PLUGINS):
        ours, theirs = socket.socketpair()
        kept.append(TestPlugin(theirs))
        threading.Thread(target=_admit, args=(plugins, ours), daemon=True).start()
    wait_until(lambda: len(plugins._connections) == MAX_PLUGINS)
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ShimError, match=f"{MAX_PLUGINS} plugins are connected"):
        plugins.admit(ours, Peer())
    for plugin in kept:
        plugin.close()


def _admit(plugins: Plugins, ours: socket.socket) -> None:
    try:
        plugins.admit(ours, Peer())
    except ShimError:
        return


def test_a_plugin_requests_updates_and_learns_of_failures(plugins: Plugins, path: Path) -> None:
    with connected(path, "10", "a") as plugin:
        wait_until(lambda: names(plugins))
        failed = plugin.update(nri.ContainerUpdate(container_id="there"), nri.ContainerUpdate(container_id="gone"))
    assert [each.container_id for each in failed] == ["gone"]


def test_plugins_get_shutdown_when_the_server_stops(node: FakeNode, tmp_path: Path) -> None:
    plugins = Plugins(Timeouts(registration=LONG, request=LONG))
    plugins.start(node)
    with Listener(tmp_path / "s", plugins).serving(), connected(tmp_path / "s", "10", "a") as plugin:
        wait_until(lambda: names(plugins))
        plugins.stop()
        assert plugin.methods() == ["Shutdown"]
        assert plugin.closed.wait(LONG)


# The socket


def test_the_socket_has_mode_0600_and_is_removed_at_the_end(tmp_path: Path, plugins: Plugins) -> None:
    path = tmp_path / "run" / "nri.sock"
    with Listener(path, plugins).serving():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert listening_pid(path) == os.getpid()
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path, plugins: Plugins) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert listening_pid(path) is None
    with Listener(path, plugins).serving(), connected(path, "10", "a"):
        pass


def test_a_socket_of_another_listener_is_left_alone(tmp_path: Path, plugins: Plugins) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with Listener(path, plugins).serving():
            assert f"process {os.getpid()} (" in plugins.problem
        assert path.exists()


# Installed plugins


def install(directory: Path, name: str, *, mode: int = 0o755) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / name
    root = Path(__file__).parents[2]
    program.write_text(f"#!/bin/sh\ncd {root} && exec {sys.executable} -m tests.nri.plugin\n")
    program.chmod(mode)
    return program


def test_executables_with_a_plugins_name_are_installed_plugins(tmp_path: Path) -> None:
    directory, configurations = tmp_path / "plugins", tmp_path / "conf.d"
    configurations.mkdir()
    for name in ("20-b", "10-a", "plain"):
        install(directory, name)
    install(directory, "30-data", mode=0o644)
    (configurations / "a.conf").write_text("for any a")
    (configurations / "10-a.conf").write_text("for this a")
    (configurations / "b.conf").write_text("for b")

    found = installed_plugins(directory, configurations=configurations)

    assert [(str(each.identity), each.config) for each in found] == [("10-a", "for this a"), ("20-b", "for b")]
    assert installed_plugins(tmp_path / "none", configurations=configurations) == []


def test_installed_plugins_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    for number in range(MAX_INSTALLED + 1):
        install(tmp_path / "plugins", f"{number:02}-a")
    assert len(installed_plugins(tmp_path / "plugins", configurations=tmp_path)) == MAX_INSTALLED


def test_a_plugin_whose_configuration_is_too_large_is_skipped(tmp_path: Path) -> None:
    install(tmp_path / "plugins", "10-a")
    (tmp_path / "a.conf").write_bytes(b"x" * CONFIG_LIMIT)
    assert len(installed_plugins(tmp_path / "plugins", configurations=tmp_path)) == 1
    (tmp_path / "a.conf").write_bytes(b"x" * (CONFIG_LIMIT + 1))
    assert installed_plugins(tmp_path / "plugins", configurations=tmp_path) == []


def test_an_installed_plugin_is_started_and_events_wait_for_it(tmp_path: Path, plugins: Plugins) -> None:
    heard = tmp_path / "heard"
    install(tmp_path / "plugins", "10-a")
    (tmp_path / "a.conf").write_text(f"{heard}\n")
    found = installed_plugins(tmp_path / "plugins", configurations=tmp_path)

    with running_plugins(found, plugins):
        assert plugins.active
        assert run_pod(plugins) == ["10-a"]
        wait_until(lambda: heard.exists() and "RunPodSandbox" in heard.read_text())
        pid = plugins.rows()[0]["pid"]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    wait_until(lambda: not plugins.active)


def test_a_program_that_exits_without_registering_delays_no_event(tmp_path: Path, plugins: Plugins) -> None:
    program = tmp_path / "10-a"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with running_plugins(installed_plugins(tmp_path, configurations=tmp_path), plugins):
        assert run_pod(plugins) == []


@pytest.mark.parametrize("thread", ["nri-admit", "nri-read", "nri-serve"])
def test_plugins_can_connect_again_after_a_shortage_of_threads(
    plugins: Plugins, path: Path, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    with monkeypatch.context() as short, socket.socket(socket.AF_UNIX) as refused:
        no_thread_for(thread, short)
        refused.settimeout(LONG)
        refused.connect(str(path))
        assert refused.recv(1) == b""
    with connected(path, "10", "a"):
        wait_until(lambda: names(plugins) == ["10-a"])


def test_plugins_connect_to_a_socket_with_a_high_descriptor(plugins: Plugins, tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]  # more than select(2) takes
    try:
        with Listener(path, plugins).serving(), connected(path, "10", "a"):
            wait_until(lambda: names(plugins) == ["10-a"])
    finally:
        for each in held:
            os.close(each)


def test_a_shortage_of_descriptors_makes_the_listener_wait(plugins: Plugins, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as waiting:
        with no_descriptor_free():
            waiting.connect(str(path))
            before = time.process_time()
            threading.Event().wait(0.5)
            assert time.process_time() - before < 0.25
        plugin = TestPlugin(waiting)
        plugin.register("10", "a")
        wait_until(lambda: names(plugins) == ["10-a"])
