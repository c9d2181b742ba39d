"""A server in a separate process, with invalid settings and a socket passed like by systemd."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api

SECONDS = 60
PROVIDERS = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: one}]\n"
RIGHT = (
    "name: one, matchImages: [r.example], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1"
)


@dataclass
class Served:
    process: "subprocess.Popen[str]"
    path: Path
    notified: socket.socket

    def refusal(self) -> str:
        """Return the error of Version, which the kubelet calls first; wait like a kubelet."""
        with grpc.insecure_channel(f"unix:{self.path}") as channel, pytest.raises(grpc.RpcError) as caught:
            api.RuntimeServiceStub(channel).Version(pb.VersionRequest(), timeout=SECONDS, wait_for_ready=True)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        return str(caught.value.details())

    def status(self) -> pb.RuntimeStatus:
        """Return Status of a working server; repeat the call while it is refused, like a kubelet."""
        until = time.monotonic() + SECONDS
        while True:
            with grpc.insecure_channel(f"unix:{self.path}") as channel:
                stub = api.RuntimeServiceStub(channel)
                try:
                    return stub.Status(pb.StatusRequest(), timeout=SECONDS, wait_for_ready=True).status
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                        raise

    def line(self, event: str) -> dict[str, str]:
        """Return the next unread line of that event."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line: dict[str, str] = json.loads(text)
            if line["event"] == event:
                return line
        raise AssertionError(f"the server ended without {event!r}")

    def told_systemd(self, beginning: str) -> str:
        """Return the next unread notification with this prefix."""
        while True:
            text = self.notified.recv(4096).decode()
            if text.startswith(beginning):
                return text


@contextmanager
def serving(tmp_path: Path, *flags: str, program: Sequence[str] = ("-m", "shim")) -> Iterator[Served]:
    script = 'exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 WATCHDOG_PID=$$ WATCHDOG_USEC=2000000 exec "$@"'
    command = [
        *(sys.executable, *program, "serve", "--container-runtime-endpoint=fd://", "--log-format=json"),
        f"--docker-endpoint=unix://{tmp_path}/no-docker.sock",
        f"--root-directory={tmp_path}/root",
        f"--cni-conf-dir={tmp_path}/cni",
        *flags,
    ]
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(SECONDS)
        with subprocess.Popen(
            ["sh", "-c", script, "sh", *command],
            stdin=listener.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        ) as process:
            try:
                yield Served(process, tmp_path / "s", notified)
            finally:
                process.kill()


def test_clients_get_file_and_line_until_the_file_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('\nlog_levle = "debug"\n')
    with serving(tmp_path, f"--config={file}") as served:
        wrong = f"the settings of the server are wrong: file {file}, line 2: there is no setting 'log_levle'"
        assert served.refusal().startswith(wrong)
        assert served.line("wrong settings, refusing clients until they are corrected")["level"] == "error"
        assert "line 2: there is no setting" in served.told_systemd("READY=1\nSTATUS=Refuses")

        file.write_text('log_level = "loud"\n')
        assert served.line("wrong settings, refusing clients until they are corrected")["error"].startswith(
            f"file {file}, line 1: log_level 'loud' is not accepted"
        )
        assert f"file {file}, line 1: log_level 'loud'" in served.refusal()

        file.write_text('log_level = "debug"\n')
        assert [condition.type for condition in served.status().conditions] == ["RuntimeReady", "NetworkReady"]
        assert served.told_systemd("STATUS=") == "STATUS="
        assert served.told_systemd("READY=1") == "READY=1"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(SECONDS) == 0


def test_server_waits_for_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "later" / "config.toml"
    with serving(tmp_path, f"--config={file}") as served:
        assert f"file {file}: cannot be read: no such file" in served.refusal()

        file.parent.mkdir()
        file.write_text("")

        assert len(served.status().conditions) == 2


def test_server_waits_for_a_file_that_a_setting_names(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(PROVIDERS)
    flags = (f"--image-credential-provider-config={file}", f"--image-credential-provider-bin-dir={tmp_path}")
    program = tmp_path / "one"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with serving(tmp_path, *flags) as served:
        assert "missing required field `matchImages`" in served.refusal()

        file.write_text(PROVIDERS.replace("name: one", RIGHT))

        assert served.status().conditions


def test_server_starts_once_its_directory_is_private(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "of-others").touch()
    with serving(tmp_path) as served:
        assert served.refusal().startswith(f"the server cannot start: root_directory {root} is not the server's own")

        root.chmod(0o700)

        assert served.status().conditions


def test_server_starts_once_another_server_has_ended(tmp_path: Path) -> None:
    soon = "import shim.daemon.misconfigured as m, shim.cli; m.START_AGAIN_SECONDS = 1.0; shim.cli.main()"
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    with (root / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with serving(tmp_path, program=("-c", soon)) as served:
            assert served.refusal() == f"the server cannot start: root_directory {root} is in use by another server"
            assert (
                "in use by another server"
                in served.line("cannot start, refusing clients until the next attempt")["error"]
            )
            assert (
                "in use by another server"
                in served.line("cannot start, refusing clients until the next attempt")["error"]
            )

            fcntl.lockf(lock, fcntl.LOCK_UN)

            assert served.status().conditions


def test_watchdog_is_notified_while_waiting_and_stop_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("log_levle = 1\n")
    with serving(tmp_path, f"--config={file}") as served:
        served.told_systemd("READY=1")
        for _ in range(3):
            served.told_systemd("WATCHDOG=1")

        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(SECONDS) == -signal.SIGTERM


def test_clients_get_the_error_of_a_wrong_flag(tmp_path: Path) -> None:
    with serving(tmp_path, "--cni-conf-dirs=/etc") as served:
        wrong = "unrecognized arguments: --cni-conf-dirs=/etc, perhaps --cni-conf-dir"
        assert served.refusal() == f"the settings of the server are wrong: {wrong}"


@pytest.mark.parametrize("method", ["/runtime.v1.RuntimeService/GetContainerEvents", "/runtime.v1alpha2.Any/Thing"])
def test_every_rpc_is_refused_with_the_reason(tmp_path: Path, method: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text("log_levle = 1\n")
    with serving(tmp_path, f"--config={file}") as served, grpc.insecure_channel(f"unix:{served.path}") as channel:
        call = channel.unary_stream(method, lambda text: text, lambda text: text)
        with pytest.raises(grpc.RpcError, match="line 1: there is no setting") as caught:
            list(call(b"", timeout=SECONDS, wait_for_ready=True))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
