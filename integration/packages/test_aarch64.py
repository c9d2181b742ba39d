"""The packages for aarch64, installed into a root of that architecture and run by an emulator."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import Images, NodeDirs, make_node_dirs
from integration.cri import HOST_NETWORK, connected, container_config, pod_config
from integration.node.commands import run
from integration.node.engine import Engine
from integration.node.isolation import HOME, Node, new_home
from integration.node.mounts import unmount_all
from integration.packages.aarch64 import MACHINE, PYTHON, Emulated, unpacked_root, why_not
from integration.server import Server
from integration.waiting import wait_until
from release.build import build_into
from release.source import copied_source
from shim import __version__
from shim.api.v1 import api_pb2 as pb

SINGLE_FILE = f"pydockershim-{__version__}-{MACHINE.name}.pyz"
DEB = f"pydockershim_{__version__}_{MACHINE.deb}.deb"

UNIT_TESTS = (
    "tests/api/test_wire.py",
    "tests/base",
    "tests/checkpoint",
    "tests/config",
    "tests/credentials",
    "tests/cri",
    "tests/spec",
)
"""Tests of code that uses compiled libraries: messages, JSON and TOML, calls over a socket."""

NOT_HERE = (
    # The tracing library is not in the package.
    "--ignore=tests/cri/test_tracing.py",
    # This test switches to another user, which a namespace with one user does not have.
    "--deselect=tests/config/test_load.py::test_unreadable_default_file_is_reported",
    # The emulator does not implement mount_setattr(2).
    "--ignore=tests/spec/test_read_only.py",
    # Their deadlines are too short for an emulator.
    "--ignore=tests/base/test_spawn.py",
    "--ignore=tests/credentials/test_store.py",
    "--ignore=tests/cri/test_event_order.py",
    "--ignore=tests/cri/test_server.py",
    "--ignore=tests/spec/test_host_calls.py",
)

_SECONDS = 1500


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """A root with the Debian package installed, and the single file in /srv."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("made") / "packages"
    build_into(made, ["deb", "pyz"], [MACHINE])
    place = tmp_path_factory.mktemp("aarch64")
    root = unpacked_root(place)
    for package in (DEB, SINGLE_FILE):
        shutil.copy(made / package, root.path / "srv")
    root.run("dpkg", "--install", f"/srv/{DEB}")
    yield root
    shutil.rmtree(root.path)


@pytest.mark.timeout(_SECONDS)
def test_the_debian_package_runs(root: Emulated) -> None:
    lines = root.run("pydockershim", "--version").splitlines()

    assert lines[0] == f"pydockershim {__version__}"
    assert any(line.startswith(f"Python {PYTHON}.") for line in lines)
    assert root.run("uname", "-m").strip() == MACHINE.name
    assert "/run/cri-dockerd.sock" in (root.path / "etc/crictl.yaml").read_text()
    assert "cni_conf_dir" in root.run("pydockershim", "config")


@pytest.mark.timeout(_SECONDS)
def test_doctor_reports_a_missing_docker(root: Emulated) -> None:
    code, output = root.tried("pydockershim", "doctor")

    assert code == 1
    assert "ok    user            root" in output
    assert "FAIL  pod network" in output
    assert "this is a fault of doctor" not in output


@pytest.mark.timeout(_SECONDS)
def test_the_single_file_unpacks_itself_and_runs(root: Emulated) -> None:
    lines = root.run("python3", f"/srv/{SINGLE_FILE}", "--version").splitlines()

    assert lines[0] == f"pydockershim {__version__}"
    assert any(line.startswith("grpcio ") for line in lines)


@pytest.fixture
def dirs(node: Node) -> NodeDirs:
    """Directories with the same path in the root."""
    return make_node_dirs(node, new_home("aarch64"))


@pytest.fixture
def server(root: Emulated, engine: Engine, dirs: NodeDirs) -> Iterator[Server]:
    """The server of the Debian package, on a real engine and with paths that the engine shares."""
    here = root.path / HOME.relative_to("/")
    here.mkdir(parents=True)
    run(["mount", "--bind", "--make-private", HOME, here], timeout=_SECONDS)
    settings = {
        "docker-endpoint": engine.url,
        "root-directory": dirs.state,
        "netns-directory": dirs.netns,
        "cni-conf-dir": dirs.cni_conf,
        "cni-cache-dir": dirs.cni_cache,
    }
    log = dirs.state.with_name("server.log")
    made = Server(settings, socket=dirs.socket, log=log, program=root.command("pydockershim"))
    try:
        made.start()
        yield made
        made.stop()
    finally:
        unmount_all(here)
        here.rmdir()


@pytest.mark.timeout(_SECONDS)
def test_the_server_runs_a_pod_on_the_network_of_the_node(server: Server, images: Images, dirs: NodeDirs) -> None:
    # A pod network needs privileges that the root user of a user namespace lacks.
    config = pod_config("emulated", linux=HOST_NETWORK, log_directory=str(dirs.logs))
    with connected(server.socket) as cri:
        assert cri.runtime.Version(pb.VersionRequest()).runtime_name == "docker"
        pod = cri.run(config)
        process = container_config("main", image=images.busybox, command=["sh", "-c", "echo said; sleep 3600"])
        process.log_path = "main.log"
        container = cri.create(pod, process, pod=config)
        cri.start(container)

        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
        assert cri.exec(container, "hostname").exit_code == 0
        wait_until(lambda: "stdout F said" in (dirs.logs / "main.log").read_text())

        cri.stop(pod)
        cri.remove(pod)
        assert cri.sandboxes() == []


@pytest.mark.timeout(_SECONDS)
def test_unit_tests_pass_with_the_libraries_of_the_package(root: Emulated, tmp_path: Path) -> None:
    source = copied_source(tmp_path / "source").tree
    # The installed package is tested, not the checkout.
    shutil.rmtree(source / "shim")
    shutil.copytree(source, root.path / "srv/source")
    script = 'cd /srv/source && exec /usr/lib/pydockershim/bin/python3 -m pytest -p no:cacheprovider "$@"'

    code, output = root.tried(
        *("sh", "-c", script, "sh", "-q", "--timeout=600", *UNIT_TESTS, *NOT_HERE),
        environ=[("PYTHONPATH", "/srv/tools"), ("PYTHONDONTWRITEBYTECODE", "1")],
        seconds=_SECONDS,
    )

    print(output.splitlines()[-1])
    assert code == 0, output[-10_000:]
