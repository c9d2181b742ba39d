"""The whole server in a separate process, on a machine without Docker."""

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import grpc
import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.checkpoint.root import locked_root_directory
from shim.daemon import serve as daemon
from shim.daemon.state_dump import StateDump
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from shim.streaming.listener import listen
from shim.streaming.tokens import PortForwardTask
from tests.facts import mode_of

TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine, 0)
"""The system call that sends a signal to one thread of another process, which Python has no function for."""

SECONDS = 60
"""Bound on a start; generous, since the tests of a busy machine run side by side."""


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    socket: Path

    def line(self, event: str) -> dict[str, Any]:
        """Return the next unread line of that event."""
        for text in self._log:
            line: dict[str, Any] = json.loads(text)
            if line["event"] == event:
                return line
        raise AssertionError(f"the server ended without {event!r}")

    def next_line(self) -> dict[str, Any]:
        """Return the next line."""
        line: dict[str, Any] = json.loads(next(iter(self._log)))
        return line

    @property
    def _log(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr


@contextmanager
def running(directory: Path, *flags: str, prefix: Sequence[str] = (), **popen: Any) -> Iterator[Server]:
    """Start a server with `prefix`; later flags override, `popen` goes to Popen."""
    command = [
        *(*prefix, sys.executable, "-m", "shim", "serve", "--log-format=json"),
        f"--container-runtime-endpoint=unix://{directory}/cri.sock",
        f"--docker-endpoint=unix://{directory}/no-docker.sock",
        f"--root-directory={directory}/root",
        f"--cni-conf-dir={directory}/cni",
        *flags,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **popen) as process:
        try:
            yield Server(process, directory / "cri.sock")
        finally:
            process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as server:
        server.line("serving")
        yield server


def test_server_without_docker_serves_and_reports_it(server: Server) -> None:
    with grpc.insecure_channel(f"unix:{server.socket}") as channel:
        runtime = api.RuntimeServiceStub(channel)
        conditions = runtime.Status(pb.StatusRequest()).status.conditions
        with pytest.raises(grpc.RpcError) as caught:
            runtime.ListPodSandbox(pb.ListPodSandboxRequest())

    assert [(condition.type, condition.status) for condition in conditions] == [
        ("RuntimeReady", False),
        ("NetworkReady", False),
    ]
    assert "no-docker.sock" in conditions[0].message
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_invalid_request_is_refused_first(server: Server) -> None:
    with (
        grpc.insecure_channel(f"unix:{server.socket}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        api.RuntimeServiceStub(channel).RunPodSandbox(pb.RunPodSandboxRequest())

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "config is missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server_and_removes_its_socket(server: Server, number: signal.Signals) -> None:
    server.process.send_signal(number)

    assert server.line("stopping")["signal"] == number.name
    assert server.process.wait(SECONDS) == 0
    assert not server.socket.exists()


def test_signal_is_handled_whichever_thread_it_interrupts(server: Server) -> None:
    """The kernel may choose any thread, and a signal may arrive just before the main thread begins to wait."""
    server.process.send_signal(signal.SIGHUP)
    server.line("settings reread")  # so the main thread waits
    pid = server.process.pid
    others = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid]
    thread = next(other for other in others if not blocks(other, signal.SIGTERM))
    assert ctypes.CDLL(None).syscall(TGKILL, pid, thread, signal.SIGTERM) == 0

    assert server.process.wait(SECONDS) == 0


def blocks(thread: int, number: signal.Signals) -> bool:
    """Whether a thread blocks a signal (proc(5), SigBlk)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{thread}/status").read_text().splitlines())
    return bool(int(status["SigBlk"], 16) >> (number - 1) & 1)


def test_a_hangup_applies_the_level_of_the_log_and_names_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('log_level = "info"\n')
    with running(tmp_path, f"--config={file}") as server:
        server.line("serving")
        file.write_text('log_level = "debug"\ncni_gc_interval = 33\n')
        server.process.send_signal(signal.SIGHUP)

        assert server.line("changed settings need a restart")["settings"] == ["cni_gc_interval"]
        assert server.line("settings reread")["log_level"] == "debug"
        assert server.line("docker call")["result"] == "Unavailable"


def test_a_hangup_with_a_mistake_in_the_settings_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    with running(tmp_path, f"--config={file}") as server:
        server.line("serving")
        file.write_text('log_levle = "debug"\n')
        server.process.send_signal(signal.SIGHUP)

        assert "log_levle" in server.line("settings not reread")["error"]
        assert server.process.poll() is None


def log_process(server: Server) -> int:
    """Return the pid of the log process once it answers."""
    with grpc.insecure_channel(f"unix:{server.socket}") as channel:
        while True:
            status = api.RuntimeServiceStub(channel).Status(pb.StatusRequest(verbose=True))
            reported = json.loads(status.info["config"])["logs"]
            if reported["figures"] is not None:
                return int(reported["pid"])


def test_the_log_process_does_not_outlive_a_server_that_is_killed(server: Server) -> None:
    ended = select.poll()
    handle = os.pidfd_open(log_process(server))
    ended.register(handle, select.POLLIN)

    server.process.kill()

    assert ended.poll(SECONDS * 1000)
    os.close(handle)


def test_two_servers_do_not_share_a_state_directory(server: Server, tmp_path: Path) -> None:
    second = tmp_path / "second.sock"

    with running(tmp_path, f"--container-runtime-endpoint={second}") as other:
        assert other.process.wait(SECONDS) == 1
        assert other.process.stderr is not None
        last = other.process.stderr.read().splitlines()[-1]

    assert last == f"pydockershim: error: root_directory {tmp_path}/root is in use by another server"
    assert not second.exists()


def test_a_child_of_a_killed_server_does_not_keep_its_state_directory(tmp_path: Path) -> None:
    """A child has all descriptors of the server until it executes its program."""
    script = (
        "import os, signal, sys, pathlib; from shim.checkpoint.root import locked_root_directory as locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    if not os.fork():\n"
        "        print('forked', flush=True); os.read(0, 1); os._exit(0)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"forked\n"
        server.kill()
        server.wait(SECONDS)

        with locked_root_directory(tmp_path):
            pass


def test_a_second_server_does_not_take_the_socket(server: Server, tmp_path: Path) -> None:
    with running(tmp_path, f"--root-directory={tmp_path}/other") as other:
        assert other.process.wait(SECONDS) == 1
        assert other.process.stderr is not None
        last = other.process.stderr.read().splitlines()[-1]

    assert last == f"pydockershim: error: serve the CRI at {server.socket}: another server answers there"
    assert server.socket.is_socket()


def test_systemd_is_notified_at_ready_and_at_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SECONDS)
        with running(tmp_path, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert systemd.recv(100) == b"READY=1"
            assert server.socket.is_socket()

            server.process.terminate()

            assert systemd.recv(100) == b"STOPPING=1"


def test_watchdog_is_notified_while_the_server_works(tmp_path: Path) -> None:
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SECONDS)
        with running(tmp_path, env=environ) as server:
            assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", *3 * [b"WATCHDOG=1"]]

            server.socket.unlink()

            server.line("server does not work, systemd will restart it")
            assert server.line("dumping state")["reason"] == "watchdog"


def test_dump_shows_the_servers_state(server: Server) -> None:
    server.line("serving streams")
    server.process.send_signal(signal.SIGUSR1)

    assert server.line("dumping state")["reason"] == "SIGUSR1"
    frames = server.line("stack")["frames"]
    parts: dict[str, list[dict[str, Any]]] = {}
    while (line := server.next_line())["event"] != "state dumped":
        if line["event"] == "state":
            parts.setdefault(line["part"], []).append(line)
    assert frames
    assert set(parts) >= {"docker connections", "pulls", "view", "view queue", "log process", "streaming sessions"}
    assert "no-docker.sock" in parts["view"][0]["outage"]
    assert server.process.poll() is None


@pytest.mark.parametrize("named", ["fd://", "unix://{path}", "unix://{linked}"])
def test_systemd_socket_is_served_and_stays(tmp_path: Path, named: str) -> None:
    """Also under the path in kubespray's unit for cri-dockerd: /var/run is a link to /run."""
    path, linked = tmp_path / "systemd.sock", tmp_path / "linked"
    linked.symlink_to(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.set_inheritable(True)
        # Like systemd between fork and exec: the socket becomes descriptor 3, and the pid is in the environment.
        script = f'exec 3<&{listener.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        with running(
            tmp_path,
            f"--container-runtime-endpoint={named.format(path=path, linked=linked / path.name)}",
            prefix=["bash", "-c", script, "systemd"],
            pass_fds=[listener.fileno()],
        ) as server:
            with grpc.insecure_channel(f"unix:{path}") as channel:
                runtime = api.RuntimeServiceStub(channel)
                status = runtime.Status(pb.StatusRequest(), timeout=SECONDS, wait_for_ready=True).status
            server.process.terminate()

            assert server.process.wait(SECONDS) == 0
    assert len(status.conditions) == 2
    assert path.is_socket()


def test_uncreatable_state_directory_is_a_single_error_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with running(tmp_path, f"--root-directory={tmp_path}/file/root") as server:
        assert server.process.wait(SECONDS) == 1
        assert server.process.stderr is not None
        [line] = server.process.stderr.read().splitlines()

    assert line.startswith(f"pydockershim: error: create the directory {tmp_path}/file/root: ")


def test_directory_of_other_programs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared/theirs").touch()

    with running(tmp_path, f"--root-directory={tmp_path}/shared") as server:
        assert server.process.wait(SECONDS) == 1
        assert server.process.stderr is not None
        [line] = server.process.stderr.read().splitlines()

    assert f"root_directory {tmp_path}/shared is not the server's own" in line
    assert mode_of(tmp_path / "shared") == 0o755


def test_server_accepts_its_own_state_directory(server: Server, tmp_path: Path) -> None:
    with grpc.insecure_channel(f"unix:{server.socket}") as channel:
        reported = pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr="10.244.7.0/24"))
        api.RuntimeServiceStub(channel).UpdateRuntimeConfig(pb.UpdateRuntimeConfigRequest(runtime_config=reported))
    server.process.kill()
    server.process.wait(SECONDS)
    (tmp_path / "root").chmod(0o755)

    with running(tmp_path) as again:
        again.line("serving")

    assert mode_of(tmp_path / "root") == 0o700


