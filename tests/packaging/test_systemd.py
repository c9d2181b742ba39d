"""What the units say fits what the server does."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from shim.cli import EXIT_USAGE
from shim.config.fields import fields
from shim.config.model import Config
from shim.cri.endpoint import ACTIVATION
from shim.daemon import DESCRIPTORS

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their case
    parsed.read_string((UNITS / name).read_text())
    return parsed


def test_a_stop_has_more_time_than_the_grace_period() -> None:
    assert float(unit("pydockershim.service")["Service"]["TimeoutStopSec"]) > Config().shutdown_grace


def test_what_plugins_leave_running_for_pods_outlives_a_restart() -> None:
    assert unit("pydockershim.service")["Service"]["KillMode"] == "process"


def test_plugins_inherit_no_higher_limit_of_open_files_than_the_server_sets() -> None:
    soft, _, hard = unit("pydockershim.service")["Service"]["LimitNOFILE"].partition(":")

    assert int(soft) == DESCRIPTORS < int(hard)


def test_wrong_settings_are_not_tried_again() -> None:
    assert unit("pydockershim.service")["Service"]["RestartPreventExitStatus"] == str(EXIT_USAGE)


def test_the_socket_is_the_one_the_server_would_make() -> None:
    socket = unit("pydockershim.socket")["Socket"]

    assert f"unix://{socket['ListenStream']}" == Config().container_runtime_endpoint
    assert socket["SocketMode"] == "0600"


def test_the_drop_in_makes_the_server_take_that_socket() -> None:
    setting = unit("pydockershim.service.d/socket-activation.conf")["Service"]["Environment"]

    variable, _, value = setting.partition("=")
    assert variable == fields()["container_runtime_endpoint"].variable
    assert fields()["container_runtime_endpoint"].parse(value) == ACTIVATION


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    # Verified as copies: the program need not be installed here.
    shutil.copytree(UNITS, tmp_path, dirs_exist_ok=True)
    service = tmp_path / "pydockershim.service"
    service.write_text(service.read_text().replace("/usr/local/bin/pydockershim", "/bin/true"))

    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", service, tmp_path / "pydockershim.socket"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (told.returncode, told.stderr) == (0, "")
