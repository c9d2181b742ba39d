"""The image of the Dockerfile, built on Debian packages without a network, and run as the file's header says."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.cri import connected, container_config, pod_config
from integration.kind.prepare import ensure_base
from integration.networks import BRIDGE, bridge, conflist
from integration.node.commands import run
from integration.node.engine import Engine, own_link, program
from integration.node.images import BUSYBOX, Image, busybox_image, load
from integration.node.isolation import Node
from integration.packages.fresh.roots import build_tools
from integration.waiting import wait_until
from release.bundle import fetch_bundle, this_machine, wheels_for
from release.source import CHECKOUT, copied_source
from shim.api.v1 import api_pb2 as pb

TEXT = (CHECKOUT / "Dockerfile").read_text()
BASE = "python:3.11-slim"
WHEELS = "/opt/wheels"
CONF = Path("/etc/cni/net.d")
PLUGINS = Path("/opt/cni/bin")
SOCKET = Path("/run/cri-dockerd.sock")
_SECONDS = 900


@pytest.fixture(scope="module")
def engine(node: Node, pause_image: Image) -> Iterator[Engine]:
    """An engine for this image alone, with the images of pods.

    Not 20.10, which gives privileged containers capabilities that some machines lack.
    """
    made = make_engine(node, "28", variant="image")
    made.start()
    try:
        for image in (pause_image, busybox_image(node.busybox)):
            load(made.api, image)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def cli(engine: Engine, node: Node) -> list[str]:
    return [str(program("docker", node.stable.path)), "--host", engine.url]


@pytest.fixture
def built(engine: Engine, cli: list[str], tmp_path: Path) -> str:
    with ensure_base().open("rb") as base:
        engine.api.import_image_from_data(base.read(), repository="base.test/python", tag="1")
    wheels = tmp_path / "base/wheels"
    shutil.copytree(wheels_for(fetch_bundle([this_machine()]), this_machine(), "3.11"), wheels)
    shutil.copytree(build_tools(), wheels, dirs_exist_ok=True)
    (tmp_path / "base/Dockerfile").write_text(
        f"FROM base.test/python:1\nCOPY wheels {WHEELS}\nRUN ln -s python3 /usr/bin/python\n"
    )
    build(cli, tmp_path / "base", "--tag", BASE)
    source = copied_source(tmp_path / "source")
    links = ("--build-arg", "PIP_NO_INDEX=1", "--build-arg", f"PIP_FIND_LINKS={WHEELS}")
    build(cli, source.tree, "--tag", "pydockershim", *links)
    return "pydockershim"


def build(cli: list[str], context: Path, *options: str) -> None:
    words = [*cli, "build", "--progress", "plain", "--network", "none", *options, "."]
    done = subprocess.run(
        words,
        cwd=context,
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def present(*directories: Path) -> Iterator[None]:
    """Create the missing directories of a node; remove them after the block."""
    made: list[Path] = []
    try:
        for directory in directories:
            for path in (*reversed(directory.parents), directory):
                if not path.exists():
                    path.mkdir()
                    made.append(path)
        yield
    finally:
        for path in reversed(made):
            path.rmdir()


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    run(["mount", "--bind", source, target], timeout=_SECONDS)
    try:
        yield
    finally:
        run(["umount", target], timeout=_SECONDS)


def words_of_the_header() -> list[str]:
    """Return the words of the command in the header, from `run` on, without the image."""
    command = re.search(r"#   docker (run .*?) pydockershim\n", TEXT, flags=re.DOTALL)
    assert command is not None
    return command[1].replace("\\\n#", "").split()


@pytest.mark.timeout(1800)
def test_the_command_in_the_header_runs_a_pod(engine: Engine, cli: list[str], built: str, node: Node) -> None:
    plugins = node.tools.root / "usr/lib/cni"
    CONF.mkdir(parents=True, exist_ok=True)
    conf = CONF / "10-pods.conflist"
    conf.write_text(conflist(bridge(Path("/var/lib/cni/pods"))))
    with present(PLUGINS, Path("/usr/lib/cni"), Path("/var/log/pods")), mounted(plugins, PLUGINS), own_link(BRIDGE):
        run([*cli, *words_of_the_header(), built, f"--docker-endpoint={engine.url}"], timeout=_SECONDS)
        try:
            wait_until(SOCKET.exists)
            run_pod()
            run([*cli, "stop", "pydockershim"], timeout=_SECONDS)
            assert engine.api.inspect_container("pydockershim")["State"]["ExitCode"] == 0
            assert not SOCKET.exists()
        finally:
            print(engine.api.logs("pydockershim").decode())
            engine.api.remove_container("pydockershim", force=True)
            conf.unlink()
            shutil.rmtree("/var/lib/pydockershim", ignore_errors=True)


def run_pod() -> None:
    with connected(SOCKET) as cri:
        wait_until(lambda: all(row.status for row in cri.runtime.Status(pb.StatusRequest()).status.conditions))
        config = pod_config("image")
        pod = cri.run(config)
        process = container_config("main", image=BUSYBOX, command=["sleep", "86400"])
        container = cri.create(pod, process, pod=config)
        cri.start(container)
        assert cri.exec(container, "echo", "said").stdout == b"said\n"
        assert cri.sandbox_status(pod).network.ip
        cri.stop(pod)
        cri.remove(pod)
        assert not cri.sandboxes()
