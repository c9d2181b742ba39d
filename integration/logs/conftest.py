"""Fixtures: containers with logs, on the shared server and on servers that a test may kill."""

import os
import secrets
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.cri import HOST_NETWORK
from integration.networks import bridge, conflist
from integration.node.engine import remove_link
from integration.node.isolation import Node, new_home
from integration.node.mounts import unmount_all
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.config.model import DockerLogDriver
from shim.logs.drivers import docker_log_path

LINK = "logs0"
DOCKER_COPY: dict[DockerLogDriver, dict[str, object]] = {
    "json-file": {"docker_log_max_size": "256k", "docker_log_max_file": 4},
    "local": {"docker_log_max_size": "100k", "docker_log_max_file": 4},
}
"""Docker's log size for `own`: some 3000 short lines in each file. A module may define another DOCKER_COPY."""
SMALL_COPY = (
    sys.executable,
    "-c",
    "from shim.config import combinations as c; c.MIN_LOG_COPY = 0; from shim import cli; raise SystemExit(cli.main())",
)
"""The server without its minimum of that size, so that Docker rotates after a few thousand lines."""
END_SECONDS = 60.0
EXITED = pb.CONTAINER_EXITED

Test = TypeVar("Test", bound=Callable[..., None])


def on_drivers(*names: DockerLogDriver) -> Callable[[Test], Test]:
    """Set the logging drivers for a test that uses `own`; the default is json-file."""

    def marked(test: Test) -> Test:
        test.drivers = names  # type: ignore[attr-defined] # a function accepts any attribute
        return test

    return marked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each of its drivers."""
    if "driver" in metafunc.fixturenames:
        metafunc.parametrize("driver", getattr(metafunc.function, "drivers", ("json-file",)), scope="module")


@dataclass(frozen=True, slots=True)
class Logged:
    """A pod with a log directory, whose containers a test runs."""

    served: Served
    kubelet: Kubelet
    pod: Pod
    directory: Path

    def run(self, script: str, **fields: Any) -> tuple[str, Path]:
        """Start a container that runs a shell script; return its id and the path of its log."""
        name = f"{secrets.token_hex(3)}/0.log"
        container_id = self.kubelet.started(self.pod, "sh", "-c", script, log_path=name, **fields)
        return container_id, self.directory / name

    def wait_exited(self, container_id: str, seconds: float = 60.0) -> None:
        """Return as soon as the status says that the container exited: by then its log must be complete."""
        cri = self.served.cri
        wait_until(lambda: cri.container_status(container_id).state == EXITED, seconds)

    def reopen(self, container_id: str) -> None:
        """Call ReopenContainerLog."""
        self.served.cri.runtime.ReopenContainerLog(pb.ReopenContainerLogRequest(container_id=container_id))

    def rotate(self, container_id: str, path: Path, number: int) -> None:
        """Rotate a log as a kubelet does."""
        path.rename(self.rotated(path, number))
        self.reopen(container_id)

    def rotated(self, path: Path, number: int) -> Path:
        """Return the name of a rotated log."""
        return path.with_name(f"{path.name}.{number:04}")

    def stats(self) -> dict[str, Any]:
        """Return the logging part of the verbose Status."""
        answer = self.served.cri.runtime.Status(pb.StatusRequest(verbose=True))
        found: dict[str, Any] = msgspec.json.decode(answer.info["config"])["logs"]
        return found

    def worker(self) -> int:
        """Wait for the log process, and return its pid."""
        return int(wait_until(lambda: self.stats()["pid"]))

    def crash(self) -> None:
        """Kill the server."""
        self.served.server.kill()
        self.served.server.socket.unlink()

    def crash_with_logs(self) -> None:
        """Kill the server, and wait until its log process, which goes on for a moment, has exited."""
        handle = os.pidfd_open(self.worker())
        try:
            self.crash()
            with select.epoll() as ended:
                ended.register(handle, select.EPOLLIN)
                assert ended.poll(END_SECONDS), "the log process outlives its server"
        finally:
            os.close(handle)

    def restart(self, **settings: object) -> None:
        """Kill the server, and start it with these settings, whose values are texts, in its file."""
        if self.served.server.daemon.running:
            self.crash()
        settings_file(self.served.dirs.state.parent).write_text(toml(settings))
        self.served.server.start()

    def docker_log(self, container_id: str) -> Path:
        """Return the path of Docker's log file."""
        api = self.served.engine.api
        driver = api.inspect_container(container_id)["HostConfig"]["LogConfig"]["Type"]
        return Path(docker_log_path(driver, root=api.info()["DockerRootDir"], container_id=container_id))

    def docker_has(self, container_id: str, line: str) -> bool:
        """Return whether a line is in Docker's newest file."""
        log = self.docker_log(container_id)
        record = f'"{line}\\n"' if log.name.endswith("-json.log") else f"\x1a{chr(len(line))}{line}"
        try:
            return record.encode() in log.read_bytes()
        except FileNotFoundError:  # Docker creates the file with the first line, and again after a rotation
            return False


@pytest.fixture
def logged(served: Served, images: Images, tmp_path: Path) -> Iterator[Logged]:
    """Provide a pod on the shared server."""
    kubelet = Kubelet(served.cri, images.busybox)
    yield in_a_pod(served, kubelet, tmp_path / "pod-logs")
    kubelet.remove_all()


@pytest.fixture(scope="module")
def own_server(served: Served, node: Node, driver: DockerLogDriver, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Run a server that tests may kill. The shared server is stopped: two would both copy the engine's logs."""
    served.server.stop()
    home = new_home("logs")
    dirs = make_node_dirs(node, home)
    settings_file(home).write_text(toml({"docker_log_driver": driver}))
    network = bridge(dirs.cni_leases, link=LINK, subnets=("10.94.0.0/16",))
    (dirs.cni_conf / "10-logs.conflist").write_text(conflist(network, name="logs"))
    try:
        copy = getattr(request.module, "DOCKER_COPY", DOCKER_COPY[driver])
        with serving(served.engine, dirs, SMALL_COPY, config=settings_file(home), **copy) as made:
            yield made
    finally:
        unmount_all(dirs.netns)
        remove_link(LINK)
        served.server.start()


@pytest.fixture
def own(own_server: Served, images: Images, tmp_path: Path) -> Iterator[Logged]:
    """Provide a pod on a server that may be killed, with small log files of Docker."""
    kubelet = Kubelet(own_server.cri, images.busybox)
    yield in_a_pod(own_server, kubelet, tmp_path / "pod-logs")
    own_server.revive()
    kubelet.remove_all()


def settings_file(home: Path) -> Path:
    """Return the path of the settings file, which a test may change."""
    return home / "settings.toml"


def toml(settings: dict[str, object]) -> str:
    """Format settings whose values are texts as TOML."""
    return "".join(f'{name} = "{value}"\n' for name, value in settings.items())


def in_a_pod(served: Served, kubelet: Kubelet, directory: Path) -> Logged:
    """Run a pod whose logs are below `directory`, which does not exist yet."""
    return Logged(served, kubelet, kubelet.pod(log_directory=str(directory), linux=HOST_NETWORK), directory)
