import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import shim.oci_runtime
from shim import share
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.install.install import Installation, Options
from shim.install.node import Node
from shim.install.record import PLACE
from tests.install.conftest import Tree

UNIT = "/etc/systemd/system/pydockershim.service"
CONFIG = "/etc/pydockershim/config.toml"
CRICTL = "/etc/crictl.yaml"
DAEMON = "/etc/docker/daemon.json"
OCI_RUNTIME = "/usr/libexec/pydockershim/oci-runtime"
RUNTIMES = {"pydockershim": {"path": OCI_RUNTIME, "runtimeArgs": ["--orders", "/var/lib/pydockershim/oci"]}}


def test_unit_runs_the_installing_program(tree: Tree) -> None:
    tree.install(command="/srv/venv/bin/pydockershim")

    assert "\nExecStart=/srv/venv/bin/pydockershim serve\n" in tree.text(UNIT)


def test_systemd_holds_the_socket(tree: Tree) -> None:
    tree.install()

    assert "ListenStream=/run/cri-dockerd.sock" in tree.text("/etc/systemd/system/pydockershim.socket")
    assert "fd://" in tree.text("/etc/systemd/system/pydockershim.service.d/socket-activation.conf")
    assert (
        tree.log.read_text()
        == f"--root={tree.root} --no-pager --quiet enable pydockershim.socket pydockershim.service\n"
    )


def test_the_configuration_is_that_of_every_release(tree: Tree) -> None:
    tree.install()

    assert tree.text(CONFIG) == share.configuration()
    assert Node(tree.root).at(Path("/etc/pydockershim/conf.d")).is_dir()


def test_conf_d_survives_upgrade_and_removal(tree: Tree) -> None:
    tree.install()
    tree.put("/etc/pydockershim/conf.d/mine.toml", 'log_level = "debug"\n')

    tree.install()
    tree.uninstall()

    assert tree.text("/etc/pydockershim/conf.d/mine.toml") == 'log_level = "debug"\n'
    assert not tree.has(CONFIG)


def test_crictl_asks_the_server(tree: Tree) -> None:
    tree.install()

    endpoint = Config().container_runtime_endpoint
    assert yaml.safe_load(tree.text(CRICTL)) == {
        "runtime-endpoint": endpoint,
        "image-endpoint": endpoint,
        "timeout": 10,
    }


def test_the_command_is_on_the_path(tree: Tree) -> None:
    tree.install(command="/srv/venv/bin/pydockershim")

    link = Node(tree.root).at(Path("/usr/local/bin/pydockershim"))
    assert str(link.readlink()) == "/srv/venv/bin/pydockershim"


def test_a_command_on_the_path_needs_no_link(tree: Tree) -> None:
    tree.install(command="/usr/local/bin/pydockershim")

    assert not tree.has("/usr/local/bin/pydockershim")


def test_cri_dockerd_names_are_installed_on_request(tree: Tree) -> None:
    before = tree.listing()

    tree.install(as_cri_dockerd=True, command="/usr/local/bin/pydockershim")

    link = Node(tree.root).at(Path("/usr/bin/cri-dockerd"))
    assert str(link.readlink()) == "/usr/local/bin/pydockershim"
    assert "Alias=cri-docker.service" in tree.text("/etc/systemd/system/pydockershim.service.d/as-cri-dockerd.conf")
    assert "Alias=cri-docker.socket" in tree.text("/etc/systemd/system/pydockershim.socket.d/as-cri-dockerd.conf")
    tree.uninstall()
    assert tree.listing() == before


@pytest.mark.parametrize("path", [CRICTL, CONFIG, "/etc/cni/net.d/10-bridge.conflist"])
def test_foreign_files_stay(tree: Tree, path: str) -> None:
    tree.put(path, "theirs\n")

    tree.install(cni="10-bridge")
    tree.uninstall()

    assert tree.text(path) == "theirs\n"


def test_edited_configuration_survives_upgrade_and_removal(tree: Tree) -> None:
    tree.install()
    tree.put(CONFIG, 'log_level = "debug"\n')

    tree.install()
    tree.uninstall()

    assert tree.text(CONFIG) == 'log_level = "debug"\n'
    assert not tree.has(UNIT)


def test_an_upgrade_replaces_the_unit(tree: Tree) -> None:
    tree.put(UNIT, "[Service]\nExecStart=/old serve\n")

    tree.install()

    assert "/old" not in tree.text(UNIT)


def test_dry_run_announces_the_same_and_does_nothing(tree: Tree) -> None:
    before = tree.listing()
    tree.install(docker=True, cni="10-bridge", dry=True)
    planned = list(tree.announced)
    assert tree.listing() == before
    assert not tree.log.exists()

    tree.announced.clear()
    tree.install(docker=True, cni="10-bridge")
    assert tree.announced == planned


