"""The `info` of verbose statuses of containers and pause containers, with containerd's keys for `crictl inspect`."""

from collections.abc import Mapping, MutableSequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from google.protobuf.message import Message

from shim.dockerd.runc_files import Unfit, bundle_of, read_file, read_state
from shim.domain.errors import reason_of
from shim.runtime import Runtime
from shim.view.records import ContainerRecord, SandboxRecord

_RUNTIME_TYPE = "io.containerd.runc.v2"
"""The containerd-shim that Docker's containerd uses for runc and the server's OCI runtime."""

log = structlog.get_logger(__name__)


def common_info(rt: Runtime, record: ContainerRecord | SandboxRecord, *, image: str, exec_root: str) -> dict[str, Any]:
    """Return `pid`, `image`, `snapshotter`, `runtimeType`, `runtimeSpec`, `config` and `privileged`.

    Docker is not called. `runtimeSpec` is the OCI runtime's config.json. It is null, and `runtimeType` empty, unless
    runc runs the container, because the bundle is removed at its end. `exec_root` is Docker's directory for runtime
    state.
    """
    spec = _runtime_spec(record, exec_root)
    engine = rt.facts.last_info
    return {
        "pid": record.state.pid,
        "dockerName": record.name,
        "image": image,
        "snapshotter": engine.driver if engine else "",
        "runtimeType": _RUNTIME_TYPE if spec is not None else "",
        "privileged": record.config.linux.security_context.privileged,
        "config": _plain(record.config),
        "runtimeSpec": spec,
    }


def _runtime_spec(record: ContainerRecord | SandboxRecord, exec_root: str) -> msgspec.Raw | None:
    if not record.state.pid:
        return None
    try:
        state = read_state(record.id, exec_root=Path(exec_root), pid=record.state.pid)
        content = read_file(bundle_of(state) / "config.json")
        msgspec.json.decode(content)
    except (Unfit, msgspec.MsgspecError) as error:
        log.debug("no OCI specification of the container", container=record.id, error=str(error))
        return None
    except OSError as error:  # another runtime than runc, or the container has ended
        log.debug("no OCI specification of the container", container=record.id, error=reason_of(error))
        return None
    return msgspec.Raw(content)


def _plain(value: Any) -> Any:
    """Return the set fields of a message, as Go's encoding/json writes them: enums and 64-bit integers are numbers."""
    match value:
        case Message():
            return {field.name: _plain(each) for field, each in value.ListFields()}
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case MutableSequence():
            return [_plain(each) for each in value]
        case _:
            return value
