"""Rules that several requests share.

Each raises InvalidArgument with the name of the field, and never shows a value that may be a secret.
"""

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Sized
from pathlib import PurePosixPath

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument
from shim.domain.names import check_name_part
from shim.domain.passwd import MAX_ID

MAX_LABEL_BYTES = 512 << 10
"""Labels and annotations of an object together. Kubernetes allows 256 KiB of annotations and little else."""

MAX_PROCESS_BYTES = 2 << 20
"""Bytes of a command with its arguments and environment. At the usual stack limit of 8 MiB the kernel starts no larger
command (execve(2)), and Docker's answers about such a container would exceed `shim.engine.bounds`."""

MAX_PORT = (1 << 16) - 1

_HOST_IDS = (1 << 32) - 1
"""Ids that user namespaces can map: all but the highest, which the kernel uses for "no id" (user_namespaces(7))."""

MAX_FORWARDED_PORTS = 128
"""Ports of a PortForward: a WebSocket connection has two channels for each port, and a byte to name a channel."""


def well_formed(message: Message, *, field: str = "") -> None:
    """Check a whole message: enum values are known (proto3 accepts others), and texts hold no NUL.

    A NUL ends a text for the kernel and for every tool behind Docker, so the checked text and the used text could
    differ. Values of annotations may hold a NUL: they are only stored, as JSON.
    """
    for descriptor, value in message.ListFields():
        _check(value, descriptor, field=f"{field}.{descriptor.name}" if field else descriptor.name)


def required(message: Message, name: str, *, field: str = "") -> None:
    """Check that the sub-message or text `name` is set."""
    value = getattr(message, name)
    given = message.HasField(name) if isinstance(value, Message) else bool(value)
    if not given:
        word = "missing" if isinstance(value, Message) else "empty"
        raise InvalidArgument(f"{f'{field}.' if field else ''}{name} is {word}")


def image_spec(message: Message, *, field: str = "") -> None:
    """Check that `message` names an image."""
    required(message, "image", field=field)
    required(message.image, "image", field=f"{field}.image" if field else "image")  # type: ignore[attr-defined]


def pod_metadata(config: pb.PodSandboxConfig, *, field: str) -> None:
    """Check the names that identify a pod and form its Docker name."""
    required(config, "metadata", field=field)
    for name in ("name", "namespace", "uid"):
        check_name_part(getattr(config.metadata, name), field=f"{field}.metadata.{name}")


def no_parent(path: str, *, field: str) -> None:
    """Check that a path cannot leave its directory by `..`."""
    if ".." in PurePosixPath(path).parts:
        raise InvalidArgument(f"{field} {path!r} must not hold '..'")


def absolute(path: str, *, field: str) -> None:
    """Check that a path is absolute and not empty."""
    if not path.startswith("/"):
        raise InvalidArgument(f"{field} {path!r} is not an absolute path")


def between(value: int, *, least: int, most: int, field: str) -> None:
    """Check the range of a number."""
    if not least <= value <= most:
        raise InvalidArgument(f"{field} {value} is not between {least} and {most}")


def at_most(entries: Sized, limit: int, *, field: str) -> None:
    """Check the length of a list."""
    if len(entries) > limit:
        raise InvalidArgument(f"{field} has {len(entries)} entries, at most {limit} are allowed")


def not_negative(value: int, *, field: str) -> None:
    """Check a number such as seconds."""
    if value < 0:
        raise InvalidArgument(f"{field} {value} is negative")


def word(text: str, *, field: str) -> None:
    """Check a text that is written to a file as a word: white space would split it into several words or lines."""
    if text.split() != [text]:
        raise InvalidArgument(f"{field} {text!r} is not one word")


def labels_and_annotations(config: pb.PodSandboxConfig | pb.ContainerConfig, *, field: str) -> None:
    """Check their total size."""
    size = _size(config.labels) + _size(config.annotations)
    if size > MAX_LABEL_BYTES:
        raise InvalidArgument(
            f"{field}.labels and annotations have {size} bytes, at most {MAX_LABEL_BYTES} are allowed"
        )


def process_size(*parts: Iterable[str | bytes], field: str) -> None:
    """Check the size of a command line and environment, given in parts."""
    size = sum(len(text) + 1 for part in parts for text in part)
    if size > MAX_PROCESS_BYTES:
        raise InvalidArgument(f"{field} have {size} bytes, at most {MAX_PROCESS_BYTES} are allowed")


