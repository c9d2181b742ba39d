"""The systemd units agree with the server."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from shim.cli import EXIT_USAGE
from shim.config.fields import fields
from shim.config.model import Config
from shim.cri.endpoint import ACTIVATION
from shim.daemon.process_limits import OPEN_FILES
from shim.daemon.state_dump import SOURCE_SECONDS

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their case
    parsed.read_string((UNITS / name).read_text())
    return parsed


def test_a_stop_has_more_time_than_the_grace_period() -> None:
    assert float(unit("pydockershim.service")["Service"]["TimeoutStopSec"]) > Config().shutdown_grace


def test_daemons_that_plugins_start_for_pods_survive_a_restart() -> None:
    assert unit("pydockershim.service")["Service"]["KillMode"] == "process"


def test_systemd_restarts_a_hanging_server_after_the_servers_checks() -> None:
    service = unit("pydockershim.service")["Service"]

    assert float(service["WatchdogSec"]) / 4 > 2 * SOURCE_SECONDS, "a failed check has time to be dumped"
    assert (service["Type"], service["Restart"], service["LimitCORE"]) == ("notify", "always", "0")


def test_plugins_inherit_no_higher_limit_of_open_files_than_the_server_sets() -> None:
    soft, _, hard = unit("pydockershim.service")["Service"]["LimitNOFILE"].partition(":")

    assert int(soft) == OPEN_FILES < int(hard)


def test_a_server_with_wrong_settings_is_not_restarted() -> None:
    assert unit("pydockershim.service")["Service"]["RestartPreventExitStatus"] == str(EXIT_USAGE)


def test_the_socket_unit_has_the_servers_path_and_mode() -> None:
    socket = unit("pydockershim.socket")["Socket"]

    assert f"unix://{socket['ListenStream']}" == Config().container_runtime_endpoint
    assert socket["SocketMode"] == "0600"


def test_the_drop_in_passes_the_socket_to_the_server() -> None:
    setting = unit("pydockershim.service.d/socket-activation.conf")["Service"]["Environment"]

    variable, _, value = setting.partition("=")
    assert variable == fields()["container_runtime_endpoint"].variable
    assert fields()["container_runtime_endpoint"].parse(value) == ACTIVATION


MOUNT_NAMESPACE = (
    *("PrivateMounts", "PrivateTmp", "PrivateDevices", "ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups"),
    *("ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "BindPaths", "TemporaryFileSystem", "RootDirectory"),
)
"""Each gives a unit a separate mount namespace (systemd.exec(5))."""


def lines(name: str) -> list[tuple[str, str]]:
    """Return directives with their values; a directive may occur several times."""
    text = (UNITS / name).read_text().splitlines()
    return [(key, value) for key, found, value in (line.partition("=") for line in text if line[:1] != "#") if found]


def test_the_host_sees_the_mounts_of_the_server() -> None:
    given = {
        key
        for name in ("pydockershim.service", "pydockershim.service.d/socket-activation.conf")
        for key, _ in lines(name)
    }

    assert not given & set(MOUNT_NAMESPACE)


def test_the_page_names_each_restricting_directive() -> None:
    page = (UNITS.parents[1] / "docs/hardening.md").read_text()
    words = ("Memory", "OOM", "NoNew", "Capability", "SystemCall", "Restrict", "Lock", "Device")
    taken = {key for key, _ in lines("pydockershim.service") if key.startswith(words)}

    assert taken
    assert all(f"`{key}=" in page for key in taken)
    for key, value in lines("pydockershim.service"):
        if key in {"MemoryHigh", "MemoryMax"}:
            assert f"| `{key}=` | {value} |" in page


def test_the_server_keeps_the_privileges_that_pods_need() -> None:
    dropped = {
        word.lstrip("~")
        for key, value in lines("pydockershim.service")
        if key == "CapabilityBoundingSet"
        for word in value.split()
    }

    needed = {
        f"CAP_{name}"
        for name in ("SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "KILL", "DAC_OVERRIDE", "SYS_MODULE")
    }
    assert dropped
    assert not dropped & needed


def test_a_plugin_that_runs_out_of_memory_does_not_end_the_server() -> None:
    service = unit("pydockershim.service")["Service"]

    assert service["OOMPolicy"] == "continue"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    # systemd-analyze verifies copies, because the program need not be installed here.
    shutil.copytree(UNITS, tmp_path, dirs_exist_ok=True)
    service = tmp_path / "pydockershim.service"
    service.write_text(service.read_text().replace("/usr/local/bin/pydockershim", "/bin/true"))

    reported = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", service, tmp_path / "pydockershim.socket"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (reported.returncode, reported.stderr) == (0, "")


AS_CRI_DOCKERD = ("cri-docker", "cri-dockerd")


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="no systemctl on this machine")
@pytest.mark.parametrize("wanted", [False, True], ids=["by default", "with the drop-ins"])
def test_the_units_can_have_cri_dockerds_names_as_aliases(tmp_path: Path, *, wanted: bool) -> None:
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for kind in ("service", "socket"):
        shutil.copy(UNITS / f"pydockershim.{kind}", units)
    if wanted:
        shutil.copytree(UNITS / "as-cri-dockerd", units, dirs_exist_ok=True)

    reported = subprocess.run(
        ["systemctl", f"--root={tmp_path}", "enable", "pydockershim.service", "pydockershim.socket"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert reported.returncode == 0, reported.stderr
    made = {path.name: path.readlink().name for path in units.iterdir() if path.is_symlink()}
    expected = {f"{name}.{kind}": f"pydockershim.{kind}" for name in AS_CRI_DOCKERD for kind in ("service", "socket")}
    assert made == (expected if wanted else {})
