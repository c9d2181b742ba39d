"""The network of a pod, from intent to release.

The intent is written to the checkpoint first: the CNI configuration, its arguments and the network namespace. The
result of ADD is added to the checkpoint. DEL runs with the recorded values, even if the node's configuration has
changed, and is repeated until it succeeds.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import NetworkIntent, SandboxCheckpoint
from shim.cni.arguments import INTERFACE, capability_args, cni_args
from shim.cni.cache import Owner
from shim.cni.conf import NetworkConfig
from shim.cni.host_ports import accept_host_ports
from shim.cni.masquerade import masquerades, remove_masquerade
from shim.cni.plugins import Attachment
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, ShimError
from shim.domain.labels import sandbox_metadata_from_dict
from shim.domain.names import sandbox_name
from shim.netns.links import has_interface, missing_addresses, prepare_links, prepare_links_of
from shim.netns.pin import ensure_pinned, unpin
from shim.runtime import Runtime
from shim.view.processes import is_process_of
from shim.view.records import SandboxRecord

_DISABLE_IPV6 = re.compile(r"net/ipv6/conf/([^/]+)/disable_ipv6\Z")
"""The sysctl by which a pod can disable IPv6, with slashes. The group is `all`, `default` or an interface."""

log = structlog.get_logger(__name__)


def netns_path(settings: Config, sandbox_id: str) -> Path:
    """Return the path of the pinned network namespace of a sandbox."""
    return settings.netns_directory / f"cri-{sandbox_id}"


def docker_socket(settings: Config) -> str:
    """Return the resolved path of Docker's socket, which identifies the Engine in an attachment's owner."""
    return os.path.realpath(settings.docker_endpoint.removeprefix("unix://"))


def network_intent(
    rt: Runtime, *, config: pb.PodSandboxConfig, sandbox_id: str, chosen: NetworkConfig | None
) -> NetworkIntent | None:
    """Return the parameters of ADD; None for a pod on the host network or with only a loopback interface."""
    if not pod.host_network(config):
        _warn_of_dead_host_ports(config, chosen)
    if chosen is None:
        return None
    return NetworkIntent(
        conflist=chosen.conflist,
        netns=str(netns_path(rt.config, sandbox_id)),
        ifname=INTERFACE,
        args=cni_args(config.metadata, sandbox_id=sandbox_id),
        capabilities=capability_args(config, pod_ranges=rt.cni.pod_cidr.ranges),
    )


def pin_netns(checkpoint: SandboxCheckpoint, *, pid: int, confirmed: Callable[[], bool] = lambda: True) -> None:
    """Pin the network namespace of the pause process at its path.

    Raise ProcessEnded if the process has ended, or `confirmed` rejects it.
    """
    ensure_pinned(_netns(checkpoint), pid=pid, confirmed=confirmed)


def check_pin(checkpoint: SandboxCheckpoint, *, pid: int) -> None:
    """Raise FailedPrecondition unless the pause process runs in the pinned network namespace."""
    ensure_pinned(_netns(checkpoint), pid=pid)


def prepare_netns(checkpoint: SandboxCheckpoint, *, sysctls: Mapping[str, str]) -> None:
    """Bring `lo` up in the pinned namespace, and enable IPv6 unless the pod's sysctls disable it. Raise ShimError.

    Call this before ADD, so that plugins can change the settings.
    """
    prepare_links(_netns(checkpoint), disable_ipv6=asked_disable_ipv6(sysctls))


def prepare_unpinned_netns(record: SandboxRecord) -> None:
    """Do the same as `prepare_netns` for a pod with only `lo`. Raise ShimError if pause has ended."""
    asked = asked_disable_ipv6(record.config.linux.sysctls)
    prepare_links_of(record.state.pid, confirmed=partial(is_process_of, record), disable_ipv6=asked)


def asked_disable_ipv6(sysctls: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `disable_ipv6` among the sysctls of a pod, by `all`, `default` or interface.

    Names may have dots or slashes, as in runc.
    """
    found = ((_DISABLE_IPV6.match(name.replace(".", "/")), value) for name, value in sysctls.items())
    return {match[1]: value for match, value in found if match}


def unpin_netns(checkpoint: SandboxCheckpoint) -> None:
    """Release the network namespace. Idempotent."""
    if checkpoint.network is not None:
        unpin(_netns(checkpoint))


def record_intent(rt: Runtime, checkpoint: SandboxCheckpoint) -> None:
    """Record the future ADD in the CNI cache, in case the checkpoint gets lost."""
    if checkpoint.network is not None:
        rt.cni.plugins.intend(_attachment(rt, checkpoint))


