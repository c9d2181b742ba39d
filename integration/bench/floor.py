"""The floor: a pod run directly, with the server's request bodies and plugin runs, one call after the other.

All work here is Docker's or a plugin's, and each container has its own containerd-shim, as Docker runs it by default.
The containers do not have the server's names: the server would track them, and query Docker during the measurement.
"""

import http.client
import os
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import docker
import msgspec

from integration.bench.pods import GRACE_SECONDS, LIMITS, cgroup_parent
from integration.bench.setup import Setup
from integration.bench.timings import Timings
from shim.api.v1 import api_pb2 as pb
from shim.cni.arguments import capability_args, cni_args
from shim.config.model import Config
from shim.dockerd.facts import EngineFacts
from shim.domain import labels
from shim.domain.ids import SandboxId
from shim.engine.client import DockerEngine
from shim.hostfs.host_paths import HostSource
from shim.spec.container import ContainerContext, container_body
from shim.spec.defaults import CreateContext, HostDefaults, docker_log
from shim.spec.resources import update_fields
from shim.spec.sandbox import OOM_SCORE_ADJ, pause_body
from shim.spec.seccomp import seccomp_of_daemon
from shim.spec.users import DockerUser

_CALL_SECONDS = 120.0
_PLUGIN_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class FloorPod:
    """A pod that was run directly."""

    name: str
    config: pb.PodSandboxConfig
    pause: str = ""
    container: str = ""
    pid: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    """Output of the last plugin of the ADD."""


class Floor:
    """Runs and removes pods directly, over a persistent connection to the engine."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._docker = DirectDocker(setup.engine.socket, version=setup.engine.api.api_version)
        self._oom_score_adj = _oom_score_adj(setup)
        self._defaults = HostDefaults(
            cgroup_parent=cgroup_parent(),
            cgroupns_mode="",
            runtime="",
            docker_log=docker_log(Config(), driver="json-file"),
            daemon_seccomp=seccomp_of_daemon(setup.engine.api.info()["SecurityOptions"]),
        )
        self._resolv_conf = setup.home / "floor/resolv.conf"
        self._resolv_conf.write_bytes(Path("/etc/resolv.conf").read_bytes())

    def up(self, timings: Timings, *, config: pb.PodSandboxConfig, container: pb.ContainerConfig) -> FloorPod:
        """Run a pod with a container."""
        made = FloorPod(name=f"floor-{config.metadata.name}", config=config)
        engine, pause = self._docker, self._pause_body(config)
        made.pause = timings.call("create pause", lambda: engine.create(f"{made.name}-pause", pause))
        timings.call("start pause", lambda: engine.post(f"/containers/{made.pause}/start"))
        made.pid = timings.call("inspect pause", lambda: engine.get(f"/containers/{made.pause}/json"))["State"]["Pid"]
        made.result = timings.call("CNI ADD", lambda: self._plugins("ADD", made))
        body = self._container_body(container, sandbox_id=made.pause)
        made.container = timings.call("create container", lambda: engine.create(f"{made.name}-main", body))
        timings.call("start container", lambda: engine.post(f"/containers/{made.container}/start"))
        return made

    def add(self, pod: FloorPod, container: pb.ContainerConfig) -> str:
        """Create and start another container; return its id."""
        body = self._container_body(container, sandbox_id=pod.pause)
        made = self._docker.create(f"{pod.name}-{container.metadata.name}", body)
        self._docker.post(f"/containers/{made}/start")
        return made

    def end(self, container_id: str) -> None:
        """Kill and remove another container."""
        self._docker.delete(f"/containers/{container_id}?v=1&force=1")

    def exercise(self, timings: Timings, pod: FloorPod, *, times: int) -> None:
        """List the containers `times` times, run a command, change a limit, and run a command through the SDK."""
        engine = self._docker
        for _ in range(times):
            timings.call("list containers", lambda: engine.get("/containers/json?all=1"))
        timings.call("exec", lambda: engine.exec(pod.container, ["true"]))
        body = update_fields(LIMITS, wanted=LIMITS)
        timings.call("update", lambda: engine.post(f"/containers/{pod.container}/update", body))
        timings.call("exec, new client", lambda: self._exec_over_new_client(pod))

    def down(self, timings: Timings, pod: FloorPod) -> None:
        """Stop and remove the pod."""
        engine = self._docker
        timings.call("stop container", lambda: engine.post(f"/containers/{pod.container}/stop?t={GRACE_SECONDS}"))
        timings.call("CNI DEL", lambda: self._plugins("DEL", pod))
        timings.call("kill pause", lambda: engine.post(f"/containers/{pod.pause}/kill?signal=SIGKILL"))
        timings.call("remove container", lambda: engine.delete(f"/containers/{pod.container}?v=1&force=1"))
        timings.call("remove pause", lambda: engine.delete(f"/containers/{pod.pause}?v=1&force=1"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._docker.close()

    def _exec_over_new_client(self, pod: FloorPod) -> None:
        """Run a command as a program does that uses Docker's client library for it."""
        with closing(docker.APIClient(base_url=self._setup.engine.url, version="auto")) as client:
            exec_id = client.exec_create(pod.container, ["true"])["Id"]
            client.exec_start(exec_id)
            if client.exec_inspect(exec_id)["ExitCode"] != 0:
                raise RuntimeError(f"exec {exec_id} in container {pod.container} failed")

    def _pause_body(self, config: pb.PodSandboxConfig) -> dict[str, Any]:
        ctx = CreateContext(
            defaults=self._defaults,
            image_id=self._setup.pause,
            user=DockerUser(),
            labels=labels.sandbox_labels(config, runtime_handler=""),
            resolv_conf=str(self._resolv_conf),
            oom_score_adj=self._oom_score_adj,
            seccomp_profile=b"",
            oci_annotations={},
        )
        return pause_body(config, ctx, profile="")

    def _container_body(self, config: pb.ContainerConfig, *, sandbox_id: str) -> dict[str, Any]:
        major, minor = self._setup.engine.api.api_version.split(".")
        ctx = ContainerContext(
            defaults=self._defaults,
            sandbox_id=SandboxId(sandbox_id),
            privileged_pod=False,
            host_network=False,
            image_id=self._setup.busybox,
            user=DockerUser(user="0:0"),
            labels=labels.container_labels(config, name="", sandbox_id=sandbox_id, log_path=""),
            resolv_conf=str(self._resolv_conf),
            api_version=(int(major), int(minor)),
            oom_score_adj=0,
            recursive_read_only=False,
            host_sources={index: HostSource(mount.host_path) for index, mount in enumerate(config.mounts)},
            device_sources=[],
            image_mounts={},
            seccomp_profile=b"",
            oci_annotations={},
            target_id="",
        )
        return container_body(config, ctx)

    def _plugins(self, verb: str, pod: FloorPod) -> dict[str, Any]:
        """Run the plugins of the list, for DEL in reverse; return the last result of an ADD."""
        adding, plugins = verb == "ADD", self._setup.conflist["plugins"]
        environment = {
            **os.environ,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": pod.pause,
            "CNI_NETNS": f"/proc/{pod.pid}/ns/net",
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in _arguments(pod)),
            "CNI_PATH": str(self._setup.cni_bin),
        }
        result = pod.result
        for plugin in plugins if adding else reversed(plugins):
            config = self._plugin_config(plugin, pod=pod, previous=result)
            printed = _run(self._setup.cni_bin / plugin["type"], environment=environment, config=config)
            result = msgspec.json.decode(printed) if adding else result
        return result

    def _plugin_config(self, plugin: dict[str, Any], *, pod: FloorPod, previous: dict[str, Any]) -> dict[str, Any]:
        conflist = self._setup.conflist
        config = {**plugin, "name": conflist["name"], "cniVersion": conflist["cniVersion"]}
        declared = config.pop("capabilities", {})
        given = capability_args(pod.config, pod_ranges=())
        config["runtimeConfig"] = {key: value for key, value in given.items() if declared.get(key)}
        if previous:
            config["prevResult"] = previous
        return config


