"""Pods whose checkpoint is lost or of an unknown version, over a restart of the server."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import SandboxCheckpoint
from shim.checkpoint.store import CheckpointStore
from shim.cni.cache import Attachment, Owner, write_cached
from shim.container.start import start_container
from shim.daemon.recover import recover_checkpoints
from shim.domain import labels, names
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.status import pod_sandbox_status
from tests.checkpoint.formats import READ, SET_ASIDE, Form
from tests.checkpoint.samples import CONFLIST, INTENT
from tests.fakes.engine import FakeEngine
from tests.pods import created, pod_config, ready_pod

RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}


def pod_on(rt: Runtime, engine: FakeEngine, network: pb.NamespaceMode) -> SandboxId:
    """A ready pod on the host network, or with a CNI network whose result is also in the CNI cache."""
    if network == pb.NODE:
        return ready_pod(rt)
    config = pod_config("web", network=network)
    body = {
        "Image": rt.config.pod_infra_container_image,
        "Labels": (tags := labels.sandbox_labels(config, runtime_handler="")),
        "HostConfig": {"NetworkMode": "none", **labels.ownership_fields(tags)},
    }
    sandbox = SandboxId(engine.create_container(name=names.sandbox_name(config.metadata), body=body))
    engine.start_container(sandbox)
    rt.view.refresh_container(sandbox)
    attachment = Attachment(conflist=CONFLIST, container_id=sandbox, netns="/run/netns/cri-x", ifname="eth0")
    write_cached(rt.config.cni_cache_dir, attachment, result=RESULT)
    rt.checkpoints.put(
        SandboxCheckpoint(
            sandbox_id=sandbox,
            config=labels.config_as_dict(config),
            runtime_handler="",
            created_at=1,
            ready=True,
            network=replace_struct(INTENT, result=RESULT),
        )
    )
    return sandbox


def checkpoint_path(rt: Runtime, sandbox: SandboxId) -> Path:
    return rt.config.root_directory / "sandboxes" / f"{sandbox}.json"


def restarted(rt: Runtime) -> Runtime:
    """The next server on the same directories, after its recovery."""
    rt = replace(rt, checkpoints=CheckpointStore(rt.config.root_directory / "sandboxes"))
    recover_checkpoints(rt)
    return rt


def is_ready(rt: Runtime, sandbox: SandboxId) -> bool:
    return pod.is_ready(rt.checkpoints, rt.view.sandbox(sandbox))


def ip_of(rt: Runtime, sandbox: SandboxId) -> str:
    return pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False).status.network.ip


NETWORKS = pytest.mark.parametrize(("network", "ip"), [(pb.NODE, ""), (pb.POD, "10.1.0.7")], ids=["host", "pod"])


@NETWORKS
@pytest.mark.parametrize("form", READ.values(), ids=READ)
def test_a_checkpoint_of_an_earlier_server_is_read(
    rt: Runtime, engine: FakeEngine, form: Form, network: pb.NamespaceMode, ip: str
) -> None:
    sandbox = pod_on(rt, engine, network)
    content = form(msgspec.to_builtins(rt.checkpoints.get(sandbox)))
    checkpoint_path(rt, sandbox).write_bytes(content)

    rt = restarted(rt)

    assert is_ready(rt, sandbox)
    assert ip_of(rt, sandbox) == ip
    assert checkpoint_path(rt, sandbox).read_bytes() == content
    assert rt.checkpoints.corrupt() == []


@NETWORKS
@pytest.mark.parametrize(("form", "aside"), SET_ASIDE.values(), ids=SET_ASIDE)
def test_a_checkpoint_of_a_newer_version_is_kept_and_its_pod_stays_ready(
    rt: Runtime, engine: FakeEngine, form: Form, aside: str, network: pb.NamespaceMode, ip: str
) -> None:
    sandbox = pod_on(rt, engine, network)
    content = form(msgspec.to_builtins(rt.checkpoints.get(sandbox)))
    checkpoint_path(rt, sandbox).write_bytes(content)

    for _ in range(2):  # the second server finds the rebuilt checkpoint
        rt = restarted(rt)
        assert is_ready(rt, sandbox)
        assert ip_of(rt, sandbox) == ip
        assert (checkpoint_path(rt, sandbox).parent / aside.format(sandbox)).read_bytes() == content


def test_a_pod_without_any_network_record_is_not_ready(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.POD)
    checkpoint_path(rt, sandbox).unlink()
    for path in (rt.config.cni_cache_dir / "results").iterdir():
        path.unlink()
    rt = restarted(rt)
    assert not is_ready(rt, sandbox)


def test_a_pause_container_that_has_ended_gets_no_checkpoint(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.NODE)
    checkpoint_path(rt, sandbox).unlink()
    engine.exit_container(sandbox)
    rt.view.refresh_container(sandbox)
    assert restarted(rt).checkpoints.all() == []


def test_a_pod_stays_ready_after_its_state_directory_was_cleared(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.NODE)
    container = created(rt, sandbox)
    shutil.rmtree(rt.config.root_directory)
    rt = restarted(rt)
    assert is_ready(rt, sandbox)
    start_container(rt, container_id=container)
    assert [path.read_bytes() for path in pod.resolv_conf_directory(rt.config).iterdir()] == [dns.resolv_conf(None)]


def test_a_pod_during_its_add_is_not_ready_without_its_checkpoint(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.POD)
    owner = Owner(docker="/run/docker.sock", sandbox="k8s_POD_web_default_uid-web_0")
    attachment = Attachment(
        conflist=CONFLIST, container_id=sandbox, netns="/run/netns/cri-x", ifname="eth0", owner=owner
    )
    write_cached(rt.config.cni_cache_dir, attachment, result=None)
    checkpoint_path(rt, sandbox).unlink()

    rt = restarted(rt)

    assert not is_ready(rt, sandbox)
    assert rt.checkpoints.get(sandbox) is not None


def test_a_pod_with_only_loopback_stays_ready_without_its_checkpoint(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.POD)
    shutil.rmtree(rt.config.cni_cache_dir)
    checkpoint_path(rt, sandbox).unlink()
    assert not is_ready(restarted(rt), sandbox)

    rt = replace(rt, config=msgspec.structs.replace(rt.config, network_plugin="none"))

    assert is_ready(restarted(rt), sandbox)
