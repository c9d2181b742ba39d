"""The node image, and a cluster of it: `make kind-image`, `make kind-demo`.

python -m integration.kind.demo image   build the image on a node image of kind
python -m integration.kind.demo run     create a cluster of it, run a freshly built image, call it, and clean up
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.node.commands import NodeError, tail
from integration.node.packages import BUSYBOX, ensure_unpacked

NODE = "kindest/node:v1.36.2"
IMAGE = "pydockershim/node"
CLUSTER = "pydockershim-demo"
APP = "pydockershim-demo/app:1"
PAGE = "hello from a pod on Docker, in kind"

_CHECKOUT = Path(__file__).parents[2]
_WHEELS = _CHECKOUT / "build/kind/wheels"
_HEARTBEAT_SECONDS = 10.0
_SECONDS = 900
_CONTEXT = f"kind-{CLUSTER}"
_APP = """\
FROM scratch
COPY busybox /busybox
COPY index.html /www/index.html
ENTRYPOINT ["/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"]
"""


class Steps:
    """Runs commands, and prints the duration of each and its progress."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self._number = 0

    def command(self, title: str, *words: str, cwd: Path | None = None) -> str:
        """Run a command to its end and return its output; raise NodeError with the end of the output if it fails."""
        with self._timed(title):
            done = subprocess.run(
                words, cwd=cwd, env=self._environ, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
            if done.returncode != 0:
                said = tail(done.stdout + done.stderr)
                raise NodeError(f"{' '.join(words)}: exit status {done.returncode}\n{said}")
        return done.stdout

    @contextmanager
    def _timed(self, title: str) -> Iterator[None]:
        self._number += 1
        began = time.monotonic()
        over = threading.Event()

        def report_progress() -> None:
            while not over.wait(_HEARTBEAT_SECONDS):
                print(f"     ... {title} ({time.monotonic() - began:.0f} s)", flush=True)

        threading.Thread(target=report_progress, name="progress", daemon=True).start()
        try:
            yield
        finally:
            over.set()
        print(f"{self._number:3}  {title:<58} {time.monotonic() - began:6.1f} s", flush=True)


def main() -> int:
    """Run one of the verbs, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m integration.kind.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("verb", choices=["image", "run"])
    parser.add_argument("--node", default=NODE, help=f"node image of kind to build on ({NODE})")
    parser.add_argument("--bin", default="", help="directory with kind and kubectl, searched before the PATH")
    parser.add_argument(
        "--wheels",
        type=Path,
        help="directory with the wheels of pydockershim and its dependencies (pip wheel --wheel-dir DIR .), made by "
        "the Python version of the node image; if that image has Docker and Python, no network is needed",
    )
    given = parser.parse_args()
    path = os.pathsep.join(filter(None, [given.bin, os.environ["PATH"]]))
    steps = Steps({**os.environ, "PATH": path})
    try:
        if given.verb == "image":
            _check_programs(["docker"], path)
            build_image(steps, node=given.node, wheels=given.wheels)
        else:
            _check_programs(["docker", "kind", "kubectl"], path)
            _demo(steps, node=given.node, wheels=given.wheels)
    except NodeError as cause:
        print(f"kind: {cause}", file=sys.stderr)
        return 1
    return 0


def missing_programs(names: Sequence[str], path: str) -> list[str]:
    """Return the programs that are not on the search path."""
    return [name for name in names if shutil.which(name, path=path) is None]


def _check_programs(names: Sequence[str], path: str) -> None:
    if missing := missing_programs(names, path):
        raise NodeError(f"not on the PATH: {', '.join(missing)} (BIN=directory adds one)")


def build_image(steps: Steps, *, node: str, wheels: Path | None) -> None:
    """Build the node image of this checkout, or without a network from `wheels`."""
    shutil.rmtree(_WHEELS, ignore_errors=True)
    alone = []
    if wheels is not None:
        if not list(wheels.glob("pydockershim-*.whl")):
            raise NodeError(f"{wheels} has no wheel of pydockershim: pip wheel --wheel-dir {wheels} .")
        shutil.copytree(wheels, _WHEELS)
        alone = ["--network", "none", "--build-arg", "PIP_NO_INDEX=1"]
    else:
        # Uses the setuptools of .venv, which would otherwise be fetched each time.
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
        pip = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(_WHEELS), str(_CHECKOUT)]
        steps.command("wheel of this checkout", *pip)
    words = ["docker", "build", "--target", "kind-node", "--build-arg", f"NODE={node}", *alone, "--tag", IMAGE, "."]
    steps.command(f"image {IMAGE} on {node}", *words, cwd=_CHECKOUT)


def _demo(steps: Steps, *, node: str, wheels: Path | None) -> None:
    if not steps.command(f"look for image {IMAGE}", "docker", "images", "--quiet", IMAGE).strip():
        build_image(steps, node=node, wheels=wheels)
    if CLUSTER in steps.command("list clusters", "kind", "get", "clusters").split():
        raise NodeError(f"cluster {CLUSTER} already exists: kind delete cluster --name {CLUSTER}")
    undo: list[Callable[[], object]] = []
    try:
        undo.append(lambda: steps.command("delete the cluster", "kind", "delete", "cluster", "--name", CLUSTER))
        config = str(_CHECKOUT / "packaging/kind/cluster.yaml")
        create = ["kind", "create", "cluster", "--name", CLUSTER, "--image", IMAGE, "--config", config, "--wait", "3m"]
        steps.command("create a cluster of one node, and wait until it is Ready", *create)
        undo.append(lambda: steps.command("remove the image", "docker", "rmi", "--force", APP))
        _run_app(steps)
    finally:
        for action in reversed(undo):
            action()


def _run_app(steps: Steps) -> None:
    with tempfile.TemporaryDirectory(prefix="pydockershim-kind-") as scratch:
        context = Path(scratch)
        shutil.copy(ensure_unpacked(BUSYBOX).root / "bin/busybox", context)
        (context / "index.html").write_text(f"{PAGE}\n")
        (context / "Dockerfile").write_text(_APP)
        steps.command("docker build a small web server", "docker", "build", "--tag", APP, scratch)
    steps.command("kind load the image into the node", "kind", "load", "docker-image", APP, "--name", CLUSTER)
    kubectl = ["kubectl", "--context", _CONTEXT]
    # A controller creates the account, possibly after the node is Ready; without it a pod is refused.
    account = [*kubectl, "wait", "serviceaccount/default", "--for=create", "--timeout=60s"]
    steps.command("wait for the default service account", *account)
    create = [*kubectl, "run", "app", f"--image={APP}", "--port=8080", "--expose"]
    steps.command("create a pod and a Service", *create)
    ready = [*kubectl, "wait", "pod/app", "--for=condition=Ready", "--timeout=120s"]
    steps.command("wait until the pod is Ready", *ready)
    proxied = [*kubectl, "get", "--raw", "/api/v1/namespaces/default/pods/app:8080/proxy/"]
    page = steps.command("call the pod", *proxied)
    if PAGE not in page:
        raise NodeError(f"the pod answered {page!r}")
    print(f"     {page.strip()}")
    there = steps.command("docker ps in the node", "docker", "exec", f"{CLUSTER}-control-plane", "docker", "ps")
    print("\n".join(f"     {line}" for line in there.splitlines() if "k8s_app" in line))


if __name__ == "__main__":
    sys.exit(main())