def test_open_files_limit_is_raised_as_far_as_allowed(tmp_path: Path) -> None:
    prefix = ["prlimit", "--nofile=256:4096"]
    with running(tmp_path, prefix=prefix) as server:
        server.line("serving")
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    assert line.split()[3:5] == ["4096", "4096"]


@pytest.mark.parametrize("umask", [0, 0o077, 0o777], ids=oct)
def test_umask_of_the_server_and_its_children_is_fixed(tmp_path: Path, umask: int) -> None:
    with running(tmp_path, umask=umask) as server:
        server.line("serving")
        pid = server.process.pid
        helpers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = {each: Path(f"/proc/{each}/status").read_text() for each in (str(pid), *helpers)}

    assert helpers
    assert {pid: text.partition("\nUmask:\t")[2][:4] for pid, text in found.items()} == dict.fromkeys(found, "0022")
    assert mode_of(tmp_path / "root") == 0o700


def test_invalid_credential_provider_prevents_the_start(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: one}]\n")
    flags = (f"--image-credential-provider-config={file}", f"--image-credential-provider-bin-dir={tmp_path}")
    with running(tmp_path, *flags) as server:
        assert server.process.wait(SECONDS) == 2
        assert server.process.stderr is not None
        said = server.process.stderr.read()
    assert f"image_credential_provider_config {file}: provider one: " in said
    assert "missing required field `matchImages`" in said


