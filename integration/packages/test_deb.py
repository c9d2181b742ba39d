"""The Debian package, installed by dpkg into the root of a machine that is not running."""

import re
import shutil
from pathlib import Path

import pytest

from integration.packages.conftest import Packages, Root
from shim import __version__, share

CONFIG = "/etc/pydockershim/config.toml"
UNIT = "/usr/lib/systemd/system/pydockershim.service"
DOCUMENTATION = "usr/share/doc/pydockershim"
CNI = "/etc/cni/net.d/10-bridge.conflist"
OCI_RUNTIME = "/usr/libexec/pydockershim/oci-runtime"
WANTED = "/etc/systemd/system/multi-user.target.wants/pydockershim.service"

pytestmark = pytest.mark.timeout(900)  # the first test waits until the packages are built


@pytest.fixture
def deb(root: Root, packages: Packages) -> str:
    package = packages.one("*.deb")
    shutil.copyfile(package, root.path / "srv" / package.name)
    return f"/srv/{package.name}"


def test_install_upgrade_and_purge_leave_the_machine_unchanged(root: Root, deb: str) -> None:
    before = root.files()

    root.run("dpkg", "--install", deb)
    assert root.run("pydockershim", "version").splitlines()[0] == f"pydockershim {__version__}"
    assert "ExecStart=/usr/bin/pydockershim serve\n" in root.text(UNIT)
    assert "/run/cri-dockerd.sock" in root.text("/etc/crictl.yaml")
    assert (root.path / WANTED.removeprefix("/")).is_symlink()
    assert "cni_conf_dir" in root.run("pydockershim", "config")
    assert "pydockershim's OCI runtime: /srv must belong to root" in root.fails(
        OCI_RUNTIME, "--orders", "/srv", "create", "x"
    )
    for name in ("docs/install.md", "packaging/monitoring/alerts.yml", "cni_conf_examples/10-bridge.conflist"):
        assert (root.path / DOCUMENTATION / name).is_file()

    assert root.text(CONFIG) == share.configuration()
    (root.path / CONFIG.removeprefix("/")).write_text('log_level = "debug"\n')
    mine = root.path / "etc/pydockershim/conf.d/mine.toml"
    mine.write_text("shutdown_grace = 7\n")
    root.run("dpkg", "--install", deb)
    shown = root.run("pydockershim", "config").splitlines()
    assert [line.split() for line in shown if line.startswith(("log_level ", "shutdown_grace "))] == [
        ["shutdown_grace", "7", "file", "/etc/pydockershim/conf.d/mine.toml"],
        ["log_level", "debug", "file", CONFIG],
    ]

    root.run("dpkg", "--purge", "pydockershim")
    assert root.files() ^ before == {"etc/pydockershim", "etc/pydockershim/conf.d", "etc/pydockershim/conf.d/mine.toml"}


def test_a_removal_keeps_the_configuration_and_a_purge_deletes_it(root: Root, deb: str) -> None:
    before = root.files()
    root.run("dpkg", "--install", deb)
    root.run("pydockershim", "install", "--docker", "--cni", "10-bridge", "--no-start")
    kept = {path: root.text(path) for path in (CONFIG, "/etc/docker/daemon.json", "/etc/crictl.yaml", CNI)}

    root.run("dpkg", "--remove", "pydockershim")

    assert {path: root.text(path) for path in kept} == kept
    assert not (root.path / "usr/lib/pydockershim").exists()
    assert not (root.path / WANTED.removeprefix("/")).is_symlink()

    root.run("dpkg", "--purge", "pydockershim")

    assert root.files() ^ before == set()


def test_files_are_only_in_the_directories_of_the_package(root: Root, deb: str) -> None:
    listed = root.run("dpkg-deb", "--contents", deb)
    paths = {Path("/", line.split()[5]) for line in listed.splitlines()}

    of_shells = (
        "/usr/share/bash-completion/completions",
        "/usr/share/fish/vendor_completions.d",
        "/usr/share/man/man8",
        "/usr/share/zsh/vendor-completions",
    )
    own = (
        "/etc/pydockershim",
        "/usr/lib/pydockershim",
        "/usr/libexec/pydockershim",
        "/usr/share/doc/pydockershim",
        "/usr/lib/systemd/system",
    )
    allowed = (*own, *of_shells)
    outside = {path for path in paths if not any(path.is_relative_to(place) for place in allowed)}
    assert {path for path in outside if not any(path in Path(place).parents for place in allowed)} == {
        Path("/usr/bin"),
        Path("/usr/bin/pydockershim"),
    }
    assert {path.name for path in paths if path.match("/usr/lib/systemd/system/*")} == {
        "pydockershim.service",
        "pydockershim.socket",
        "pydockershim.service.d",
        "pydockershim-exec.service",
        "pydockershim-exec.socket",
    }


def test_a_python_without_bundled_libraries_is_reported(root: Root, deb: str) -> None:
    root.run("dpkg", "--install", deb)
    launcher = root.path / "usr/lib/pydockershim/bin/pydockershim"
    launcher.write_text(launcher.read_text().replace("'3.11', ", ""))

    assert "built for CPython 3.12, 3.13, 3.14, but /usr/lib/pydockershim/bin/python3 is 3.11" in root.fails(
        "pydockershim", "version"
    )


def test_used_system_libraries_are_in_the_dependencies(root: Root, deb: str) -> None:
    root.run("dpkg", "--install", deb)
    own = (path for path in root.files() if path.startswith("usr/lib/pydockershim/"))
    compiled = [f"/{path}" for path in own if path.endswith(".so")]
    assert compiled

    used = set(re.findall(r"^\t(\S+) => /", root.run("ldd", *compiled), flags=re.MULTILINE))

    assert "libstdc++.so.6" in used
    owners = {root.run("dpkg-query", "--search", f"*/{name}").partition(":")[0] for name in used}
    named = re.findall(r"([a-z0-9+-]+) \(", root.run("dpkg-deb", "--field", deb, "Depends"))
    # GCC's library comes with the C++ library.
    assert owners - {"libgcc-s1"} <= set(named)
