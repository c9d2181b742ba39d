"""PodSandboxStatus."""

import time
from typing import Any

import msgspec

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import SandboxCheckpoint
from shim.container.status import pod_status_messages
from shim.container.verbose import common_info
from shim.domain import labels
from shim.domain.errors import NotFound
from shim.runtime import Runtime
from shim.sandbox import network
from shim.sandbox.find import find_sandbox
from shim.sandbox.list import sandbox_state
from shim.view.image_index import name_for_people
from shim.view.records import SandboxRecord


def pod_sandbox_status(rt: Runtime, *, sandbox_id: str, verbose: bool) -> pb.PodSandboxStatusResponse:
    """Return a consistent status of a sandbox and its containers. Raise NotFound for an unknown id."""
    # Taken before the read, because the kubelet compares timestamps to find the newer of two statuses.
    now = time.time_ns()
    record = find_sandbox(rt, sandbox_id)
    if rt.unseen.is_hidden(record):
        raise NotFound(f"no pod sandbox has the id {record.id}")
    return pb.PodSandboxStatusResponse(
        status=sandbox_status_message(rt, record),
        info={"info": msgspec.json.encode(_verbose(rt, record)).decode()} if verbose else {},
        containers_statuses=pod_status_messages(rt, rt.unseen.seen(rt.view.containers_of(record.id))),
        timestamp=now,
    )


def sandbox_status_message(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxStatus:
    """Build the status of a sandbox, for PodSandboxStatus and for events."""
    options = record.config.linux.security_context.namespace_options
    return pb.PodSandboxStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(rt.checkpoints, record),
        created_at=record.state.created_at,
        network=_network(rt, record),
        linux=pb.LinuxPodSandboxStatus(namespaces=pb.Namespace(options=options)),
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )


def _network(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxNetworkStatus | None:
    """Return the addresses of a pod; an empty message on the host network, whose addresses the kubelet knows.

    Return None if the network is unknown, for example for a cri-dockerd pod without a readable result in the CNI cache.
    For an empty message the kubelet would assume that the network is lost, and end the pod.
    """
    ips = pod.addresses(rt.checkpoints.get(record.id))
    if not ips and record.state.running and not pod.host_network(record.config):
        return None
    return pb.PodSandboxNetworkStatus(ip=ips[0] if ips else "", additional_ips=[pb.PodIP(ip=ip) for ip in ips[1:]])


def _verbose(rt: Runtime, record: SandboxRecord) -> dict[str, Any]:
    checkpoint = rt.checkpoints.get(record.id)
    intent = checkpoint.network if checkpoint else None
    return {
        **common_info(rt, record, image=_image(rt, record), exec_root=record.exec_root),
        "runtimeHandler": record.runtime_handler,
        "netns": intent.netns if intent else "",
        "cniNetwork": intent.conflist.get("name", "") if intent else "",
        "cniResult": intent.result if intent else None,
        "cniCheck": network.check_result(checkpoint) if record.state.running else "",
        **_recorded_resources(checkpoint, record),
    }


def _image(rt: Runtime, record: SandboxRecord) -> str:
    image = rt.view.images.last_known(record.image_id)
    return name_for_people(image, wanted=rt.config.pod_infra_container_image) if image else record.image_id


def _recorded_resources(checkpoint: SandboxCheckpoint | None, record: SandboxRecord) -> dict[str, Any]:
    """Return the pod's limits from the last RunPodSandbox or UpdatePodSandboxResources."""
    config = checkpoint.config if checkpoint else labels.config_as_dict(record.config)
    linux = config.get("linux", {})
    return {name: linux.get(name, {}) for name in ("overhead", "resources")}