def test_metrics_are_served_if_set(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(tmp_path, f"--metrics-bind-addr={port}") as server:
        server.line("serving")
        with grpc.insecure_channel(f"unix:{server.socket}") as channel:
            api.RuntimeServiceStub(channel).Status(pb.StatusRequest(), timeout=SECONDS)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
            text = answer.read().decode()

    assert 'pydockershim_rpc_seconds_count{code="OK",method="Status"} 1.0' in text
    assert "pydockershim_view_up 0.0" in text


@pytest.mark.parametrize(
    ("flag", "condition", "event", "message"),
    [
        ("--metrics-bind-addr", "MetricsReady", "metrics are not served", "serve metrics at 127.0.0.1:{port}: "),
        (
            "--streaming-bind-addr",
            "StreamingAddressReady",
            "streams are served at another port",
            "listen for streaming on 127.0.0.1 port {port}: ",
        ),
    ],
)
def test_taken_ports_do_not_affect_pods(tmp_path: Path, flag: str, condition: str, event: str, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path, f"{flag}=127.0.0.1:{port}") as server:
            assert server.line(event)["level"] == "error"
            with grpc.insecure_channel(f"unix:{server.socket}") as channel:
                runtime = api.RuntimeServiceStub(channel)
                answer = runtime.Status(pb.StatusRequest(), timeout=SECONDS, wait_for_ready=True)

    [found] = [each for each in answer.status.conditions if each.type == condition]
    assert not found.status
    assert found.message.startswith(message.format(port=port))


def test_low_open_files_limit_is_logged_once(tmp_path: Path) -> None:
    with running(tmp_path, prefix=["prlimit", "--nofile=1000:1000"]) as server:
        line = server.line("limit of open files is low")

    assert (line["level"], line["limit"], line["wanted"]) == ("info", 1000, 65536)


def test_unlowered_oom_score_is_logged(tmp_path: Path) -> None:
    by_systemd = ["sh", "-c", 'echo 7 >/proc/self/oom_score_adj; SYSTEMD_EXEC_PID=$$ exec "$@"', "sh"]
    with running(tmp_path, prefix=by_systemd) as server:
        assert server.line("OOM score is not lowered")["oom_score_adj"] == 7


def test_oom_score_is_not_logged_without_a_unit(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.line("serving")
        server.process.terminate()
        events = [json.loads(text)["event"] for text in server._log]

    assert "stopping" in events
    assert "OOM score is not lowered" not in events


def test_sessions_are_limited_by_the_settings(rt: Runtime) -> None:
    settings = {"streaming_max_sessions": 2, "streaming_max_sessions_per_container": 1}
    rt = dataclasses.replace(rt, config=msgspec.structs.replace(rt.config, **settings))
    with contextlib.ExitStack() as open_ones:
        listener = listen(rt.config)
        where = listener.socket.getsockname()
        open_ones.enter_context(daemon._serve_streams(rt, listener, dump=StateDump()))
        found = []
        for pod in ("a", "a", "b", "c"):
            path = urlsplit(rt.stream_tokens.url_of(PortForwardTask(sandbox_id=SandboxId(pod), ports=()))).path
            client = open_ones.enter_context(socket.create_connection(where, timeout=SECONDS))
            head = f"POST {path} HTTP/1.1\r\nHost: {where[0]}:{where[1]}\r\n"
            client.sendall(f"{head}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n".encode())
            found.append(int(client.recv(12)[-3:]))

    assert found == [101, 503, 101, 503]
