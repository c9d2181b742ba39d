import json
import os
from pathlib import Path
from typing import Any

import pytest

from shim.cni.conf import NetworkConfig, parse_network
from shim.cni.plugin_status import PluginVersions, StatusWatch, ask_status
from shim.cni.watch import NOT_READY, ConfDirectory
from tests.cni.fake_plugins import FakePlugins
from tests.waits import wait_until

VERSIONS = ("0.4.0", "1.0.0", "1.1.0")


def network(*types: str, version: str = "1.1.0", **plugin: Any) -> NetworkConfig:
    conflist = {"cniVersion": version, "name": "pods", "plugins": [{"type": kind, **plugin} for kind in types]}
    return parse_network(json.dumps(conflist).encode(), file="10-pods.conflist")


def write(fakes: FakePlugins, name: str, *, versions: tuple[str, ...] = VERSIONS, status: str = "exit 0") -> Path:
    """Write a plugin that supports these versions, and executes `status` for STATUS."""
    listed = json.dumps({"cniVersion": versions[-1], "supportedVersions": versions})
    return fakes.write(name, f"case $CNI_COMMAND in VERSION) echo '{listed}';; STATUS) {status};; esac")


def failing(code: int, msg: str) -> str:
    return f"""echo '{{"code": {code}, "msg": "{msg}"}}'; exit 1"""


def asked(fakes: FakePlugins, verb: str) -> list[str]:
    return [call.plugin for call in fakes.calls if call.verb == verb]


def status_of(fakes: FakePlugins, config: NetworkConfig) -> str:
    dirs = [fakes.bin_dir]
    return ask_status(config, versions=PluginVersions(dirs), bin_dirs=dirs)


def test_the_versions_of_a_binary_are_queried_once(fakes: FakePlugins) -> None:
    path = write(fakes, "bridge")
    versions = PluginVersions([fakes.bin_dir])

    assert [versions.of(path), versions.of(path)] == [VERSIONS, VERSIONS]
    assert asked(fakes, "VERSION") == ["bridge"]


def test_the_versions_of_a_replaced_binary_are_queried_again(fakes: FakePlugins) -> None:
    path = write(fakes, "bridge")
    versions = PluginVersions([fakes.bin_dir])
    versions.of(path)
    write(fakes, "bridge.new", versions=("1.0.0",)).rename(path)

    assert versions.of(path) == ("1.0.0",)
    assert versions.of(path.with_name("absent")) == ()


@pytest.mark.parametrize("body", ["exit 1", "echo no JSON", "echo '{}'", """echo '{"supportedVersions": 3}'"""])
def test_a_binary_without_the_verb_has_no_versions(fakes: FakePlugins, body: str) -> None:
    path = fakes.write("bridge", body)

    assert PluginVersions([fakes.bin_dir]).of(path) == ()


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


def test_plugins_of_older_versions_do_not_run_status(fakes: FakePlugins) -> None:
    write(fakes, "bridge", versions=("1.0.0",), status=failing(50, "never asked"))

    assert status_of(fakes, network("bridge")) == ""
    assert asked(fakes, "STATUS") == []


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
    assert asked(fakes, "VERSION") == ["bridge"]
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
