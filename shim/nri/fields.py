"""The fields that plugins may change, their paths in messages, and how they are merged.

The paths are the same in `ContainerAdjustment` and `Container`. Only the environment differs: in `Container` it is a
list of `KEY=value`.
"""

from dataclasses import dataclass
from operator import attrgetter

from google.protobuf.message import Message

from shim.nri.owners import Field

REMOVAL = "-"
"""The prefix of a key to remove."""


@dataclass(frozen=True, slots=True)
class Single:
    """A field with one value."""

    field: Field
    path: str
    """The dotted path of the field in the message."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """A field with several values by key: a list of messages, or a map."""

    field: Field
    path: str
    key: str
    """The key field of an item; empty for a map."""
    removable: bool = True


RESOURCES = (
    Single(Field.MemLimit, "memory.limit"),
    Single(Field.MemReservation, "memory.reservation"),
    Single(Field.MemSwapLimit, "memory.swap"),
    Single(Field.MemKernelLimit, "memory.kernel"),
    Single(Field.MemTCPLimit, "memory.kernel_tcp"),
    Single(Field.MemSwappiness, "memory.swappiness"),
    Single(Field.MemDisableOomKiller, "memory.disable_oom_killer"),
    Single(Field.MemUseHierarchy, "memory.use_hierarchy"),
    Single(Field.CPUShares, "cpu.shares"),
    Single(Field.CPUQuota, "cpu.quota"),
    Single(Field.CPUPeriod, "cpu.period"),
    Single(Field.CPURealtimeRuntime, "cpu.realtime_runtime"),
    Single(Field.CPURealtimePeriod, "cpu.realtime_period"),
    Single(Field.CPUSetCPUs, "cpu.cpus"),
    Single(Field.CPUSetMems, "cpu.mems"),
    Single(Field.PidsLimit, "pids"),
    Single(Field.BlockioClass, "blockio_class"),
    Single(Field.RdtClass, "rdt_class"),
)
"""Fields of LinuxResources."""
KEYED_RESOURCES = (
    Keyed(Field.HugepageLimits, "hugepage_limits", "page_size", removable=False),
    Keyed(Field.CgroupsUnified, "unified", "", removable=False),
)
SINGLES = (
    Single(Field.CgroupsPath, "linux.cgroups_path"),
    Single(Field.OomScoreAdj, "linux.oom_score_adj"),
    Single(Field.IoPriority, "linux.io_priority"),
    Single(Field.SeccompPolicy, "linux.seccomp_policy"),
    Single(Field.LinuxSched, "linux.scheduler"),
    Single(Field.MemoryPolicy, "linux.memory_policy"),
)
"""Fields of ContainerAdjustment."""
KEYED = (
    Keyed(Field.Annotations, "annotations", ""),
    Keyed(Field.Mounts, "mounts", "destination"),
    Keyed(Field.Env, "env", "key"),
    Keyed(Field.Devices, "linux.devices", "path"),
    Keyed(Field.Namespace, "linux.namespaces", "type"),
    Keyed(Field.Sysctl, "linux.sysctl", ""),
    Keyed(Field.LinuxNetDevices, "linux.net_devices", ""),
    Keyed(Field.CdiDevices, "CDI_devices", "name", removable=False),
    Keyed(Field.Rlimits, "rlimits", "type", removable=False),
)
RDT = (
    Single(Field.RdtClosID, "clos_id"),
    Single(Field.RdtSchemata, "schemata"),
    Single(Field.RdtEnableMonitoring, "enable_monitoring"),
)
"""Fields of LinuxRdt."""
HOOKS = ("prestart", "create_runtime", "create_container", "start_container", "poststart", "poststop")
"""Fields of Hooks."""


def is_set(message: Message, path: str) -> bool:
    """Return whether a field has a value: a present message, or a non-empty text or list."""
    parent, name = _parent(message, path)
    field = parent.DESCRIPTOR.fields_by_name[name]
    value = getattr(parent, name)
    return parent.HasField(name) if field.message_type is not None and isinstance(value, Message) else bool(value)


def copy_field(source: Message, target: Message, path: str) -> None:
    """Copy the value of a field from `source` to `target`, if `target` has this field."""
    parent, name = _parent(source, path)
    into, _ = _parent(target, path)
    if name not in into.DESCRIPTOR.fields_by_name:
        return
    value = getattr(parent, name)
    if isinstance(value, Message):
        getattr(into, name).CopyFrom(value)
    else:
        setattr(into, name, value)


def value_at(message: Message, path: str) -> object:
    """Return the value of a field."""
    return attrgetter(path)(message)


def _parent(message: Message, path: str) -> tuple[Message, str]:
    parts, _, name = path.rpartition(".")
    return (attrgetter(parts)(message) if parts else message), name
