import json
import os
from pathlib import Path
from typing import Any

import pytest

from shim.cni.conf import NetworkConfig, parse_network
from shim.cni.plugin_status import StatusWatch, ask_status
from shim.cni.watch import NOT_READY, ConfDirectory
from tests.cni.fake_plugins import FakePlugins
from tests.waits import wait_until


def network(*types: str, version: str = "1.1.0", **plugin: Any) -> NetworkConfig:
    conflist = {"cniVersion": version, "name": "pods", "plugins": [{"type": kind, **plugin} for kind in types]}
    return parse_network(json.dumps(conflist).encode(), file="10-pods.conflist")


def write(fakes: FakePlugins, name: str, *, status: str = "exit 0") -> None:
    """Write a plugin that executes `status` for STATUS."""
    fakes.write(name, f"[ $CNI_COMMAND = STATUS ] && {{ {status}; }}")


def failing(code: int, msg: str) -> str:
    return f"""echo '{{"code": {code}, "msg": "{msg}"}}'; exit 1"""


def asked(fakes: FakePlugins, verb: str) -> list[str]:
    return [call.plugin for call in fakes.calls if call.verb == verb]


def status_of(fakes: FakePlugins, config: NetworkConfig) -> str:
    return ask_status(config, bin_dirs=[fakes.bin_dir])


def test_status_gets_the_plugins_configuration_and_no_pod(fakes: FakePlugins) -> None:
    write(fakes, "bridge")

    assert status_of(fakes, network("bridge", mtu=1400, capabilities={"portMappings": True})) == ""

    (call,) = [call for call in fakes.calls if call.verb == "STATUS"]
    assert call.config == {"type": "bridge", "mtu": 1400, "name": "pods", "cniVersion": "1.1.0"}
    assert call.environment["CNI_PATH"] == str(fakes.bin_dir)
    assert call.environment.get("CNI_CONTAINERID", "") == ""


@pytest.mark.parametrize("code", [50, 51])
def test_the_error_of_an_unavailable_plugin_is_returned(fakes: FakePlugins, code: int) -> None:
    write(fakes, "bridge")
    write(fakes, "mesh", status=failing(code, "no route to the controller"))

    problem = status_of(fakes, network("bridge", "mesh"))

    assert problem.endswith(f"/mesh: no route to the controller (code {code})")


@pytest.mark.parametrize("status", [failing(4, "unknown verb"), "exit 3"])
def test_other_errors_of_a_plugin_do_not_make_it_unavailable(fakes: FakePlugins, status: str) -> None:
    write(fakes, "bridge", status=status)

    assert status_of(fakes, network("bridge")) == ""


def test_a_list_of_an_older_version_runs_no_plugin(fakes: FakePlugins) -> None:
    write(fakes, "bridge", status=failing(50, "never asked"))
    watch = StatusWatch([fakes.bin_dir])

    assert watch.problem(network("bridge", version="1.0.0"), seconds=20) == ""
    assert fakes.calls == []


def test_the_last_status_is_cached_for_a_while(fakes: FakePlugins) -> None:
    write(fakes, "bridge", status=failing(50, "not yet"))
    watch = StatusWatch([fakes.bin_dir])

    assert [watch.problem(network("bridge"), seconds=20).endswith("not yet (code 50)") for _ in range(3)] == [True] * 3
    assert asked(fakes, "STATUS") == ["bridge"]
    watch.stop()


def test_a_plugin_that_becomes_available_is_noticed(fakes: FakePlugins, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    write(fakes, "bridge", status=f"[ -e {flag} ] || {{ {failing(50, 'not yet')}; }}")
    watch = StatusWatch([fakes.bin_dir], fresh=0.0)
    assert watch.problem(network("bridge"), seconds=20).endswith("not yet (code 50)")

    flag.touch()

    wait_until(lambda: watch.problem(network("bridge"), seconds=20) == "")
    watch.stop()


def test_only_the_first_call_waits_for_a_hung_plugin(fakes: FakePlugins, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    write(fakes, "bridge", status=f"read line <{fifo}")
    watch = StatusWatch([fakes.bin_dir])

    assert watch.problem(network("bridge"), seconds=0.01) == "its plugins have not answered STATUS yet"

    fifo.write_text("go on\n")
    wait_until(lambda: watch.problem(network("bridge"), seconds=20) == "")
    assert asked(fakes, "STATUS") == ["bridge"]
    watch.stop()


def test_the_network_is_not_ready_while_a_plugin_is_unavailable(fakes: FakePlugins, tmp_path: Path) -> None:
    write(fakes, "mesh", status=failing(50, "no route to the controller"))
    (tmp_path / "conf").mkdir()
    conflist = {"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "mesh"}]}
    (tmp_path / "conf/10-mesh.conflist").write_text(json.dumps(conflist))
    directory = ConfDirectory(tmp_path / "conf", bin_dirs=[fakes.bin_dir])
    directory.start()

    wait_until(lambda: "(code 50)" in directory.status().message)
    status = directory.status()
    directory.stop()

    assert (status.ready, status.reason) == (False, NOT_READY)
    assert status.message.startswith(f"network pods of {tmp_path}/conf/10-mesh.conflist: cni STATUS by plugin")
    assert "no route to the controller" in status.message
    assert directory.chosen().name == "pods"
