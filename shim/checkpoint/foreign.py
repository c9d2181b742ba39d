"""Read what cri-dockerd kept about a pod, so that pods from before the switch are torn down cleanly.

`<root>/sandbox/<sandbox id>` holds

    {"version": "v1", "name": .., "namespace": .., "checksum": .., "data": {"host_network": true,
     "port_mappings": [{"protocol": .., "container_port": .., "host_port": .., "host_ip": ..}]}}

with each field of `data` left out when it is empty. The checksum covers how the structures of that program
print in Go, which changes with the names of its packages; it is not looked at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import structlog

T = TypeVar("T")
Protocol = Literal["tcp", "udp", "sctp"]

log = structlog.get_logger(__name__)


class ForeignPortMapping(msgspec.Struct, frozen=True, kw_only=True):
    """A port of the node that leads to the pod."""

    protocol: Protocol = "tcp"
    container_port: int
    host_port: int
    host_ip: str = ""
    """The address of the node; empty for all."""


class ForeignCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What cri-dockerd remembered of a pod."""

    name: str
    namespace: str
    port_mappings: tuple[ForeignPortMapping, ...]
    """Those with a host port; the others have nothing to undo."""
    host_network: bool


def read_cri_dockerd(path: Path) -> ForeignCheckpoint | None:
    """Read one checkpoint of cri-dockerd; None if there is none, or (logged) if it cannot be read.

    A part that is missing or unreadable counts as empty: what is left still helps the teardown.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("checkpoint of cri-dockerd ignored", file=str(path), error=str(error))
        return None
    data = _of_type(dict, found.get("data"))
    return ForeignCheckpoint(
        name=_of_type(str, found.get("name")),
        namespace=_of_type(str, found.get("namespace")),
        port_mappings=tuple(_port_mappings(_of_type(list, data.get("port_mappings")))),
        host_network=data.get("host_network") is True,
    )


def _port_mappings(entries: list[Any]) -> Iterator[ForeignPortMapping]:
    for entry in entries:
        present = {key: value for key, value in _of_type(dict, entry).items() if value is not None}
        try:
            mapping = msgspec.convert(present, ForeignPortMapping)
        except msgspec.ValidationError:
            continue
        if mapping.host_port > 0:
            yield mapping


def _of_type(kind: type[T], value: object) -> T:
    return value if isinstance(value, kind) else kind()