def test_uninstall_leaves_nothing(tree: Tree) -> None:
    tree.put("/etc/docker/daemon.json", '{ "debug":true }')
    tree.put("/etc/hosts", "")
    before = tree.listing()

    tree.install(docker=True, cni="10-bridge")
    tree.install(docker=True, cni="10-bridge")
    tree.put("/var/lib/pydockershim/engine.json", "{}")
    tree.put(f"/var/lib/pydockershim/oci/{'ab' * 32}", "")
    assert tree.listing() != before
    tree.uninstall()

    now = tree.listing()
    assert {path: now[path] for path in now if not path.startswith("var")} == before
    assert not tree.has("/var/lib/pydockershim")


CNI = "/etc/cni/net.d/10-bridge.conflist"


def purge(tree: Tree) -> str:
    """Run the purge script on the node; return its output."""
    text = (Path(__file__).parents[2] / "packaging/scripts/purged.sh").read_text()
    words = ["unshare", "--mount", "sh", "-ec", f"mount --rbind {tree.root}/etc /etc\n{text}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_keep_configuration_removes_only_units_and_links(tree: Tree) -> None:
    tree.install(docker=True, cni="10-bridge", as_cri_dockerd=True)
    kept = {path: tree.text(path) for path in (DAEMON, CRICTL, CONFIG, CNI, OCI_RUNTIME)}

    tree.uninstall(keep_configuration=True)

    assert {path: tree.text(path) for path in kept} == kept
    assert not tree.has(UNIT)
    assert not tree.has("/etc/systemd/system/pydockershim.service.d")
    assert not tree.has("/usr/bin/cri-dockerd")


def test_later_uninstall_removes_the_kept_configuration(tree: Tree) -> None:
    tree.put(DAEMON, '{"debug": true}')
    before = tree.listing()
    tree.install(docker=True, cni="10-bridge")

    tree.uninstall(keep_configuration=True)
    tree.install()
    tree.uninstall()

    assert tree.listing() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("daemon", [None, '{ "debug":true }'])
def test_purge_removes_installed_files(tree: Tree, daemon: str | None) -> None:
    tree.put("/etc/hosts", "")
    if daemon is not None:
        tree.put(DAEMON, daemon)
    before = tree.listing()
    tree.put("/usr/lib/systemd/system/pydockershim.service", "[Service]\nExecStart=/usr/bin/pydockershim serve\n")
    tree.put(CONFIG, "of the package")
    tree.install(docker=True, cni="10-bridge", command="/usr/bin/pydockershim")

    tree.uninstall(keep_configuration=True)
    assert tree.has(CRICTL)
    purge(tree)

    now = tree.listing()
    assert {path: now[path] for path in now if path.startswith("etc")} == {
        **{path: before[path] for path in before if path.startswith("etc")},
        **{path: now[path] for path in ("etc/pydockershim", "etc/pydockershim/config.toml")},  # dpkg takes these
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_purge_keeps_changed_files(tree: Tree) -> None:
    tree.install(docker=True, cni="10-bridge")
    changed = {path: tree.text(path) + "\n" for path in (DAEMON, CRICTL, CNI)}
    for path, text in changed.items():
        tree.put(path, text)

    tree.uninstall(keep_configuration=True)
    said = purge(tree)

    assert {path: tree.text(path) for path in changed} == changed
    assert all(f"keep  {path}, which was changed after the installation\n" in said for path in changed)


def test_a_dry_uninstall_does_nothing(tree: Tree) -> None:
    tree.install(docker=True)
    before = tree.listing()

    tree.uninstall(dry=True)

    assert tree.listing() == before
    assert f"remove {UNIT}" in tree.announced


def test_foreign_state_stays(tree: Tree) -> None:
    tree.install()
    tree.put("/var/lib/pydockershim/theirs", "")

    tree.uninstall()

    assert tree.has("/var/lib/pydockershim/theirs")


def test_docker_keeps_its_other_settings(tree: Tree) -> None:
    tree.put(DAEMON, '{"log-level": "warn", "exec-opts": ["a=b"]}')

    tree.install(docker=True)

    assert json.loads(tree.text(DAEMON)) == {
        "log-level": "warn",
        "exec-opts": ["a=b", "native.cgroupdriver=systemd"],
        "live-restore": True,
        "runtimes": RUNTIMES,
    }


def test_chosen_cgroup_driver_stays(tree: Tree) -> None:
    text = json.dumps({"exec-opts": ["native.cgroupdriver=cgroupfs"], "live-restore": True, "runtimes": RUNTIMES})
    tree.put(DAEMON, text)

    tree.install(docker=True)

    assert tree.text(DAEMON) == text


def test_the_oci_runtime_is_a_program_for_this_interpreter(tree: Tree) -> None:
    old = os.umask(0o077)
    try:
        tree.install(docker=True)
    finally:
        os.umask(old)

    place = Node(tree.root).at(Path(OCI_RUNTIME))
    assert place.stat().st_mode & 0o777 == 0o755
    program = Path(shim.oci_runtime.__file__).with_name("__main__.py")
    assert f"exec {sys.executable} -IS {program} " in place.read_text()


def test_upgrade_replaces_the_installed_oci_runtime(tree: Tree) -> None:
    tree.install()
    assert not tree.has(OCI_RUNTIME)
    tree.install(docker=True)
    written = tree.text(OCI_RUNTIME)
    tree.put(OCI_RUNTIME, "of the version before")

    tree.install()

    assert tree.text(OCI_RUNTIME) == written


def test_packaged_oci_runtime_is_kept(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/pydockershim.service", "[Service]\nExecStart=/usr/bin/pydockershim serve\n")
    tree.put(OCI_RUNTIME, "of the package")

    tree.install(docker=True, command="/usr/bin/pydockershim")
    assert json.loads(tree.text(DAEMON))["runtimes"] == RUNTIMES
    tree.uninstall()

    assert tree.text(OCI_RUNTIME) == "of the package"
    assert not tree.has(DAEMON)


def test_foreign_runtimes_stay(tree: Tree) -> None:
    tree.put(DAEMON, '{"runtimes": {"kata": {"path": "/k"}}}')

    tree.install(docker=True)
    settings = json.loads(tree.text(DAEMON))
    assert settings["runtimes"] == {"kata": {"path": "/k"}, **RUNTIMES}
    settings["runtimes"]["nvidia"] = {"path": "/n"}
    tree.put(DAEMON, json.dumps(settings))
    tree.uninstall()

    assert json.loads(tree.text(DAEMON)) == {"runtimes": {"kata": {"path": "/k"}, "nvidia": {"path": "/n"}}}


def test_an_earlier_entry_of_the_same_name_comes_back(tree: Tree) -> None:
    tree.put(DAEMON, '{"runtimes": {"pydockershim": {"path": "/by/hand"}}}')

    tree.install(docker=True)
    settings = json.loads(tree.text(DAEMON))
    assert settings["runtimes"] == RUNTIMES
    tree.put(DAEMON, json.dumps({**settings, "debug": True}))
    tree.uninstall()

    assert json.loads(tree.text(DAEMON)) == {"runtimes": {"pydockershim": {"path": "/by/hand"}}, "debug": True}


def test_no_empty_runtimes_are_left_in_a_file_that_was_edited(tree: Tree) -> None:
    tree.install(docker=True)
    tree.put(DAEMON, json.dumps({**json.loads(tree.text(DAEMON)), "debug": True}))

    tree.uninstall()

    assert json.loads(tree.text(DAEMON)) == {"debug": True}


def test_docker_is_unchanged_unless_requested(tree: Tree) -> None:
    tree.install()

    assert not tree.has(DAEMON)


def test_edited_daemon_json_loses_only_the_settings(tree: Tree) -> None:
    tree.put(DAEMON, '{"exec-opts": ["a=b"]}')
    tree.install(docker=True)
    tree.put(DAEMON, json.dumps({**json.loads(tree.text(DAEMON)), "debug": True}))

    tree.uninstall()

    assert json.loads(tree.text(DAEMON)) == {"exec-opts": ["a=b"], "debug": True}


@pytest.mark.parametrize("text", ["{", "[]", '{"exec-opts": "a"}', '{"runtimes": []}'])
def test_invalid_daemon_json_fails_before_the_first_step(tree: Tree, text: str) -> None:
    tree.put(DAEMON, text)
    before = tree.listing()

    with pytest.raises(InvalidArgument, match=DAEMON):
        tree.install(docker=True)

    assert tree.listing() == before


def test_mode_and_link_of_a_file_stay(tree: Tree) -> None:
    place = tree.put("/srv/daemon.json", "{}")
    place.chmod(0o600)
    link = Node(tree.root).at(Path(DAEMON))
    link.parent.mkdir(parents=True)
    link.symlink_to(place)

    tree.install(docker=True)

    assert link.is_symlink()
    assert json.loads(place.read_text())["live-restore"] is True
    assert place.stat().st_mode & 0o777 == 0o600


def test_files_can_be_read_by_all_whatever_the_umask(tree: Tree) -> None:
    old = os.umask(0o077)
    try:
        tree.install()
    finally:
        os.umask(old)

    assert Node(tree.root).at(Path(CRICTL)).stat().st_mode & 0o777 == 0o644
    assert Node(tree.root).at(Path(CRICTL)).parent.stat().st_mode & 0o777 == 0o755


def test_packaged_units_are_not_duplicated(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/pydockershim.service", "[Service]\nExecStart=/usr/bin/pydockershim serve\n")

    tree.install(command="/usr/bin/pydockershim")

    assert not tree.has(UNIT)
    assert not tree.has(CONFIG)
    assert tree.has(CRICTL)


def test_units_of_another_package_are_refused(tree: Tree) -> None:
    tree.put("/usr/lib/systemd/system/pydockershim.service", "[Service]\nExecStart=/usr/bin/pydockershim serve\n")

    with pytest.raises(FailedPrecondition, match="remove that package first"):
        tree.install()


def test_damaged_record_is_an_error(tree: Tree) -> None:
    tree.put(str(PLACE), "{")

    with pytest.raises(InvalidArgument, match="is damaged"):
        Installation(options=Options(root=tree.root), command="/p", environ={})
