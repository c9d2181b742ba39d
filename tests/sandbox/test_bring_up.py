"""The network of a pod is set up during the start of its pause container: real processes, pins and plugins."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.store import CheckpointStore
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, ShimError
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from shim.sandbox.run import run_pod_sandbox
from tests.cni.fake_plugins import FakePlugins
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.mounts import need_root, unmount_below
from tests.pods import pod_config
from tests.waits import wait_until

CONFLIST = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "net"}]}
RESULT = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.1.0.7/24"}]}


class Processes:
    """Processes in separate network namespaces."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *, group: str = "") -> int:
        """Start the first process of a PID namespace, in the cgroup of this name; return its pid."""
        process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.enter_context(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        if group:
            self._move(pid, group)
        return pid

    def _move(self, pid: int, group: str) -> None:
        version_1 = Path("/sys/fs/cgroup/memory")
        directory = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / group
        try:
            directory.mkdir()
        except OSError as error:
            pytest.skip(f"no control groups here: {error}")
        self._stack.callback(directory.rmdir)
        (directory / "cgroup.procs").write_text(str(pid))
        self._stack.callback((directory.parent / "cgroup.procs").write_text, str(pid))


class RuncEngine(FakeEngine):
    """An Engine whose containers have a process, which runc creates and records before the start is answered."""

    def __init__(self, states: Path, processes: Processes) -> None:
        super().__init__()
        self._states = states
        self._processes = processes
        self.before_answer: Callable[[], object] = lambda: None
        """Called between the process's start and the answer."""
        self.named: Callable[[int], int] = lambda pid: pid
        """Maps the pid of pause to the pid in runc's state."""
        self.answered: Callable[[int], int] = lambda pid: pid
        """Returns the pid that the Engine reports."""
        self.writes_state = True

    def start_container(self, container_id: str) -> None:
        pid = self._processes.start(group=container_id)
        directory = self._states / container_id
        directory.mkdir()
        if self.writes_state:
            (directory / "state-1").write_text(f'{{"init_process_pid": {self.named(pid)}}}')
            (directory / "state-1").rename(directory / "state.json")
        self.before_answer()
        super().start_container(container_id)
        self.containers[container_id].pid = self.answered(pid)


@pytest.fixture
def fakes(tmp_path: Path) -> FakePlugins:
    """The plugin of CONFLIST."""
    fakes = FakePlugins(tmp_path / "plugins")
    fakes.write_answering("net", RESULT)
    return fakes


@pytest.fixture
def config(config: Config, fakes: FakePlugins, network: dict[str, Any]) -> Iterator[Config]:
    """Settings with that plugin, and a directory for pins that no other mount namespace sees."""
    need_root()
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-pods.conflist").write_bytes(msgspec.json.encode(network))
    config.netns_directory.mkdir()
    subprocess.run(["mount", "--bind", "--make-private", config.netns_directory, config.netns_directory], check=True)
    yield msgspec.structs.replace(config, cni_bin_dir=(fakes.bin_dir,))
    unmount_below(config.netns_directory)


@pytest.fixture
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


@pytest.fixture
def engine(tmp_path: Path, processes: Processes) -> RuncEngine:
    states = tmp_path / "exec/runtime-runc/moby"
    states.mkdir(parents=True)
    engine = RuncEngine(states, processes)
    engine.add_image(Config().pod_infra_container_image)
    engine.add_image(BUSYBOX)
    return engine


@pytest.fixture
def rt(rt: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    rt.tasks.learn(str(tmp_path / "exec"))
    yield rt
    rt.tasks.close()


def run(rt: Runtime, **linux: Any) -> SandboxId:
    config = pod_config(network=pb.POD)
    config.linux.MergeFrom(pb.LinuxPodSandboxConfig(**linux))
    return run_pod_sandbox(rt, config=config, runtime_handler="")


def verbs(fakes: FakePlugins) -> list[str]:
    return [call.verb for call in fakes.calls]


def namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def check_nothing_left(rt: Runtime, engine: RuncEngine) -> None:
    assert engine.containers == {}
    assert rt.checkpoints.all() == []
    assert list(rt.config.netns_directory.iterdir()) == []
    assert list((rt.config.cni_cache_dir / "results").iterdir()) == []


def test_a_pod_is_attached_before_its_start_is_answered(
    rt: Runtime, engine: RuncEngine, fakes: FakePlugins, tmp_path: Path
) -> None:
    fakes.write(
        "net",
        f"cp -r {rt.config.root_directory}/sandboxes {tmp_path}/seen; echo '{msgspec.json.encode(RESULT).decode()}'",
    )
    engine.before_answer = lambda: wait_until(lambda: verbs(fakes) == ["ADD"])
    sandbox = run(rt)

    assert verbs(fakes) == ["ADD"]
    assert pod.is_ready(rt.checkpoints, rt.view.sandbox(sandbox))
    (call,) = fakes.calls
    assert Path(call.environment["CNI_NETNS"]).stat().st_ino == namespace(engine.containers[sandbox].pid)
    before = CheckpointStore(tmp_path / "seen").get(sandbox)
    assert before is not None
    assert (before.ready, before.network is not None and before.network.released) == (False, False)


def test_a_pod_is_attached_before_runc_has_a_state(rt: Runtime, engine: RuncEngine, fakes: FakePlugins) -> None:
    engine.version = (1, 48)
    engine.writes_state = False
    engine.before_answer = lambda: wait_until(lambda: verbs(fakes) == ["ADD"])
    sandbox = run(rt, cgroup_parent="/")
    (call,) = fakes.calls
    assert Path(call.environment["CNI_NETNS"]).stat().st_ino == namespace(engine.containers[sandbox].pid)


@pytest.mark.parametrize(
    ("api", "linux"),
    [
        pytest.param((1, 47), {"cgroup_parent": "/"}, id="an Engine that sets up the namespace in a hook"),
        pytest.param((1, 48), {}, id="no parent"),
        pytest.param((1, 48), {"cgroup_parent": "/", "sysctls": {"net.ipv4.ip_forward": "1"}}, id="sysctls"),
        pytest.param((1, 48), {"cgroup_parent": "/", "sysctls": {"net/ipv4/ip_forward": "1"}}, id="with slashes"),
        pytest.param(
            (1, 48),
            {
                "cgroup_parent": "/",
                "security_context": pb.LinuxSandboxSecurityContext(
                    namespace_options=pb.NamespaceOption(network=pb.POD, pid=pb.NODE)
                ),
            },
            id="the PID namespace of the host",
        ),
    ],
)
def test_add_waits_if_runc_still_changes_the_namespace(
    rt: Runtime, engine: RuncEngine, fakes: FakePlugins, api: tuple[int, int], linux: dict[str, Any]
) -> None:
    engine.version = api
    engine.writes_state = False
    seen: list[list[str]] = []
    # The decision to watch the cgroup is made before the start.
    engine.before_answer = lambda: seen.append([f"{task.group}" for task in rt.tasks._tasks.values()])
    run(rt, **linux)
    assert seen == [[""]]
    assert verbs(fakes) == ["ADD"]


def conflist_with(**of_plugin: object) -> dict[str, Any]:
    return CONFLIST | {"plugins": [{"type": "net", **of_plugin}]}


@pytest.fixture
def network(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The host's network."""
    found: dict[str, Any] = getattr(request, "param", CONFLIST)
    return found


@pytest.mark.parametrize("network", [conflist_with(sysctl={"net.ipv4.ping_group_range": "0 1"})], indirect=True)
def test_add_waits_if_plugins_set_sysctls(rt: Runtime, engine: RuncEngine, fakes: FakePlugins) -> None:
    engine.version = (1, 48)
    engine.writes_state = False
    seen: list[str] = []
    engine.before_answer = lambda: seen.extend(task.group for task in rt.tasks._tasks.values())
    run(rt, cgroup_parent="/")

    assert seen == [""]
    assert verbs(fakes) == ["ADD"]


def test_lo_is_up_when_add_begins(rt: Runtime, engine: RuncEngine, fakes: FakePlugins, tmp_path: Path) -> None:
    show = f'nsenter --net="$CNI_NETNS" cat /proc/net/if_inet6 >{tmp_path}/addresses'
    fakes.write("net", f"{show}; echo '{msgspec.json.encode(RESULT).decode()}'")
    engine.before_answer = lambda: wait_until(lambda: verbs(fakes) == ["ADD"])
    run(rt)

    assert verbs(fakes) == ["ADD"]
    assert " lo" in (tmp_path / "addresses").read_text()


def test_a_failed_start_is_undone_after_add(
    rt: Runtime, engine: RuncEngine, fakes: FakePlugins, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    fakes.write("net", f'[ "$CNI_COMMAND" = ADD ] && sleep 0.3; echo "$CNI_COMMAND" >>{log}; echo "{{}}"')

    def fail() -> None:
        wait_until(lambda: verbs(fakes) == ["ADD"])
        raise ShimError("no space")

    engine.before_answer = fail
    with pytest.raises(ShimError, match="no space"):
        run(rt)
    assert log.read_text().split() == ["ADD", "DEL"]
    check_nothing_left(rt, engine)


def test_the_running_pause_must_be_the_attached_process(
    rt: Runtime, engine: RuncEngine, fakes: FakePlugins, processes: Processes
) -> None:
    engine.before_answer = lambda: wait_until(lambda: verbs(fakes) == ["ADD"])
    engine.answered = lambda _: processes.start()
    with pytest.raises(FailedPrecondition, match="another namespace is pinned there"):
        run(rt)
    assert verbs(fakes) == ["ADD", "DEL"]
    check_nothing_left(rt, engine)


def test_a_process_in_another_cgroup_is_not_attached(
    rt: Runtime, engine: RuncEngine, fakes: FakePlugins, processes: Processes
) -> None:
    engine.named = lambda _: processes.start()
    sandbox = run(rt)
    (call,) = fakes.calls
    assert Path(call.environment["CNI_NETNS"]).stat().st_ino == namespace(engine.containers[sandbox].pid)


def test_add_waits_for_the_checkpoint(rt: Runtime, engine: RuncEngine, fakes: FakePlugins) -> None:
    (rt.config.root_directory / "sandboxes").rmdir()
    (rt.config.root_directory / "sandboxes").write_text("no directory")
    with pytest.raises(ShimError, match="sandboxes"):
        run(rt)
    assert verbs(fakes) == []
    assert list(rt.config.netns_directory.iterdir()) == []
