"""Ownership of container fields by plugins: a second plugin that sets the same field is refused."""

from collections.abc import MutableMapping
from enum import IntEnum
from typing import TypeVar

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition

K = TypeVar("K")


class Field(IntEnum):
    """The fields, with their numbers in the NRI protocol."""

    Annotations = 1
    Mounts = 2
    OciHooks = 3
    Devices = 4
    CdiDevices = 5
    Env = 6
    Args = 7
    MemLimit = 8
    MemReservation = 9
    MemSwapLimit = 10
    MemKernelLimit = 11
    MemTCPLimit = 12
    MemSwappiness = 13
    MemDisableOomKiller = 14
    MemUseHierarchy = 15
    CPUShares = 16
    CPUQuota = 17
    CPUPeriod = 18
    CPURealtimeRuntime = 19
    CPURealtimePeriod = 20
    CPUSetCPUs = 21
    CPUSetMems = 22
    PidsLimit = 23
    HugepageLimits = 24
    BlockioClass = 25
    RdtClass = 26
    CgroupsUnified = 27
    CgroupsPath = 28
    OomScoreAdj = 29
    Rlimits = 30
    IoPriority = 31
    SeccompPolicy = 32
    Namespace = 33
    Sysctl = 34
    LinuxNetDevices = 35
    LinuxSched = 36
    RdtClosID = 37
    RdtSchemata = 38
    RdtEnableMonitoring = 39
    MemoryPolicy = 40


class Owners:
    """The owners of fields, by container. Not thread-safe."""

    def __init__(self) -> None:
        self.message = nri.OwningPlugins()
        """The owners, in the form that validators receive."""

    def claim(self, container: str, field: Field, plugin: str, *, key: str = "") -> None:
        """Make a plugin the owner of a field, or of its value `key`. Raise FailedPrecondition if it has an owner."""
        of_container = self.message.owners[container]
        what = f"{field.name} {key}".rstrip()
        if key:
            _claim(of_container.compound[field].owners, key, plugin, what=what)
        else:
            _claim(of_container.simple, int(field), plugin, what=what)

    def share(self, container: str, field: Field, plugin: str) -> None:
        """Add a plugin to the owners of a field that several plugins may append to."""
        simple = self.message.owners[container].simple
        present = simple.get(field, "")
        simple[field] = f"{present},{plugin}" if present else plugin

    def clear(self, container: str, field: Field, *, key: str = "") -> None:
        """Remove the owner of a field, if any."""
        of_container = self.message.owners[container]
        if key:
            of_container.compound[field].owners.pop(key, None)
        else:
            of_container.simple.pop(field, None)

    def of(self, container: str, field: Field) -> dict[str, str]:
        """Return the owners of a field by key. A field with a single value has the empty key."""
        found = self.message.owners.get(container)
        if found is None:
            return {}
        if field in found.simple:
            return {"": found.simple[field]}
        return dict(found.compound[field].owners) if field in found.compound else {}


def _claim(owners: MutableMapping[K, str], name: K, plugin: str, *, what: str) -> None:
    if name in owners:
        raise FailedPrecondition(f'plugins "{plugin}" and "{owners[name]}" both tried to set {what}')
    owners[name] = plugin
