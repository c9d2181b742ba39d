"""Release builds: RPM, single file and bill of materials for both architectures, and reproducibility."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.packages.conftest import Root
from release.build import KINDS, build_into
from release.bundle import MACHINES
from release.publish import checksums
from shim import __version__

LINK = "usr/local/bin/pydockershim"
OTHER_MACHINE = "aarch64"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("released") / "made"
    build_into(directory, KINDS, list(MACHINES.values()))
    return directory


@pytest.fixture
def placed(root: Root, released: Path) -> Path:
    shutil.copytree(released, root.path / "srv/released")
    return Path("/srv/released")


def test_a_release_has_each_kind_for_each_machine(released: Path) -> None:
    assert {path.name for path in released.iterdir()} == {
        f"pydockershim-{__version__}-py3-none-any.whl",
        f"pydockershim-{__version__}.tar.gz",
        "LICENCES.txt",
        *(f"pydockershim_{__version__}_{machine.deb}.deb" for machine in MACHINES.values()),
        *(f"pydockershim-{__version__}-1.{name}.rpm" for name in MACHINES),
        *(f"pydockershim-{__version__}-{name}.pyz" for name in MACHINES),
        *(f"pydockershim-{__version__}-{name}.cdx.json" for name in MACHINES),
    }


@pytest.mark.timeout(1800)
def test_a_second_build_gives_the_same_bytes(released: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"

    build_into(again, KINDS, list(MACHINES.values()))

    assert checksums(list(again.iterdir())) == checksums(list(released.iterdir()))


def test_the_bill_of_materials_lists_the_locked_libraries(released: Path) -> None:
    locked = {
        line.split("==")[0]
        for line in (Path(__file__).parents[2] / "packaging/bundle.txt").read_text().splitlines()
        if "==" in line
    }
    for name in MACHINES:
        bill = json.loads((released / f"pydockershim-{__version__}-{name}.cdx.json").read_text())
        listed = {component["name"].lower().replace("_", "-") for component in bill["components"]}
        assert listed - {"pydockershim"} == locked
        assert bill["metadata"]["component"]["name"] == "pydockershim"


def test_the_licences_of_all_libraries_are_included(released: Path) -> None:
    text = (released / "LICENCES.txt").read_text()

    for library in ("grpcio", "protobuf", "msgspec", "docker", "PyYAML"):
        assert f"\n{library} " in text


def test_an_rpm_installs_a_node_and_leaves_nothing(root: Root, placed: Path) -> None:
    package = str(placed / f"pydockershim-{__version__}-1.x86_64.rpm")
    root.run("rpm", "--initdb")
    before = {path for path in root.files() if not path.startswith("var/lib/rpm")}

    # Python and the C library of this machine are not RPMs.
    root.run("rpm", "--install", "--nodeps", package)
    assert root.run("pydockershim", "version").splitlines()[0] == f"pydockershim {__version__}"
    assert "/run/cri-dockerd.sock" in root.text("/etc/crictl.yaml")
    root.run("rpm", "--install", "--nodeps", "--replacepkgs", package)
    root.run("rpm", "--erase", "pydockershim")

    assert {path for path in root.files() if not path.startswith("var/lib/rpm")} ^ before == set()


def test_a_single_file_installs_a_node_and_leaves_nothing(root: Root, placed: Path) -> None:
    before = root.files()
    program = root.path / LINK
    shutil.copyfile(root.path / str(placed).removeprefix("/") / f"pydockershim-{__version__}-x86_64.pyz", program)
    program.chmod(0o755)

    root.run("pydockershim", "install", "--no-start")
    assert f"ExecStart=/{LINK} serve\n" in root.text("/etc/systemd/system/pydockershim.service")
    assert root.run("pydockershim", "version").splitlines()[0] == f"pydockershim {__version__}"
    root.run("pydockershim", "uninstall")

    assert root.files() ^ before == {LINK}


def test_a_single_file_names_its_architecture(root: Root, placed: Path) -> None:
    program = placed / f"pydockershim-{__version__}-{OTHER_MACHINE}.pyz"

    done = subprocess.run(["chroot", root.path, "python3", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith(f"pydockershim: error: this file is for {OTHER_MACHINE}, and this machine is x86_64")
