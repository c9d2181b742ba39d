"""A pod with the oldest libraries that pyproject.toml allows, and with the newest, which packages bundle."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.conftest import Images, NodeDirs, serving
from integration.cri import container_config, pod_config
from integration.networks import BRIDGE, bridge, conflist
from integration.node.commands import run
from integration.node.engine import Engine, own_link
from integration.pins import LAST_PYTHON, lowest, lowest_wheels
from release.bundle import LOCK, fetch_bundle, this_machine, wheels_for
from release.python_dist import build_wheel
from release.source import copied_source
from shim.api.v1 import api_pb2 as pb

_SECONDS = 300


def newest() -> list[str]:
    return [line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line and not line.startswith("#")]


def names(requirements: Sequence[str]) -> set[str]:
    return {line.partition("==")[0].lower().replace("_", "-") for line in requirements}


@pytest.fixture(scope="module", params=["lowest", "newest"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the server and the oldest or the newest libraries."""
    if request.param == "newest":
        wheels = wheels_for(fetch_bundle([this_machine()]), this_machine(), f"3.{sys.version_info.minor}")
        wanted = newest()
    elif sys.version_info[:2] <= LAST_PYTHON:
        wheels, wanted = lowest_wheels(), lowest()
    else:
        pytest.skip("the oldest grpcio has wheels up to CPython 3.11")
    home = tmp_path_factory.mktemp(request.param)
    wheel = build_wheel(copied_source(home / "source"), home)
    place = home / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", place], timeout=_SECONDS)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin/python",
        "install",
        "--quiet",
        "--no-index",
    ]
    run([*pip, "--find-links", wheels, wheel, *wanted], timeout=_SECONDS)
    there = run([*pip[:5], "freeze"], timeout=_SECONDS).splitlines()
    assert names(wanted) <= names(there)
    return place / "bin/python"


def test_a_pod_runs_with_the_oldest_and_the_newest_libraries(
    installed: Path, engine: Engine, images: Images, node_dirs: NodeDirs
) -> None:
    (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(node_dirs.cni_leases)))
    program = (str(installed), "-I", "-m", "shim")

    with own_link(BRIDGE), serving(engine, node_dirs, program) as served:
        cri = served.cri
        config = pod_config("pins", log_directory=str(node_dirs.logs))
        pod = cri.run(config)
        process = container_config("main", image=images.busybox, command=["sleep", "86400"])
        container = cri.create(pod, process, pod=config)
        cri.start(container)

        assert cri.exec(container, "echo", "said").stdout == b"said\n"
        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
        assert cri.sandbox_status(pod).network.ip
        imported = Path(f"/proc/{served.server.daemon.pid}/maps").read_text()
        assert str(installed.parents[1]) in imported
