"""The Debian package on fresh machines of Debian 12 and 13, as docs/install.md says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.cri import container_config, pod_config
from integration.node.commands import run
from integration.node.images import BUSYBOX, Image, busybox_image
from integration.node.isolation import Node
from integration.packages.conftest import Packages
from integration.packages.fresh.machine import Machine, booted
from integration.packages.fresh.roots import SUITES
from integration.waiting import wait_until
from shim import __version__
from shim.api.v1 import api_pb2 as pb

UNITS = ("pydockershim.socket", "pydockershim.service")
NEWER = f"{__version__}+newer"
_SECONDS = 300


@pytest.fixture(scope="module", params=SUITES)
def machine(request: pytest.FixtureRequest, node: Node) -> Iterator[Machine]:
    """A fresh machine, on an engine of its own."""
    engine = make_engine(node, "28", variant=f"fresh-{request.param}")
    engine.start()
    try:
        with booted(engine, request.param) as made:
            yield made
    finally:
        engine.close()


@pytest.fixture(scope="module")
def newer(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package under a newer version."""
    directory = tmp_path_factory.mktemp("newer")
    run(["dpkg-deb", "--raw-extract", packages.one("*.deb"), directory / "tree"], timeout=_SECONDS)
    control = directory / "tree/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {NEWER}\n"))
    package = directory / "pydockershim_newer.deb"
    run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", directory / "tree", package], timeout=_SECONDS)
    return package


def assert_runs_on(machine: Machine, container: str) -> None:
    """A server of another version shows the container as before, and reaches it."""
    wait_until(lambda: machine.tried("systemctl", "is-active", *UNITS)[0] == 0)
    with machine.cri() as cri:
        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
        assert cri.exec(container, "hostname").exit_code == 0
    assert machine.tried("pydockershim", "doctor")[0] == 0


@pytest.mark.timeout(1800)
def test_one_package_makes_a_node_outlives_upgrade_and_downgrade_and_leaves_nothing(
    machine: Machine, packages: Packages, newer: Path, node: Node, pause_image: Image
) -> None:
    machine.load(pause_image, busybox_image(node.busybox))
    files, mounts = machine.files(), machine.mounts()

    machine.run("apt-get", "install", "--yes", machine.put(packages.one("*.deb")))
    machine.run("pydockershim", "install", "--docker", "--cni", "10-bridge")

    for unit in UNITS:
        assert machine.run("systemctl", "is-active", unit).strip() == "active"
    wait_until(lambda: machine.tried("pydockershim", "doctor")[0] == 0)
    config = pod_config("fresh", log_directory="/var/log/pods/fresh")
    with machine.cri() as cri:
        pod = cri.run(config)
        process = container_config("main", image=BUSYBOX, command=["sleep", "86400"])
        container = cri.create(pod, process, pod=config)
        cri.start(container)
        assert cri.exec(container, "hostname").exit_code == 0
        assert cri.sandbox_status(pod).network.ip

    machine.run("apt-get", "install", "--yes", machine.put(newer))

    assert NEWER in machine.run("dpkg-query", "--show", "pydockershim")
    assert_runs_on(machine, container)

    machine.run("apt-get", "install", "--yes", "--allow-downgrades", machine.put(packages.one("*.deb")))

    assert NEWER not in machine.run("dpkg-query", "--show", "pydockershim")
    assert_runs_on(machine, container)
    with machine.cri() as cri:
        refused, words = machine.tried("pydockershim", "uninstall")
        assert refused == 1
        assert "crictl rmp --all --force" in words
        cri.stop(pod)
        cri.remove(pod)

    machine.run("apt-get", "purge", "--yes", "pydockershim")

    assert machine.files() ^ files == set()
    assert machine.mounts() - mounts == set()
    assert machine.tried("test", "-e", "/run/cri-dockerd.sock")[0] != 0
    assert "pydockershim" not in machine.run("systemctl", "list-units", "--all", "--plain")
    assert "pydockershim" not in machine.run("systemctl", "list-unit-files")
