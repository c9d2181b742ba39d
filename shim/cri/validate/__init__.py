"""Validation of requests by their content alone.

The services call the function of an RPC before the domain sees the request. All raise InvalidArgument, and name the
field as the client wrote it, such as `config.metadata.name`. Checks that depend on the state of the node, Docker or
an image belong to the domain.
"""

from collections.abc import Mapping, Sequence

from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import check_path_length
from shim.cri.validate import rules
from shim.cri.validate.container import container_config
from shim.cri.validate.limits import resources
from shim.cri.validate.pod import log_directory, sandbox_config
from shim.cri.validate.rules import well_formed
from shim.criu.layout import CONTAINERS_LIMIT
from shim.domain.errors import InvalidArgument

TCP_OPTION = "tcp-established"
"""What becomes of established TCP connections at a restore."""
TCP_CLOSE, TCP_REFUSE = "close", "refuse"

__all__ = [
    "attach",
    "checkpoint_container",
    "checkpoint_pod",
    "container_id",
    "create_container",
    "exec_",
    "exec_sync",
    "image",
    "pod_sandbox_id",
    "port_forward",
    "restore_pod",
    "run_pod_sandbox",
    "stop_container",
    "update_container_resources",
    "update_pod_sandbox_resources",
    "well_formed",
]


def run_pod_sandbox(request: pb.RunPodSandboxRequest) -> None:
    """Check RunPodSandbox."""
    well_formed(request)
    rules.required(request, "config")
    sandbox_config(request.config, field="config")


def create_container(request: pb.CreateContainerRequest) -> None:
    """Check CreateContainer. Of the pod's configuration, only metadata and log directory are used and checked."""
    well_formed(request)
    rules.required(request, "pod_sandbox_id")
    rules.required(request, "config")
    container_config(request.config, field="config")
    rules.required(request, "sandbox_config")
    rules.pod_metadata(request.sandbox_config, field="sandbox_config")
    log_directory(request.sandbox_config.log_directory, field="sandbox_config.log_directory")


def stop_container(request: pb.StopContainerRequest) -> None:
    """Check StopContainer."""
    container_id(request)
    rules.not_negative(request.timeout, field="timeout")


def checkpoint_container(request: pb.CheckpointContainerRequest) -> None:
    """Check CheckpointContainer."""
    container_id(request)
    check_path_length(request.location, field="location")
    rules.absolute(request.location, field="location")
    rules.no_parent(request.location, field="location")
    rules.not_negative(request.timeout, field="timeout")


def checkpoint_pod(request: pb.CheckpointPodRequest) -> None:
    """Check CheckpointPod."""
    pod_sandbox_id(request)
    _checkpoint_directory(request.output_path, field="output_path")
    if not request.container_ids:
        raise InvalidArgument("container_ids is empty")
    rules.at_most(request.container_ids, CONTAINERS_LIMIT, field="container_ids")
    if len(set(request.container_ids)) != len(request.container_ids):
        raise InvalidArgument("container_ids names a container twice")
    _known_options(request.options, known=())


def restore_pod(request: pb.RestorePodRequest) -> bool:
    """Check RestorePod. Return whether established TCP connections are to be refused."""
    well_formed(request)
    _checkpoint_directory(request.checkpoint_path, field="checkpoint_path")
    rules.required(request, "config")
    sandbox_config(request.config, field="config")
    if not request.container_configs:
        raise InvalidArgument("container_configs is empty")
    rules.at_most(request.container_configs, CONTAINERS_LIMIT, field="container_configs")
    for index, config in enumerate(request.container_configs):
        container_config(config, field=f"container_configs[{index}]")
    _known_options(request.options, known=(TCP_OPTION,))
    value = request.options.get(TCP_OPTION, TCP_CLOSE)
    if value not in (TCP_CLOSE, TCP_REFUSE):
        raise InvalidArgument(f"options: {TCP_OPTION} {value!r} is neither {TCP_CLOSE} nor {TCP_REFUSE}")
    return value == TCP_REFUSE


def _checkpoint_directory(path: str, *, field: str) -> None:
    check_path_length(path, field=field)
    rules.absolute(path, field=field)
    rules.no_parent(path, field=field)


def _known_options(options: Mapping[str, str], *, known: Sequence[str]) -> None:
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise InvalidArgument(f"options: {unknown[0]!r} is not known; these are: {', '.join(known) or 'none'}")


def exec_sync(request: pb.ExecSyncRequest) -> None:
    """Check ExecSync."""
    container_id(request)
    rules.command(request)
    rules.not_negative(request.timeout, field="timeout")


def exec_(request: pb.ExecRequest) -> None:
    """Check Exec."""
    container_id(request)
    rules.command(request)
    rules.streams(request)


def attach(request: pb.AttachRequest) -> None:
    """Check Attach."""
    container_id(request)
    rules.streams(request)


def port_forward(request: pb.PortForwardRequest) -> None:
    """Check PortForward. Only WebSocket clients use the ports of the request; others name a port for each stream."""
    pod_sandbox_id(request)
    for index, port in enumerate(request.port):
        rules.between(port, least=1, most=rules.MAX_PORT, field=f"port[{index}]")
    rules.at_most(request.port, rules.MAX_FORWARDED_PORTS, field="port")


def update_container_resources(request: pb.UpdateContainerResourcesRequest) -> None:
    """Check UpdateContainerResources."""
    container_id(request)
    rules.no_windows(request.windows, field="windows")
    rules.required(request, "linux")
    resources(request.linux, field="linux")


def update_pod_sandbox_resources(request: pb.UpdatePodSandboxResourcesRequest) -> None:
    """Check UpdatePodSandboxResources."""
    # The values are only recorded, and kubelets subtract the overhead even from "no limit", so any value is accepted.
    pod_sandbox_id(request)


def pod_sandbox_id(request: Message) -> None:
    """Check any request about a pod sandbox."""
    well_formed(request)
    rules.required(request, "pod_sandbox_id")


def container_id(request: Message) -> None:
    """Check any request about a container."""
    well_formed(request)
    rules.required(request, "container_id")


def image(request: Message) -> None:
    """Check any request about an image."""
    well_formed(request)
    rules.image_spec(request)
