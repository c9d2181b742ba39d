"""Networks without a pod: this server's are released, all others stay."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import SandboxCheckpoint
from shim.cni.cache import Attachment, Owner, cached_attachments, write_cached
from shim.cni.plugins import VALID_ATTACHMENTS, Plugins
from shim.domain.errors import Unavailable
from shim.domain.labels import config_as_dict
from shim.netns.pin import ensure_pinned, is_pinned
from shim.runtime import Runtime
from shim.sandbox import collect
from shim.sandbox.collect import collect_networks
from shim.sandbox.network import docker_socket, netns_path
from tests.checkpoint.samples import INTENT
from tests.cni.fake_plugins import FakePlugins
from tests.fakes.engine import FakeEngine
from tests.mounts import need_root, unmount_below
from tests.pods import pod_config, ready_pod

GONE, OTHER, ALIVE = "a" * 64, "b" * 64, "c" * 64
RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}


@pytest.fixture
def fakes(tmp_path: Path) -> FakePlugins:
    made = FakePlugins(tmp_path / "plugins")
    made.write("bridge")
    return made


@pytest.fixture
def node(rt: Runtime, fakes: FakePlugins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    monkeypatch.setattr(collect, "OTHER_CACHES", (tmp_path / "containerd",))
    plugins = Plugins(bin_dirs=[fakes.bin_dir], cache_dir=rt.config.cni_cache_dir, timeout=30)
    return replace(rt, cni=replace(rt.cni, plugins=plugins))


@pytest.fixture
def pins(rt: Runtime) -> Iterator[Path]:
    need_root()
    rt.config.netns_directory.mkdir()
    yield rt.config.netns_directory
    unmount_below(rt.config.netns_directory)


def conflist(version: str = "1.0.0", **ipam: Any) -> dict[str, Any]:
    return {"cniVersion": version, "name": "pods", "plugins": [{"type": "bridge", "ipam": ipam}]}


def attached(rt: Runtime, container_id: str = GONE, **changes: Any) -> Attachment:
    """Write an entry owned by this server to the CNI cache."""
    made = Attachment(
        conflist=conflist(),
        container_id=container_id,
        netns=str(netns_path(rt.config, container_id)),
        ifname="eth0",
        args=[("K8S_POD_NAME", "web")],
        result=RESULT,
        owner=Owner(docker=docker_socket(rt.config), sandbox="k8s_POD_web_default_uid-web_0"),
    )
    made = msgspec.structs.replace(made, **changes)
    write_cached(rt.config.cni_cache_dir, made, result=made.result)
    return made


def pinned(rt: Runtime, name: str) -> Path:
    path = rt.config.netns_directory / name
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ensure_pinned(path, pid=process.pid)
        assert process.stdin is not None
        process.stdin.close()
    return path


def kept(rt: Runtime, container_id: str) -> bool:
    return bool(cached_attachments(rt.config.cni_cache_dir, container_id=container_id))


def known_to_checkpoints(rt: Runtime, container_id: str, **network: Any) -> None:
    intent = msgspec.structs.replace(INTENT, conflist=conflist("1.1.0"), **network)
    rt.checkpoints.put(
        SandboxCheckpoint(
            sandbox_id=container_id,
            config=config_as_dict(pod_config("alive", network=pb.POD)),
            runtime_handler="",
            created_at=1,
            network=intent,
        )
    )


def test_an_attachment_without_a_pod_is_released_with_its_recorded_parameters(
    node: Runtime, fakes: FakePlugins
) -> None:
    attached(node)

    collect_networks(node)

    [call] = fakes.calls
    assert (call.verb, call.environment["CNI_CONTAINERID"], call.environment["CNI_ARGS"]) == (
        "DEL",
        GONE,
        "K8S_POD_NAME=web",
    )
    assert call.config["prevResult"] == RESULT
    assert not kept(node, GONE)


def test_an_attachment_with_an_unfinished_add_is_released(node: Runtime, fakes: FakePlugins) -> None:
    attached(node, result=None)

    collect_networks(node)

    assert [call.verb for call in fakes.calls] == ["DEL"]
    assert not kept(node, GONE)


def test_only_the_namespace_of_the_orphan_is_unpinned(node: Runtime, fakes: FakePlugins, pins: Path) -> None:
    attached(node)
    ours = pinned(node, f"cri-{GONE}")
    others = [pinned(node, name) for name in (f"cri-{OTHER}", f"cni-{GONE[:32]}", "netns-podman")]

    collect_networks(node)

    assert fakes.calls[0].environment["CNI_NETNS"] == str(ours)
    assert not ours.exists()
    assert all(is_pinned(other) for other in others)


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": None},
        {"owner": Owner(docker="/run/another-docker.sock", sandbox="k8s_POD_web_default_uid-web_0")},
        {"container_id": "nginx"},
    ],
    ids=["another runtime", "a server of another Engine", "no container of Docker"],
)
def test_attachments_of_other_runtimes_stay(node: Runtime, fakes: FakePlugins, changes: dict[str, Any]) -> None:
    other = attached(node, **{"container_id": OTHER, **changes})

    collect_networks(node)

    assert fakes.calls == []
    assert kept(node, other.container_id)


def test_an_entry_that_was_copied_to_another_name_stays(node: Runtime, fakes: FakePlugins) -> None:
    attached(node)
    results = node.config.cni_cache_dir / "results"
    (results / f"pods-{GONE}-eth0").rename(results / f"copy-{OTHER}-eth0")

    collect_networks(node)

    assert fakes.calls == []


def test_an_attachment_with_a_foreign_namespace_stays(node: Runtime, fakes: FakePlugins) -> None:
    attached(node, netns="/run/netns/cni-1234")

    collect_networks(node)

    assert fakes.calls == []
    assert kept(node, GONE)


def test_pods_with_only_a_checkpoint_stay(node: Runtime, fakes: FakePlugins) -> None:
    sandbox = ready_pod(node)
    attached(node, sandbox)
    known_to_checkpoints(node, ALIVE)
    attached(node, ALIVE)
    node.checkpoints.delete(sandbox)

    collect_networks(node)

    assert "DEL" not in [call.verb for call in fakes.calls]
    assert kept(node, sandbox)
    assert kept(node, ALIVE)


def test_a_container_that_only_docker_knows_stays(node: Runtime, engine: FakeEngine, fakes: FakePlugins) -> None:
    other = engine.create_container(name="other", body={"Image": engine.images[0].id})
    attached(node, other)

    collect_networks(node)

    assert fakes.calls == []


def test_a_sandbox_being_created_stays(node: Runtime, fakes: FakePlugins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "LOCK_SECONDS", 0.01)
    attached(node)
    with node.locks.sandbox("k8s_POD_web_default_uid-web_0"):
        collect_networks(node)
    assert fakes.calls == []

    collect_networks(node)

    assert [call.verb for call in fakes.calls] == ["DEL"]


def test_nothing_is_released_while_the_pods_are_unknown(node: Runtime, fakes: FakePlugins) -> None:
    attached(node)
    node.view.disconnect("docker is away")

    with pytest.raises(Unavailable):
        collect_networks(node)

    assert fakes.calls == []


def test_a_failed_release_delays_no_other_and_is_tried_again(node: Runtime, fakes: FakePlugins) -> None:
    attached(node)
    attached(node, OTHER)
    fakes.write("bridge", f'[ "$CNI_CONTAINERID" = {GONE} ] && exit 1; exit 0')
    collect_networks(node)
    assert kept(node, GONE)
    assert not kept(node, OTHER)
    fakes.write("bridge")

    collect_networks(node)

    assert not kept(node, GONE)


def gc_of(fakes: FakePlugins) -> list[dict[str, str]]:
    [call] = [call for call in fakes.calls if call.verb == "GC"]
    assert call.environment["CNI_CONTAINERID"] == call.environment["CNI_NETNS"] == ""
    assert (call.config["name"], call.config["cniVersion"]) == ("pods", "1.1.0")
    stay, again = (call.config[key] for key in VALID_ATTACHMENTS)
    assert stay == again
    return list(stay)


def test_gc_gets_exactly_the_existing_attachments(node: Runtime, fakes: FakePlugins) -> None:
    known_to_checkpoints(node, ALIVE)
    known_to_checkpoints(node, OTHER, released=True)
    attached(node, ALIVE)
    attached(node, OTHER)
    attached(node, GONE)

    collect_networks(node)

    assert gc_of(fakes) == [{"containerID": ALIVE, "ifname": "eth0"}]


def test_gc_keeps_attachments_of_other_runtimes_on_the_same_network(
    node: Runtime, fakes: FakePlugins, tmp_path: Path
) -> None:
    leases = tmp_path / "leases"
    (leases / "pods").mkdir(parents=True)
    (leases / "pods" / "10.1.0.9").write_bytes(b"hand-made\r\neth0")
    (leases / "pods" / "10.1.0.10").write_bytes(f"{ALIVE}\r\neth0".encode())
    local = conflist("1.1.0", type="host-local", dataDir=str(leases))
    known_to_checkpoints(node, ALIVE, released=True)
    intent = msgspec.structs.replace(INTENT, conflist=local, released=True)
    known = node.checkpoints.get(ALIVE)
    assert known is not None
    node.checkpoints.put(msgspec.structs.replace(known, network=intent))
    theirs = Attachment(conflist=local, container_id=OTHER, netns="/run/netns/cni-1", ifname="eth0")
    write_cached(tmp_path / "containerd", theirs, result=RESULT)

    collect_networks(node)

    assert gc_of(fakes) == [
        {"containerID": OTHER, "ifname": "eth0"},
        {"containerID": "hand-made", "ifname": "eth0"},
    ]


def test_a_failed_gc_does_not_affect_other_networks(node: Runtime, fakes: FakePlugins) -> None:
    known_to_checkpoints(node, ALIVE)
    fakes.write("bridge", """echo '{"code": 4, "msg": "unknown CNI_COMMAND: GC"}'; exit 1""")

    collect_networks(node)

    assert [call.verb for call in fakes.calls] == ["GC"]


@pytest.mark.parametrize("change", [{"cniVersion": "1.0.0"}, {"disableGC": True}, {"disableGC": "true"}])
def test_a_network_without_gc_is_not_asked(node: Runtime, fakes: FakePlugins, change: dict[str, Any]) -> None:
    known_to_checkpoints(node, ALIVE)
    known = node.checkpoints.get(ALIVE)
    assert known is not None
    assert known.network is not None
    intent = msgspec.structs.replace(known.network, conflist={**conflist("1.1.0"), **change})
    node.checkpoints.put(msgspec.structs.replace(known, network=intent))

    collect_networks(node)

    assert fakes.calls == []
