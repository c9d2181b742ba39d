import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.cni import plugins as module
from shim.cni.plugin import PluginError
from shim.cni.plugins import Attachment, Plugins
from shim.domain.errors import Cancelled, FailedPrecondition
from tests.cni.fake_plugins import FakePlugins

NETNS = "/proc/self/ns/net"
"""Any network namespace will do: these plugins do not use it."""

FIRST = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": NETNS}], "ips": [{"address": "10.1.0.2/24"}]}
LAST = {**FIRST, "routes": [{"dst": "0.0.0.0/0"}]}


def attachment(*types: str, version: str = "1.0.0", **changes: Any) -> Attachment:
    plugins = [{"type": kind, "setting": f"of {kind}"} for kind in types]
    made = Attachment(
        conflist={"cniVersion": version, "name": "pods", "disableCheck": True, "plugins": plugins},
        container_id="c0ffee",
        netns=NETNS,
        ifname="eth0",
        args=[("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web")],
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def plugins(fakes: FakePlugins, tmp_path: Path) -> Plugins:
    return Plugins(bin_dirs=[Path("/opt/none"), fakes.bin_dir], cache_dir=tmp_path / "cache", timeout=30)


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    return tmp_path / "cache/results/pods-c0ffee-eth0"


@pytest.fixture
def chain(fakes: FakePlugins) -> FakePlugins:
    fakes.write_answering("bridge", FIRST)
    fakes.write_answering("tuning", LAST)
    return fakes


def runs(fakes: FakePlugins) -> list[tuple[str, str]]:
    return [(call.verb, call.plugin) for call in fakes.calls]


def test_add_passes_each_result_to_the_next_plugin(plugins: Plugins, chain: FakePlugins, cache_file: Path) -> None:
    assert plugins.add(attachment("bridge", "tuning")) == LAST

    first, second = chain.calls
    assert first.config == {"type": "bridge", "setting": "of bridge", "name": "pods", "cniVersion": "1.0.0"}
    assert second.config == {
        "type": "tuning",
        "setting": "of tuning",
        "name": "pods",
        "cniVersion": "1.0.0",
        "prevResult": FIRST,
    }
    assert first.environment["CNI_ARGS"] == "IgnoreUnknown=1;K8S_POD_NAME=web"
    assert first.environment["CNI_NETNS"] == NETNS
    assert cache_file.exists()


def test_delete_runs_in_reverse_order_with_the_final_result(
    plugins: Plugins, chain: FakePlugins, cache_file: Path
) -> None:
    added = attachment("bridge", "tuning")
    result = plugins.add(added)

    plugins.delete(msgspec.structs.replace(added, result=result))

    assert runs(chain)[2:] == [("DEL", "tuning"), ("DEL", "bridge")]
    assert [call.config["prevResult"] for call in chain.calls[2:]] == [LAST, LAST]
    assert not cache_file.exists()


@pytest.mark.parametrize(("version", "reported"), [("0.3.1", False), ("0.4.0", True), ("1.1.0", True)])
def test_del_gets_the_result_from_version_0_4_0_on(
    plugins: Plugins, chain: FakePlugins, version: str, reported: bool
) -> None:
    plugins.delete(attachment("bridge", version=version, result=FIRST))

    assert ("prevResult" in chain.calls[0].config) is reported


def test_a_result_that_only_the_cache_has_is_used(plugins: Plugins, chain: FakePlugins) -> None:
    added = attachment("bridge")
    plugins.add(added)

    plugins.delete(added)

    assert chain.calls[1].config["prevResult"] == FIRST


def test_delete_may_be_repeated(plugins: Plugins, chain: FakePlugins) -> None:
    for _ in range(2):
        plugins.delete(attachment("bridge", "tuning"))

    assert runs(chain) == [("DEL", "tuning"), ("DEL", "bridge")] * 2


def test_del_gets_an_existing_namespace(plugins: Plugins, chain: FakePlugins) -> None:
    plugins.delete(attachment("bridge"))

    assert chain.calls[0].environment["CNI_NETNS"] == NETNS


@pytest.mark.parametrize("left", ["nothing", "empty-file", "no-path"])
def test_del_gets_an_empty_namespace_when_it_is_gone(
    plugins: Plugins, chain: FakePlugins, tmp_path: Path, left: str
) -> None:
    path = tmp_path / "cri-c0ffee"
    if left == "empty-file":
        path.touch()

    plugins.delete(attachment("bridge", netns="" if left == "no-path" else str(path)))

    assert chain.calls[0].environment["CNI_NETNS"] == ""


def test_add_stops_at_a_failing_plugin(plugins: Plugins, chain: FakePlugins, cache_file: Path) -> None:
    chain.write_answering("tuning", {"code": 100, "msg": "no"}, code=1)
    chain.write_answering("portmap", LAST)

    with pytest.raises(PluginError, match=r"tuning .*: no \(code 100\)"):
        plugins.add(attachment("bridge", "tuning", "portmap"))

    assert runs(chain) == [("ADD", "bridge"), ("ADD", "tuning")]
    assert not cache_file.exists()


def test_delete_stops_at_a_failing_plugin_and_a_repetition_reaches_the_rest(
    plugins: Plugins, chain: FakePlugins, cache_file: Path
) -> None:
    added = attachment("bridge", "tuning")
    plugins.add(added)
    chain.write_answering("tuning", b"", code=1)
    with pytest.raises(PluginError, match=r"^cni DEL by plugin .*tuning"):
        plugins.delete(added)
    assert runs(chain)[2:] == [("DEL", "tuning")]
    assert cache_file.exists()

    chain.write("tuning")
    plugins.delete(added)

    assert runs(chain)[3:] == [("DEL", "tuning"), ("DEL", "bridge")]
    assert not cache_file.exists()


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_missing_binary_is_an_error_before_any_plugin_runs(plugins: Plugins, chain: FakePlugins, verb: str) -> None:
    run = plugins.add if verb == "ADD" else plugins.delete

    with pytest.raises(FailedPrecondition) as raised:
        run(attachment("bridge", "vanished"))

    assert str(raised.value) == (
        f"cni {verb} on network pods for sandbox c0ffee: plugin binary vanished not found in /opt/none, {chain.bin_dir}"
    )
    assert chain.calls == []


def test_a_plugin_gets_only_the_capability_arguments_it_declares(plugins: Plugins, chain: FakePlugins) -> None:
    given = {"portMappings": [{"hostPort": 80}], "dns": {"servers": ["10.0.0.1"]}, "bandwidth": {"ingressRate": 1000}}
    declared: list[dict[str, Any]] = [
        {"type": "bridge", "capabilities": {"dns": True, "portMappings": False}, "runtimeConfig": {"own": 1}},
        {"type": "tuning", "capabilities": {"mac": True}, "runtimeConfig": {"own": 1}},
        {"type": "bridge", "capabilities": {"portMappings": True, "bandwidth": True}},
    ]
    conflist = {"cniVersion": "1.0.0", "name": "pods", "plugins": declared}

    plugins.add(attachment(conflist=conflist, capabilities=given))

    assert [call.config.get("runtimeConfig") for call in chain.calls] == [
        {"dns": given["dns"]},
        {"own": 1},
        {"portMappings": given["portMappings"], "bandwidth": given["bandwidth"]},
    ]
    assert not any("capabilities" in call.config for call in chain.calls)


def test_a_result_without_a_version_gets_the_version_of_the_list(plugins: Plugins, fakes: FakePlugins) -> None:
    fakes.write_answering("bridge", {"ips": []})

    assert plugins.add(attachment("bridge", version="0.4.0")) == {"cniVersion": "0.4.0", "ips": []}


def test_a_malformed_result_is_an_error_of_the_plugin(plugins: Plugins, fakes: FakePlugins) -> None:
    fakes.write_answering("bridge", {"ips": [{"address": "here"}]})

    with pytest.raises(PluginError, match=r"bridge for sandbox c0ffee: printed a malformed result: 'here' does not"):
        plugins.add(attachment("bridge"))


def test_an_entry_that_cannot_be_removed_does_not_fail_the_del(
    plugins: Plugins, chain: FakePlugins, cache_file: Path
) -> None:
    (cache_file / "in-the-way").mkdir(parents=True)

    with capture_logs() as lines:
        plugins.delete(attachment("bridge"))

    assert [(line["event"], line["sandbox"]) for line in lines] == [("failed to remove CNI cache entry", "c0ffee")]


def test_a_cancelled_request_ends_the_chain(plugins: Plugins, chain: FakePlugins, tmp_path: Path) -> None:
    scope = deadline.Scope()
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    chain.write("bridge", f"echo >{fifo}; sleep 60")
    client = threading.Thread(target=_cancel_after, args=(fifo, scope))

    client.start()
    with deadline.entered(scope), pytest.raises(Cancelled):
        plugins.add(attachment("bridge", "tuning"))
    client.join()

    assert runs(chain) == [("ADD", "bridge")]


def _cancel_after(fifo: Path, scope: deadline.Scope) -> None:
    fifo.read_text()
    scope.cancel()


def test_an_intended_add_is_in_the_cache_until_it_is_forgotten(plugins: Plugins, cache_file: Path) -> None:
    plugins.intend(attachment("bridge"))
    assert cache_file.exists()

    plugins.forget(attachment("bridge"))
    plugins.forget(attachment("bridge"))

    assert not cache_file.exists()


def test_gc_runs_every_plugin_and_reports_the_first_failure(plugins: Plugins, fakes: FakePlugins) -> None:
    fakes.write("bridge", """echo '{"code": 11, "msg": "try again"}'; exit 1""")
    fakes.write("tuning")

    with pytest.raises(PluginError, match=r"^cni GC by plugin [^ ]*/bridge: try again \(code 11\)$"):
        plugins.run_gc(attachment("bridge", "tuning", version="1.1.0").conflist, lambda: {("c0ffee", "eth0")})

    assert runs(fakes) == [("GC", "bridge"), ("GC", "tuning")]
    for key in ("cni.dev/valid-attachments", "cni.dev/attachments"):
        assert fakes.calls[1].config[key] == [{"containerID": "c0ffee", "ifname": "eth0"}]


def test_gc_is_postponed_while_an_add_runs(
    plugins: Plugins, fakes: FakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GC_WAIT_SECONDS", 0.01)
    fifo, began = tmp_path / "fifo", tmp_path / "began"
    os.mkfifo(fifo)
    os.mkfifo(began)
    fakes.write("bridge", f"echo >{began}; cat {fifo}")
    adding = threading.Thread(target=plugins.add, args=(attachment("bridge"),))
    adding.start()
    began.read_bytes()

    assert not plugins.run_gc(attachment("bridge", version="1.1.0").conflist, set)

    fifo.write_text('{"cniVersion": "1.0.0", "ips": []}')
    adding.join()
    assert runs(fakes) == [("ADD", "bridge")]