class DirectDocker:
    """A minimal client of Docker's HTTP API: one connection, no client library."""

    def __init__(self, path: Path, *, version: str) -> None:
        self._path = path
        self._prefix = f"/v{version}"
        self._connection = _UnixConnection(path)

    def get(self, path: str) -> Any:
        """GET and decode."""
        return msgspec.json.decode(self._ask("GET", path))

    def post(self, path: str, body: Any = None) -> bytes:
        """POST a body, or none."""
        return self._ask("POST", path, body)

    def delete(self, path: str) -> None:
        """DELETE."""
        self._ask("DELETE", path)

    def create(self, name: str, body: dict[str, Any]) -> str:
        """Create a container and return its id."""
        return str(msgspec.json.decode(self._ask("POST", f"/containers/create?name={name}", body))["Id"])

    def pull(self, reference: str) -> None:
        """Pull an image, and read the progress messages until the pull is complete."""
        progress = self.post(f"/images/create?fromImage={quote(reference, safe='')}")
        if b'"error"' in progress:
            raise RuntimeError(f"pull {reference}: {progress.decode(errors='replace').strip()}")

    def exec(self, container_id: str, command: list[str]) -> int:
        """Run a command to its end, read its output and return its exit code."""
        body = {"Cmd": command, "AttachStdout": True, "AttachStderr": True}
        identity = msgspec.json.decode(self._ask("POST", f"/containers/{container_id}/exec", body))["Id"]
        hijacked = DirectDocker(self._path, version=self._prefix.removeprefix("/v"))
        try:
            hijacked.post(f"/exec/{identity}/start", {"Detach": False, "Tty": False})
        finally:
            hijacked.close()
        return int(self.get(f"/exec/{identity}/json")["ExitCode"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        self._connection.request(method, self._prefix + path, content, headers)
        with self._connection.getresponse() as answer:
            read = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {answer.status} {read.decode(errors='replace').strip()}")
        return read


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=_CALL_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_CALL_SECONDS)
        self.sock.connect(str(self._path))


def _oom_score_adj(setup: Setup) -> int:
    engine = DockerEngine(setup.engine.url, request_timeout=_CALL_SECONDS)
    try:
        facts = EngineFacts(engine, restrict_oom_score_adj="auto")
        return facts.possible_oom_score_adj(OOM_SCORE_ADJ)
    finally:
        engine.close()


def _arguments(pod: FloorPod) -> list[tuple[str, str]]:
    return cni_args(pod.config.metadata, sandbox_id=pod.pause)


def _run(binary: Path, *, environment: dict[str, str], config: dict[str, Any]) -> bytes:
    done = subprocess.run(
        [binary],
        check=False,
        input=msgspec.json.encode(config),
        capture_output=True,
        env=environment,
        timeout=_PLUGIN_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{binary.name} {environment['CNI_COMMAND']}: {done.stdout.decode(errors='replace')}")
    return done.stdout