def command(request: pb.ExecRequest | pb.ExecSyncRequest) -> None:
    """Check the command of an exec."""
    if not request.cmd or not request.cmd[0]:
        raise InvalidArgument("cmd is empty")
    process_size(request.cmd, field="the words of cmd")


def ids(context: pb.LinuxSandboxSecurityContext | pb.LinuxContainerSecurityContext, *, field: str) -> None:
    """Check uid and gids."""
    for name in ("run_as_user", "run_as_group"):
        if context.HasField(name):
            between(getattr(context, name).value, least=0, most=MAX_ID, field=f"{field}.{name}")
    for index, group in enumerate(context.supplemental_groups):
        between(group, least=0, most=MAX_ID, field=f"{field}.supplemental_groups[{index}]")


def namespaces(options: pb.NamespaceOption, *, pid: tuple[pb.NamespaceMode, ...], field: str) -> None:
    """Check namespace modes; `pid` holds the allowed modes of the pid namespace."""
    _mode(options.network, (pb.POD, pb.NODE), field=f"{field}.network")
    _mode(options.pid, pid, field=f"{field}.pid")
    _mode(options.ipc, (pb.POD, pb.NODE), field=f"{field}.ipc")
    if options.pid == pb.TARGET and not options.target_id:
        raise InvalidArgument(f"{field}.target_id is empty, but pid is TARGET")
    if options.HasField("userns_options"):
        _mode(options.userns_options.mode, (pb.POD, pb.NODE), field=f"{field}.userns_options.mode")
        if options.userns_options.mode == pb.NODE and (options.userns_options.uids or options.userns_options.gids):
            raise InvalidArgument(f"{field}.userns_options: mode NODE has no mappings")
        if options.userns_options.mode == pb.POD:
            _user_namespace(options, field=field)


def _user_namespace(options: pb.NamespaceOption, *, field: str) -> None:
    """Check the user namespace of a pod: a range of uids, a range of gids, and no pid or ipc namespace of the host."""
    for name in ("uids", "gids"):
        mappings: Sequence[pb.IDMapping] = getattr(options.userns_options, name)
        if len(mappings) != 1:
            raise InvalidArgument(f"{field}.userns_options.{name} must be one mapping, not {len(mappings)}")
        mapping = mappings[0]
        if mapping.container_id != 0 or not mapping.length or mapping.host_id + mapping.length > _HOST_IDS:
            raise InvalidArgument(
                f"{field}.userns_options.{name}[0] must map ids from 0 on to a range below {_HOST_IDS}: it has "
                f"container_id {mapping.container_id}, host_id {mapping.host_id}, length {mapping.length}"
            )
    for name in ("pid", "ipc"):
        if getattr(options, name) == pb.NODE:
            raise InvalidArgument(f"{field}.{name} must not be NODE in a user namespace")


def no_windows(windows: Message, *, field: str) -> None:
    """Check that no field for Windows is set. An empty message is fine."""
    for descriptor, _ in windows.ListFields():
        raise InvalidArgument(f"{field}.{descriptor.name} is for Windows, and this node runs Linux")


def streams(request: pb.ExecRequest | pb.AttachRequest) -> None:
    """Check that a stream is requested, and that a terminal has no stderr."""
    if not (request.stdin or request.stdout or request.stderr):
        raise InvalidArgument("stdin, stdout and stderr: at least one must be true")
    if request.tty and request.stderr:
        raise InvalidArgument("stderr must be false when tty is true: a terminal has one output")


def _mode(mode: pb.NamespaceMode, allowed: tuple[pb.NamespaceMode, ...], *, field: str) -> None:
    if mode not in allowed:
        names = " or ".join(pb.NamespaceMode.Name(each) for each in allowed)
        raise InvalidArgument(f"{field} {pb.NamespaceMode.Name(mode)} is not {names}")


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in texts.items())


def _check(value: object, descriptor: FieldDescriptor, *, field: str) -> None:
    match value:
        case Message():
            well_formed(value, field=field)
        case MutableMapping():
            for key, inner in value.items():
                _check(key, descriptor, field=f"{field} key")
                if descriptor.name != "annotations":
                    _check(inner, descriptor, field=f"{field}[{key!r}]")
        case MutableSequence():
            for index, inner in enumerate(value):
                _check(inner, descriptor, field=f"{field}[{index}]")
        case str() if "\0" in value:
            raise InvalidArgument(f"{field} holds a NUL")
        case int() if descriptor.enum_type and value not in descriptor.enum_type.values_by_number:
            raise InvalidArgument(f"{field} has the unknown value {value}")