def forget_intent(rt: Runtime, checkpoint: SandboxCheckpoint) -> None:
    """Remove the record of the ADD from the CNI cache. Only log a failure, because `collect_networks` tries again."""
    if checkpoint.network is None:
        return
    try:
        rt.cni.plugins.forget(_attachment(rt, checkpoint))
    except ShimError as error:
        log.warning("failed to remove CNI cache entry", sandbox=checkpoint.sandbox_id, error=error)


def attach(rt: Runtime, checkpoint: SandboxCheckpoint) -> SandboxCheckpoint:
    """Run CNI ADD in the pinned namespace; return the checkpoint with the result, but do not write it."""
    attachment = _attachment(rt, checkpoint)
    result = rt.cni.plugins.add(attachment)
    attached = msgspec.structs.replace(checkpoint, network=_replace_network(checkpoint, result=result))
    ips = pod.addresses(attached)
    if not ips:
        raise FailedPrecondition(
            f"cni network {attachment.network} gave pod sandbox {checkpoint.sandbox_id} no address on {INTERFACE}"
        )
    if "portMappings" in attachment.capabilities:
        accept_host_ports(attachment.conflist, addresses=ips)
    return attached


def _warn_of_dead_host_ports(config: pb.PodSandboxConfig, chosen: NetworkConfig | None) -> None:
    """Log that host ports have no effect. As in other runtimes, the pod runs nevertheless."""
    ports = [mapping.host_port for mapping in config.port_mappings if mapping.host_port]
    if ports and not (chosen and chosen.declares("portMappings")):
        log.warning(
            "host ports ignored: no portMappings plugin in CNI network",
            pod=f"{config.metadata.namespace}/{config.metadata.name}",
            network=chosen.name if chosen else "none",
            host_ports=ports,
        )


def release(rt: Runtime, checkpoint: SandboxCheckpoint) -> SandboxCheckpoint:
    """Run CNI DEL unless it has already succeeded; return the checkpoint marked as released."""
    if checkpoint.network is None or checkpoint.network.released:
        return checkpoint
    delete(rt, _attachment(rt, checkpoint))
    released = msgspec.structs.replace(checkpoint, network=_replace_network(checkpoint, released=True), ready=False)
    rt.checkpoints.note(released)
    return released


def check_result(checkpoint: SandboxCheckpoint | None) -> str:
    """Return "ok", or which addresses of the CNI result the pod's interfaces lack; "" without a CNI result.

    This asks the kernel instead of running CNI CHECK, which takes 100 ms, and which some plugins fail for every pod
    with host ports.
    """
    network = checkpoint.network if checkpoint else None
    if checkpoint is None or network is None or network.released or network.result is None:
        return ""
    try:
        missing = missing_addresses(Path(network.netns), pod.addresses(checkpoint))
    except (ShimError, OSError) as error:
        return str(error)
    return f"no interface of the pod has {', '.join(missing)}" if missing else "ok"


def delete(rt: Runtime, attachment: Attachment, *, forget: bool = True) -> None:
    """Run CNI DEL, and remove rules that plugins leave if the interface is already gone."""
    is_whole = has_interface(Path(attachment.netns), attachment.ifname)
    rt.cni.plugins.delete(attachment, forget=forget and is_whole)
    if is_whole:
        return
    if masquerades(attachment.conflist):
        remove_masquerade(attachment.container_id)
    if forget:
        rt.cni.plugins.forget(attachment)


def _netns(checkpoint: SandboxCheckpoint) -> Path:
    assert checkpoint.network is not None  # noqa: S101 - callers check first; host-network pods have none
    return Path(checkpoint.network.netns)


def _replace_network(checkpoint: SandboxCheckpoint, **changes: Any) -> NetworkIntent:
    assert checkpoint.network is not None  # noqa: S101 - as above
    return msgspec.structs.replace(checkpoint.network, **changes)


def _attachment(rt: Runtime, checkpoint: SandboxCheckpoint) -> Attachment:
    network = _replace_network(checkpoint)
    return Attachment(
        conflist=network.conflist,
        container_id=checkpoint.sandbox_id,
        netns=network.netns,
        ifname=network.ifname,
        args=network.args,
        capabilities=network.capabilities,
        result=network.result,
        owner=Owner(
            docker=docker_socket(rt.config),
            sandbox=sandbox_name(sandbox_metadata_from_dict(checkpoint.config)),
        ),
    )
