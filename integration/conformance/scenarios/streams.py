"""exec, attach, cp, port-forward and logs, through kubectl."""

import gzip
import os
import pty
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.conformance.cluster import LOG_FILE_BYTES
from integration.conformance.scenario import Case, container, eventually, pod, scenario

_SECONDS = 60.0
_FIRST_WITH_INTERVAL = (1, 30)
"""First kubelet with containerLogMonitorInterval; before, it was fixed at 10 s."""
_SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


@scenario()
def exec_gives_output_and_exit_code(case: Case) -> None:
    """Stdout and stderr separately, and the exit code."""
    case.run(pod("p"))
    done = case.kubectl.try_to("exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.out, done.code) == ("out\n", 7)
    assert done.err.startswith("err\n"), done.err


@scenario()
def exec_takes_input(case: Case) -> None:
    """To the end of the input, over WebSocket and over SPDY."""
    case.run(pod("p"))
    text = "line\n" * 100_000
    for environ in ({}, _SPDY):
        done = _run(case, "exec", "-i", "p", "--", "wc", "-c", stdin=text.encode(), environ=environ)
        assert done.strip() == str(len(text)).encode(), done


@scenario()
def exec_has_a_terminal(case: Case) -> None:
    """With the size of the user's terminal, and its keys."""
    case.run(pod("p"))
    controller, terminal = pty.openpty()
    os.set_inheritable(terminal, True)
    words = case.kubectl.words("exec", "-it", "p", "--", "sh")
    with subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as child:
        os.close(terminal)
        seen = _Reader(controller)
        try:
            eventually(lambda: b"#" in seen.text)
            os.write(controller, b"test -t 0 && echo is a $((40 + 2)) terminal\n")
            eventually(lambda: b"is a 42 terminal" in seen.text, lambda: seen.text)
            os.write(controller, b"exit 5\n")
            assert child.wait(_SECONDS) == 5
        finally:
            child.kill()
    os.close(controller)


@scenario()
def attach_reaches_the_running_process(case: Case) -> None:
    """Typed text is the input of the process, and its output is shown."""
    case.run(pod("p", container("sh", "-c", "while read line; do echo got $line; done; sleep 3600", stdin=True)))
    words = case.kubectl.words("attach", "-i", "p")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        seen = _Reader(child.stdout.fileno())
        try:
            child.stdin.write(b"hello\n")
            child.stdin.flush()
            eventually(lambda: b"got hello\n" in seen.text, lambda: seen.text)
        finally:
            child.kill()
    assert case.logs("p") == "got hello\n"


@scenario()
def cp_copies_both_ways(case: Case) -> None:
    """A megabyte of random bytes, there and back."""
    case.run(pod("p"))
    there, back = (case.cluster.home / f"{case.namespace}-{name}" for name in ("there", "back"))
    there.write_bytes(os.urandom(1 << 20))
    case.kubectl("cp", str(there), "p:/tmp/copy")
    case.kubectl("cp", "p:/tmp/copy", str(back))
    assert back.read_bytes() == there.read_bytes()


@scenario()
def port_forward_reaches_a_port(case: Case) -> None:
    """Over WebSocket and over SPDY, with several successive connections over each forward."""
    listens = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    case.run(pod("p", container("httpd", "-f", "-p", "8080", "-h", "/var/www", readinessProbe=listens)))
    for environ in ({}, _SPDY):
        with _forwarding(case, "p", 8080, environ) as port:
            for _ in range(5):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=_SECONDS) as answer:
                    assert answer.read() == b"it works\n"


@scenario()
def logs_are_whole_and_in_order(case: Case) -> None:
    """Of a container that prints a lot and exits."""
    case.kubectl.apply(pod("p", container("seq", "1", "2000"), restartPolicy="Never"))
    eventually(lambda: case.phase("p") == "Succeeded")
    assert case.logs("p").split() == [str(number) for number in range(1, 2001)]
    assert case.logs("p", "--tail=2") == "1999\n2000\n"
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z 2000\n", case.logs("p", "--tail=1", "--timestamps"))


@scenario()
def logs_can_be_followed(case: Case) -> None:
    """To the end of the container."""
    case.kubectl.apply(
        pod("p", container("sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 1; done"), restartPolicy="Never")
    )
    eventually(lambda: case.phase("p") in ("Running", "Succeeded"))
    assert case.logs("p", "--follow") == "1\n2\n3\n4\n5\n"


@scenario()
def logs_are_rotated_without_a_loss(case: Case) -> None:
    """The kubelet limits their size; every line is in one of the files, in order."""
    line = "x" * 200
    lines = 6 * LOG_FILE_BYTES // len(line)
    command = f"i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i {line}; sleep 0.02; done; sleep 3600"
    case.kubectl.apply(pod("p", container("sh", "-c", command)))
    eventually(lambda: _logged(case) == list(range(1, lines + 1)), lambda: [path.name for path in _log_files(case)])
    assert len(_log_files(case)) > (2 if case.cluster.kubelet_version >= _FIRST_WITH_INTERVAL else 1)


def _logged(case: Case) -> list[int]:
    """Return the numbers in all files of the log, oldest file first."""
    try:
        texts = [
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for path in _log_files(case)
        ]
    except FileNotFoundError:
        return []  # a file was compressed just now
    return [int(line.split()[3]) for text in texts for line in text.splitlines()]


def _log_files(case: Case) -> list[Path]:
    uid = case.pod("p").get("metadata", {}).get("uid", "")
    found = case.cluster.pod_logs.glob(f"{case.namespace}_p_{uid}/main/0.log*")
    whole = [path for path in found if path.suffix != ".tmp"]
    return sorted(whole, key=lambda path: (path.name == "0.log", path.name))


def _run(case: Case, *arguments: str, stdin: bytes, environ: dict[str, str]) -> bytes:
    done = subprocess.run(
        case.kubectl.words(*arguments),
        check=False,
        input=stdin,
        capture_output=True,
        timeout=_SECONDS * 2,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def _forwarding(case: Case, name: str, port: int, environ: dict[str, str]) -> Iterator[int]:
    words = case.kubectl.words("port-forward", "--address=127.0.0.1", name, f":{port}")
    env = {**os.environ, **environ}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as child:
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+) ->", line)
            assert found is not None, line
            yield int(found[1])
        finally:
            child.kill()


class _Reader:
    """Collects the bytes from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.text = b""
        threading.Thread(target=self._read, args=(descriptor,), name="reader", daemon=True).start()

    def _read(self, descriptor: int) -> None:
        try:
            while data := os.read(descriptor, 65536):
                self.text += data
        except OSError:
            return  # the last user of the terminal has gone
