"""The labels by which the shim recognises its Docker containers, and their encoding.

Three kinds of labels are written:

* `io.pydockershim.*`: authoritative. The CRI configuration as JSON, since Docker does not return mounts, requested
  users, annotations or nanosecond times.
* `io.kubernetes.docker.type`, `io.kubernetes.sandbox.id`, `io.kubernetes.container.logpath` and `annotation.<key>`:
  those of all Docker-backed nodes, for cri-dockerd, log agents and people.
* the CRI labels themselves, so that `docker ps --filter label=...` works.

Docker merges the labels of an image into those of its containers. Hence CRI labels and annotations are read back from
the JSON only, and neither they nor the prefix of a name, which other Docker shims use too, prove which runtime created
a container. `HostConfig.Init` does: no image can set it, those shims never send it, and ours have it as false.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from google.protobuf import json_format

from shim.api.v1 import api_pb2 as pb
from shim.domain.names import POD, PREFIX

_Config = TypeVar("_Config", pb.PodSandboxConfig, pb.ContainerConfig)

CONFIG = "io.pydockershim.config"
"""JSON of the PodSandboxConfig, or of the ContainerConfig without command, args and envs."""
RUNTIME_HANDLER = "io.pydockershim.runtime-handler"

INSPECTION = "io.pydockershim.look"
"""On the containers of `shim.image.rootfs`."""

TYPE = "io.kubernetes.docker.type"
TYPE_SANDBOX = "podsandbox"
TYPE_CONTAINER = "container"
SANDBOX_ID = "io.kubernetes.sandbox.id"
LOG_PATH = "io.kubernetes.container.logpath"
CONTAINER_NAME = "io.kubernetes.container.name"
ANNOTATION_PREFIX = "annotation."

_OWN_PREFIX = "io.pydockershim."
RESERVED = frozenset({TYPE, SANDBOX_ID, LOG_PATH})


def is_ours(name: str, labels: dict[str, str], *, init: bool | None) -> bool:
    """Whether the container of this Docker name (with or without its slash) was created by this runtime.

    `init` is that of its inspect: ours all have false, cri-dockerd leaves it to the daemon.
    """
    return init is False and may_be_ours(name, labels)


def may_be_ours(name: str, labels: dict[str, str]) -> bool:
    """Whether a container of a list may be ours. Only an inspect decides it: its image may have the label."""
    return name.lstrip("/").startswith(PREFIX) and CONFIG in labels


def is_sandbox(labels: dict[str, str]) -> bool:
    """Whether a container that is ours is the pause container of a pod.

    By the label, which all of ours set, so that it never is an image's; the name of a container called POD_x has the
    prefix of a sandbox.
    """
    return labels.get(TYPE) == TYPE_SANDBOX


def sandbox_labels(config: pb.PodSandboxConfig, *, runtime_handler: str) -> dict[str, str]:
    """Return the labels of a pause container."""
    return {
        **_visible(config.labels, config.annotations),
        CONFIG: _json(config),
        RUNTIME_HANDLER: runtime_handler,
        TYPE: TYPE_SANDBOX,
        CONTAINER_NAME: POD,
    }


def container_labels(config: pb.ContainerConfig, *, sandbox_id: str, log_path: str) -> dict[str, str]:
    """Return the labels of an application container; `log_path` is absolute or empty."""
    kept = pb.ContainerConfig()
    kept.CopyFrom(config)
    # Docker returns these itself, and environments hold secrets that need no second copy.
    for field in ("command", "args", "envs"):
        kept.ClearField(field)
    return {
        **_visible(config.labels, config.annotations),
        CONFIG: _json(kept),
        TYPE: TYPE_CONTAINER,
        SANDBOX_ID: sandbox_id,
        LOG_PATH: log_path,
    }


def config_as_dict(config: pb.PodSandboxConfig | pb.ContainerConfig) -> dict[str, Any]:
    """Return a configuration as plain JSON values, keys spelled as in the CRI."""
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def sandbox_config_from_dict(config: dict[str, Any]) -> pb.PodSandboxConfig:
    """Return the configuration that `config_as_dict` converted; keys of a newer shim are skipped."""
    return json_format.ParseDict(config, pb.PodSandboxConfig(), ignore_unknown_fields=True)


def sandbox_metadata_from_dict(config: dict[str, Any]) -> pb.PodSandboxMetadata:
    """Return the metadata alone of a configuration that `config_as_dict` converted."""
    return json_format.ParseDict(config.get("metadata", {}), pb.PodSandboxMetadata(), ignore_unknown_fields=True)


def sandbox_config(labels: dict[str, str]) -> pb.PodSandboxConfig:
    """Return the configuration of a pause container that is ours."""
    return _parsed(labels[CONFIG], pb.PodSandboxConfig())


def container_config(labels: dict[str, str]) -> pb.ContainerConfig:
    """Return the configuration of a container that is ours, without command, args and envs."""
    return _parsed(labels[CONFIG], pb.ContainerConfig())


def _parsed(text: str, into: _Config) -> _Config:
    """Return `into` with what is in a label. Raise ParseError; older protobufs do not for all that is no object."""
    try:
        plain = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise json_format.ParseError(str(error)) from error
    return json_format.ParseDict(plain, into, ignore_unknown_fields=True)


def _visible(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return what `docker ps` can show. A pod may have labels of our keys, too: they are in the JSON alone."""
    shown = {key: value for key, value in labels.items() if key not in RESERVED and not key.startswith(_OWN_PREFIX)}
    return {**shown, **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()}}


def _json(message: pb.PodSandboxConfig | pb.ContainerConfig) -> str:
    return msgspec.json.encode(config_as_dict(message)).decode()
