"""A real pod over the CRI socket, with the duration of each step. `make demo` prepares the machine.

With `--serve` the server runs in the foreground instead, and the commands to use it are printed: `make run`.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import docker

from integration.cri import Cri, connected, container_config, pod_config
from integration.node.commands import run_foreground
from integration.node.host import OWN_CONF_DIR, SOCKET
from integration.node.images import BUSYBOX
from integration.node.outside import outside
from integration.server import Server
from shim.api.v1 import api_pb2 as pb

T = TypeVar("T")

NETNS = Path("/run/netns")
LEASES = Path("/var/lib/cni/networks")

UID = f"demo-{os.getpid()}"
PORT = 8080
PAGE = "hello from a pod on Docker"
WEB_SERVER = f"mkdir -p /www && echo '{PAGE}' > /www/index.html && exec httpd -f -p {PORT} -h /www"
ANSWER_SECONDS = 10.0


class Steps:
    """Runs steps and prints the result and duration of each."""

    def __init__(self) -> None:
        self._number = 0

    def run(self, title: str, action: Callable[[], T], *, describe: Callable[[T], str] = lambda _: "") -> T:
        """Run a step and print its line; `describe` formats the result."""
        self._number += 1
        began = time.monotonic()
        result = action()
        took = (time.monotonic() - began) * 1000
        print(f"{self._number:3}  {title:<42} {took:7.0f} ms  {describe(result)}".rstrip(), flush=True)
        return result


def main() -> int:
    """Run the demo, or with --serve the server."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo", description=__doc__)
    parser.add_argument(
        "--serve", action="store_true", help="run the server in the foreground, for crictl and the kubelet"
    )
    given, flags = parser.parse_known_args()
    if given.serve:
        return _serve(flags)
    if flags:
        parser.error(f"the demo takes no flags of the server: {' '.join(flags)}")
    return _demo()


def _demo() -> int:
    with tempfile.TemporaryDirectory(prefix="pydockershim-demo-") as directory:
        home = Path(directory)
        settings = {"root-directory": home / "state"}
        if OWN_CONF_DIR.is_dir():
            settings["cni-conf-dir"] = OWN_CONF_DIR
        server = Server(settings, socket=home / "cri.sock", log=home / "server.log")
        server.start()
        try:
            with connected(server.socket) as cri:
                left = _left_behind(_drive(cri, home), home)
        except BaseException:
            print(server.daemon.log_tail(), file=sys.stderr)
            raise
        finally:
            server.stop()
    if left or server.socket.exists():
        print(f"left behind: {', '.join(left) or server.socket}", file=sys.stderr)
        return 1
    print("The pod is gone with its containers, network namespace, address and state; the socket is gone too.")
    return 0


def _left_behind(pod: str, home: Path) -> list[str]:
    """Return what is left of the pod; other pods of the machine may come and go meanwhile."""
    client = docker.APIClient(base_url=f"unix://{SOCKET}", version="auto")
    try:
        found = client.containers(all=True, filters={"label": f"io.kubernetes.pod.uid={UID}"})
    finally:
        client.close()
    leases = [path for path in LEASES.glob("*/*") if pod in path.read_text(errors="replace")]
    files = [path for path in (home / "state").rglob("*") if pod in path.name]
    pins = list(NETNS.glob(f"*{pod}*"))
    return [f"container {row['Id']}" for row in found] + [str(path) for path in (*leases, *files, *pins)]


def _serve(flags: Sequence[str]) -> int:
    endpoint = "unix:///run/cri-dockerd.sock"
    print(
        f"\nServing the CRI on {endpoint}. In another terminal:\n"
        f"  crictl --runtime-endpoint {endpoint} info\n"
        f"  crictl --runtime-endpoint {endpoint} pods\n"
        f"  kubelet --container-runtime-endpoint={endpoint} ...\n"
        "Ctrl-C ends the server.\n",
        flush=True,
    )
    return run_foreground([sys.executable, "-m", "shim", "serve", f"--container-runtime-endpoint={endpoint}", *flags])


def _drive(cri: Cri, home: Path) -> str:
    """Run the pod through its life, and return its id."""
    steps = Steps()
    config = pod_config("demo", uid=UID, log_directory=str(home / "logs"))
    steps.run("Version", lambda: cri.runtime.Version(pb.VersionRequest()), describe=_version)
    steps.run("Status", lambda: cri.runtime.Status(pb.StatusRequest()), describe=_conditions)
    pod = steps.run("RunPodSandbox", lambda: cri.run(config), describe=_short)
    try:
        address = steps.run("PodSandboxStatus", lambda: cri.sandbox_status(pod).network.ip)
        print(f"     the pod has the address {address}")
        web = container_config("web", image=BUSYBOX, command=["sh", "-c", WEB_SERVER])
        container = steps.run("CreateContainer", lambda: cri.create(pod, web, pod=config), describe=_short)
        steps.run("StartContainer", lambda: cri.start(container))
        steps.run(
            "ExecSync: hostname", lambda: cri.exec(container, "hostname"), describe=lambda r: r.stdout.decode().strip()
        )
        steps.run(f"GET http://{address}:{PORT}/", lambda: _get(address), describe=lambda page: page)
        with outside(home / "outside") as url:
            steps.run(f"from the pod: GET {url}", lambda: _fetched(cri, container, url), describe=lambda page: page)
        steps.run("UpdateContainerResources: 128 MiB", lambda: _limit_memory(cri, container), describe=_mebibytes)
        steps.run("StopContainer", lambda: cri.stop_container(container, timeout=0))
        steps.run("RemoveContainer", lambda: cri.remove_container(container))
    finally:
        steps.run("StopPodSandbox", lambda: cri.stop(pod))
        steps.run("RemovePodSandbox", lambda: cri.remove(pod))
    return pod


def _fetched(cri: Cri, container: str, url: str) -> str:
    """Fetch a page of another host from the pod; with nc, because wget of a static busybox crashes there."""
    address, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    words = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | timeout {ANSWER_SECONDS:.0f} nc {address} {port}"
    answer = cri.exec(container, "sh", "-c", words)
    page = answer.stdout.decode().partition("\r\n\r\n")[2].strip()
    if not page:
        raise RuntimeError(f"the pod cannot reach {url}: {answer}")
    return page


def _version(answer: pb.VersionResponse) -> str:
    return f"{answer.runtime_name} {answer.runtime_version}"


def _conditions(answer: pb.StatusResponse) -> str:
    return ", ".join(f"{c.type}={str(c.status).lower()}" for c in answer.status.conditions)


def _short(identity: str) -> str:
    return identity[:12]


def _mebibytes(limit: int) -> str:
    return f"{limit >> 20} MiB in force"


def _limit_memory(cri: Cri, container: str) -> int:
    limits = pb.LinuxContainerResources(memory_limit_in_bytes=128 << 20)
    cri.runtime.UpdateContainerResources(pb.UpdateContainerResourcesRequest(container_id=container, linux=limits))
    return cri.container_status(container).resources.linux.memory_limit_in_bytes


def _get(address: str) -> str:
    """Fetch the page; retry while the web server is starting."""
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            with socket.create_connection((address, PORT), timeout=ANSWER_SECONDS) as connection:
                connection.sendall(f"GET / HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                answer = connection.makefile("rb").read()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)  # no event shows when httpd listens
        else:
            return answer.partition(b"\r\n\r\n")[2].decode().strip()


if __name__ == "__main__":
    sys.exit(main())
