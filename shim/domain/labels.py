"""The labels of the server's Docker containers: their encoding, and how the server recognises its containers.

The server writes three kinds of labels:

* `io.pydockershim.*` are authoritative. They hold the CRI configuration as JSON, since Docker does not return mounts,
  requested users, annotations or nanosecond times.
* `io.kubernetes.docker.type`, `io.kubernetes.sandbox.id`, `io.kubernetes.container.logpath` and `annotation.<key>`:
  the labels of all Docker-backed nodes, for cri-dockerd, log agents and people.
* The CRI labels themselves, so that `docker ps --filter label=...` works.

Docker merges an image's labels into its containers' labels, and `docker commit` gives an image the labels of a
container. Hence the server reads CRI labels and annotations only from the JSON, and no label proves which runtime
created a container. Nor does a name: others can use it, and `docker rename` changes it. The proof is in `HostConfig`,
which no image can set: it holds the name under which the server created the container, and so does a label.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from google.protobuf import json_format

from shim.api.v1 import api_pb2 as pb
from shim.domain.names import POD, sandbox_name

_Config = TypeVar("_Config", pb.PodSandboxConfig, pb.ContainerConfig)

CONFIG = "io.pydockershim.config"
"""JSON of the PodSandboxConfig, or of the ContainerConfig without command, args and envs."""
RUNTIME_HANDLER = "io.pydockershim.runtime-handler"
CREATED_AS = "io.pydockershim.created-as"
"""The Docker name requested at create; absent on containers of version 0.1."""

INSPECTION = "io.pydockershim.look"
"""Marks the temporary containers of `shim.image.rootfs`."""

TYPE = "io.kubernetes.docker.type"
TYPE_SANDBOX = "podsandbox"
TYPE_CONTAINER = "container"
SANDBOX_ID = "io.kubernetes.sandbox.id"
LOG_PATH = "io.kubernetes.container.logpath"
CONTAINER_NAME = "io.kubernetes.container.name"
ANNOTATION_PREFIX = "annotation."

_SIGNAL = "SIGNAL_"
_OWN_PREFIX = "io.pydockershim."
RESERVED = frozenset({TYPE, SANDBOX_ID, LOG_PATH})


def ownership_fields(labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of HostConfig that `is_ours` checks for a container with these labels.

    Docker stores `ContainerIDFile` for its command line, and never reads it.
    """
    # Also overrides `init: true` of the daemon, which would put Docker's init in front.
    return {"Init": False, "UsernsMode": "host", "ContainerIDFile": labels[CREATED_AS]}


def is_ours(labels: Mapping[str, str], *, init: bool | None, userns_mode: str, container_id_file: str) -> bool:
    """Return whether this server created a container, by its labels and these fields of its HostConfig.

    For a container of version 0.1, which has no file, `init` and `userns_mode` decide: cri-dockerd sets neither.
    """
    if CONFIG not in labels or init is not False or userns_mode != "host":
        return False
    return CREATED_AS not in labels or container_id_file == labels[CREATED_AS]


def is_of_committed_image(labels: Mapping[str, str], *, name: str) -> bool:
    """Return whether a container that is not ours has labels of ours from its image, which `docker commit` made.

    A container of an earlier Docker shim may run such an image too, under a name of its own. No pause container does.
    """
    return CREATED_AS in labels and (is_sandbox(labels) or labels[CREATED_AS] == name)


def may_be_of_a_pod(labels: Mapping[str, str], *, network_mode: str) -> bool:
    """Return whether a container in Docker's list may belong to a pod of this server or of an earlier Docker shim.

    An application container is in the network of its sandbox. Only an inspect can show who created the container.
    """
    if labels.get(TYPE) == TYPE_CONTAINER:
        return network_mode == f"container:{labels.get(SANDBOX_ID, '')}"
    return is_sandbox(labels)


def created_as(labels: Mapping[str, str], *, name: str) -> str:
    """Return the Docker name under which a pod's container was created; `name` is its current name."""
    return labels.get(CREATED_AS, name)


def is_sandbox(labels: Mapping[str, str]) -> bool:
    """Return whether a container of this server is a pause container.

    All containers of this server set the label, so it is never an image's. The name is no proof: a container called
    POD_x has the prefix of a sandbox.
    """
    return labels.get(TYPE) == TYPE_SANDBOX


def sandbox_labels(config: pb.PodSandboxConfig, *, runtime_handler: str) -> dict[str, str]:
    """Return the labels of a pause container."""
    return {
        **_visible(config.labels, config.annotations),
        CONFIG: _json(config),
        CREATED_AS: sandbox_name(config.metadata),
        RUNTIME_HANDLER: runtime_handler,
        TYPE: TYPE_SANDBOX,
        CONTAINER_NAME: POD,
    }


def container_labels(config: pb.ContainerConfig, *, name: str, sandbox_id: str, log_path: str) -> dict[str, str]:
    """Return the labels of an application container; `name` is its Docker name, `log_path` is absolute or empty."""
    kept = pb.ContainerConfig()
    kept.CopyFrom(config)
    # Docker returns these fields, and environments hold secrets that need no second copy.
    for field in ("command", "args", "envs"):
        kept.ClearField(field)
    return {
        **_visible(config.labels, config.annotations),
        CONFIG: _json(kept),
        CREATED_AS: name,
        TYPE: TYPE_CONTAINER,
        SANDBOX_ID: sandbox_id,
        LOG_PATH: log_path,
    }


def config_as_dict(config: pb.PodSandboxConfig | pb.ContainerConfig) -> dict[str, Any]:
    """Return a configuration as plain JSON values, with the CRI's field names as keys."""
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def sandbox_config_from_dict(config: dict[str, Any]) -> pb.PodSandboxConfig:
    """Return the configuration that `config_as_dict` converted; unknown keys of a newer server are skipped."""
    return json_format.ParseDict(config, pb.PodSandboxConfig(), ignore_unknown_fields=True)


def sandbox_metadata_from_dict(config: dict[str, Any]) -> pb.PodSandboxMetadata:
    """Return only the metadata of a configuration that `config_as_dict` converted."""
    return json_format.ParseDict(config.get("metadata", {}), pb.PodSandboxMetadata(), ignore_unknown_fields=True)


def sandbox_config(labels: dict[str, str]) -> pb.PodSandboxConfig:
    """Return the configuration of a pause container of this server."""
    return _parsed(labels[CONFIG], pb.PodSandboxConfig())


def container_config(labels: dict[str, str]) -> pb.ContainerConfig:
    """Return the configuration of a container of this server, without command, args and envs."""
    return _parsed(labels[CONFIG], pb.ContainerConfig(), convert=_with_present_names)


def _with_present_names(plain: dict[str, Any]) -> None:
    """Give the stop signal in a label of version 0.1 its present name, which the CRI has since Kubernetes 1.37."""
    signal = plain.get("stop_signal")
    if isinstance(signal, str) and not signal.startswith(_SIGNAL):
        plain["stop_signal"] = _SIGNAL + signal


def _parsed(text: str, into: _Config, *, convert: Callable[[dict[str, Any]], None] = lambda _: None) -> _Config:
    """Fill `into` from the JSON of a label and return it. Raise ParseError, which older protobufs do not always do."""
    try:
        plain = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise json_format.ParseError(str(error)) from error
    convert(plain)
    return json_format.ParseDict(plain, into, ignore_unknown_fields=True)


def _visible(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the labels for `docker ps`. CRI labels that collide with the server's keys are only in the JSON."""
    shown = {key: value for key, value in labels.items() if key not in RESERVED and not key.startswith(_OWN_PREFIX)}
    return {**shown, **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()}}


def _json(message: pb.PodSandboxConfig | pb.ContainerConfig) -> str:
    return msgspec.json.encode(config_as_dict(message)).decode()
