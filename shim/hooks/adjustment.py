"""How the server applies the changes of NRI plugins to a new container: by Docker, by the OCI runtime, or not at all.

`FIELD_SUPPORT` has a row for each field. docs/nri.md lists the fields by their support.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.hooks.resources import Wanted, to_cri
from shim.nri.fields import HOOKS, REMOVAL, is_set
from shim.oci.cdi import DIRECTORIES, Found, find
from shim.oci_runtime.order import Json

DOCKER = "Docker's field, by an update"
FILES = "control group, after the start and each update"
ORDER = "`config.json`"
ORDER_AND_EXEC = "`config.json`, and each exec"

FIELD_SUPPORT: Mapping[str, str] = {
    "annotations": ORDER,
    "mounts": ORDER,
    "env": ORDER_AND_EXEC,
    "hooks": ORDER,
    "rlimits": ORDER_AND_EXEC,
    "CDI_devices": f"{ORDER}; specifications in Docker's directories, or /etc/cdi and /var/run/cdi",
    "args": ORDER,
    "linux.devices": ORDER,
    "linux.resources.memory.limit": DOCKER,
    "linux.resources.memory.reservation": DOCKER,
    "linux.resources.memory.swap": DOCKER,
    "linux.resources.memory.kernel": "refused: kernels have no such limit",
    "linux.resources.memory.kernel_tcp": ORDER,
    "linux.resources.memory.swappiness": ORDER,
    "linux.resources.memory.disable_oom_killer": ORDER,
    "linux.resources.memory.use_hierarchy": ORDER,
    "linux.resources.cpu.shares": DOCKER,
    "linux.resources.cpu.quota": DOCKER,
    "linux.resources.cpu.period": DOCKER,
    "linux.resources.cpu.realtime_runtime": ORDER,
    "linux.resources.cpu.realtime_period": ORDER,
    "linux.resources.cpu.cpus": DOCKER,
    "linux.resources.cpu.mems": DOCKER,
    "linux.resources.hugepage_limits": FILES,
    "linux.resources.blockio_class": "refused unless empty: Docker has no classes",
    "linux.resources.rdt_class": ORDER,
    "linux.resources.unified": f"{FILES}; refused on cgroup v1",
    "linux.resources.devices": ORDER,
    "linux.resources.pids": DOCKER,
    "linux.cgroups_path": "refused: Docker needs the path that it has chosen",
    "linux.oom_score_adj": ORDER,
    "linux.io_priority": f"{ORDER}; the start fails if `runc features` lacks it",
    "linux.seccomp_policy": ORDER,
    "linux.namespaces": ORDER,
    "linux.sysctl": ORDER,
    "linux.net_devices": f"{ORDER}; the start fails if `runc features` lacks it",
    "linux.scheduler": f"{ORDER}; the start fails if `runc features` lacks it",
    "linux.rdt": ORDER,
    "linux.memory_policy": f"{ORDER}; the start fails if `runc features` lacks it",
}
"""How the server applies each field, or why it refuses the field."""

FIELD = "linux.resources"
_HOOK_POINTS = {
    "prestart": "prestart",
    "create_runtime": "createRuntime",
    "create_container": "createContainer",
    "start_container": "startContainer",
    "poststart": "poststart",
    "poststop": "poststop",
}


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a new container, divided by who applies them."""

    limits: Wanted
    config: Json
    """Changes of config.json, by kind (`shim.oci_runtime.adjust`)."""
    process: Json
    """Changes of exec processes."""


def changes_of(
    adjust: nri.ContainerAdjustment, *, env: Iterable[str], cdi_directories: Sequence[str] = DIRECTORIES
) -> Changes:
    """Return the changes that `adjust` asks for. Raise FailedPrecondition, which names the field, for unsupported ones.

    `env` holds the container's variables before the adjustment, as lines `KEY=value`.
    """
    _check_supported(adjust)
    cdi = find((device.name for device in adjust.CDI_devices), directories=cdi_directories)
    adjust = _with_devices(adjust, cdi)
    try:
        limits = to_cri(adjust.linux.resources, field=FIELD)
    except InvalidArgument as error:
        raise FailedPrecondition(f"NRI plugins have set an unsupported value: {error}") from error
    config = {kind: change for kind, change in _config(adjust) if change}
    if cdi.groups:
        config["additionalGids"] = cdi.groups
    return Changes(limits, config, _process(adjust, env))


def _with_devices(adjust: nri.ContainerAdjustment, cdi: Found) -> nri.ContainerAdjustment:
    """Return the adjustment merged with the changes of its CDI devices, which win."""
    whole = nri.ContainerAdjustment()
    whole.CopyFrom(adjust)
    variables = {name for name, _ in cdi.env}
    kept = [each for each in whole.env if each.key.removeprefix(REMOVAL) not in variables]
    del whole.env[:]
    whole.env.extend([*kept, *(nri.KeyValue(key=name, value=value) for name, value in dict(cdi.env).items())])
    whole.mounts.extend(nri.Mount(**mount) for mount in cdi.mounts)
    for device in cdi.devices:
        node = whole.linux.devices.add(
            path=device["path"], type=device["type"], major=device["major"], minor=device["minor"]
        )
        for name, target in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
            if name in device:
                target.value = device[name]
    for point, hook in cdi.hooks:
        _add_hook(whole.hooks, point, hook)
    return whole


def _add_hook(hooks: nri.Hooks, point: str, hook: Json) -> None:
    name = next((name for name, of_oci in _HOOK_POINTS.items() if of_oci == point), "")
    if not name:
        raise FailedPrecondition(
            f"a CDI device has a hook {point!r}, which is not a hook point of the OCI runtime specification"
        )
    added = getattr(hooks, name).add(path=hook["path"], args=hook["args"], env=hook["env"])
    if "timeout" in hook:
        added.timeout.value = hook["timeout"]


def _check_supported(adjust: nri.ContainerAdjustment) -> None:
    refused = [path for path, how in FIELD_SUPPORT.items() if how.startswith("refused:") and is_set(adjust, path)]
    if adjust.linux.resources.blockio_class.value:
        refused.append("linux.resources.blockio_class")
    if refused:
        reasons = "; ".join(f"{path}: {FIELD_SUPPORT[path].removeprefix('refused').lstrip(': ')}" for path in refused)
        raise FailedPrecondition(f"NRI plugins have set fields that Docker does not support: {reasons}")


def _config(adjust: nri.ContainerAdjustment) -> Iterator[tuple[str, Any]]:
    linux = adjust.linux
    yield "annotations", _changed_map(dict(adjust.annotations))
    yield "env", _changed((each.key, [each.key, each.value]) for each in adjust.env)
    yield "args", list(adjust.args)
    yield "mounts", _changed((each.destination, _mount(each)) for each in adjust.mounts)
    yield (
        "hooks",
        {
            _HOOK_POINTS[name]: [_hook(each) for each in getattr(adjust.hooks, name)]
            for name in HOOKS
            if getattr(adjust.hooks, name)
        },
    )
    yield "rlimits", _rlimits(adjust)
    yield "devices", _changed((each.path, _device(each)) for each in linux.devices)
    yield "deviceRules", [_device_rule(each) for each in linux.resources.devices]
    yield "namespaces", _changed((each.type, _namespace(each)) for each in linux.namespaces)
    yield "sysctl", _changed_map(dict(linux.sysctl))
    yield "netDevices", _changed_map({name: {"name": each.name} for name, each in linux.net_devices.items()})
    yield "intelRdt", _rdt(linux)
    yield "resources", _resources(linux.resources)
    yield "noBlockIO", linux.resources.HasField("blockio_class")
    yield from _values(linux)


def _values(linux: nri.LinuxContainerAdjustment) -> Iterator[tuple[str, Any]]:
    """Yield the values that replace config.json's values as a whole. A value of 0 counts."""
    if linux.HasField("oom_score_adj"):
        # `changes_of` drops empty changes, but the score 0 is a change.
        yield "oomScoreAdj", _Value(linux.oom_score_adj.value)
    if linux.HasField("io_priority"):
        kind = nri.IOPrioClass.Name(getattr(linux.io_priority, "class"))
        yield "ioPriority", {"class": kind, "priority": linux.io_priority.priority}
    if linux.HasField("scheduler"):
        yield "scheduler", _scheduler(linux.scheduler)
    if linux.HasField("memory_policy"):
        yield "memoryPolicy", _memory_policy(linux.memory_policy)
    if linux.HasField("seccomp_policy"):
        yield "seccomp", _seccomp(linux.seccomp_policy)


class _Value(int):
    """A number that is a change even if it is 0."""

    def __bool__(self) -> bool:
        return True


def _process(adjust: nri.ContainerAdjustment, env: Iterable[str]) -> Json:
    found: Json = {}
    before = {line.partition("=")[0]: line.partition("=")[2] for line in env}
    variables: dict[str, list[str | None]] = {}
    for each in adjust.env:
        name = each.key.removeprefix(REMOVAL)
        if each.key.startswith(REMOVAL):
            variables.setdefault(name, [before.get(name), None])
        else:
            variables[name] = [before.get(name), each.value]
    if variables:
        found["env"] = variables
    if adjust.rlimits:
        found["rlimits"] = _rlimits(adjust)
    return found


def _changed(items: Iterable[tuple[str, Any]]) -> Json:
    """Return the values to set and the keys to remove; an empty object if there are none."""
    found = list(items)
    removed = [key.removeprefix(REMOVAL) for key, _ in found if key.startswith(REMOVAL)]
    added = [item for key, item in found if not key.startswith(REMOVAL)]
    return {"set": added, "remove": removed} if found else {}


def _changed_map(items: Mapping[str, Any]) -> Json:
    removed = [key.removeprefix(REMOVAL) for key in items if key.startswith(REMOVAL)]
    added = {key: value for key, value in items.items() if not key.startswith(REMOVAL)}
    return {"set": added, "remove": removed} if items else {}


def _mount(mount: nri.Mount) -> Json:
    return {
        "destination": mount.destination,
        "type": mount.type,
        "source": mount.source,
        "options": list(mount.options),
    }


def _hook(hook: nri.Hook) -> Json:
    found: Json = {"path": hook.path, "args": list(hook.args), "env": list(hook.env)}
    return found | ({"timeout": hook.timeout.value} if hook.HasField("timeout") else {})


def _rlimits(adjust: nri.ContainerAdjustment) -> list[Json]:
    return [{"type": each.type, "hard": each.hard, "soft": each.soft} for each in adjust.rlimits]


def _device(device: nri.LinuxDevice) -> Json:
    found: Json = {"path": device.path, "type": device.type, "major": device.major, "minor": device.minor}
    for name, field in (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid")):
        if device.HasField(field):
            found[name] = getattr(device, field).value
    return found


def _device_rule(rule: nri.LinuxDeviceCgroup) -> Json:
    found: Json = {"allow": rule.allow, "access": rule.access} | ({"type": rule.type} if rule.type else {})
    for name in ("major", "minor"):
        if rule.HasField(name):
            found[name] = getattr(rule, name).value
    return found


def _namespace(namespace: nri.LinuxNamespace) -> Json:
    return {"type": namespace.type} | ({"path": namespace.path} if namespace.path else {})


def _rdt(linux: nri.LinuxContainerAdjustment) -> Json:
    rdt, found = linux.rdt, dict[str, Any]()
    if linux.resources.HasField("rdt_class") and linux.resources.rdt_class.value:
        found["closID"] = linux.resources.rdt_class.value
    if rdt.HasField("clos_id"):
        found["closID"] = rdt.clos_id.value
    if rdt.HasField("schemata"):
        found["schemata"] = list(rdt.schemata.value)
    if rdt.HasField("enable_monitoring"):
        found["enableMonitoring"] = rdt.enable_monitoring.value
    remove = rdt.remove or (linux.resources.HasField("rdt_class") and not linux.resources.rdt_class.value)
    return {"remove": remove, "set": found} if found or remove else {}


_AT_CREATE = (
    ("memory", "kernelTCP", "kernel_tcp"),
    ("memory", "swappiness", "swappiness"),
    ("memory", "disableOOMKiller", "disable_oom_killer"),
    ("memory", "useHierarchy", "use_hierarchy"),
    ("cpu", "realtimeRuntime", "realtime_runtime"),
    ("cpu", "realtimePeriod", "realtime_period"),
)
"""Limits that only the OCI runtime sets: section, name in config.json, and NRI field."""


def _resources(resources: nri.LinuxResources) -> Json:
    found: Json = {}
    for part, name, field in _AT_CREATE:
        if is_set(resources, f"{part}.{field}"):
            found.setdefault(part, {})[name] = getattr(getattr(resources, part), field).value
    return found


def _scheduler(scheduler: nri.LinuxScheduler) -> Json:
    found: Json = {"policy": nri.LinuxSchedulerPolicy.Name(scheduler.policy)}
    for name in ("nice", "priority", "runtime", "deadline", "period"):
        if getattr(scheduler, name):
            found[name] = getattr(scheduler, name)
    flags = [nri.LinuxSchedulerFlag.Name(flag) for flag in scheduler.flags]
    return found | ({"flags": flags} if flags else {})


def _memory_policy(policy: nri.LinuxMemoryPolicy) -> Json:
    found: Json = {"mode": nri.MpolMode.Name(policy.mode), "nodes": policy.nodes}
    flags = [nri.MpolFlag.Name(flag) for flag in policy.flags]
    return found | ({"flags": flags} if flags else {})


def _seccomp(policy: nri.LinuxSeccomp) -> Json:
    found: Json = {
        "defaultAction": policy.default_action,
        "architectures": list(policy.architectures),
        "flags": list(policy.flags),
        "syscalls": [_syscall(each) for each in policy.syscalls],
    }
    if policy.HasField("default_errno"):
        found["defaultErrnoRet"] = policy.default_errno.value
    if policy.listener_path:
        found |= {"listenerPath": policy.listener_path, "listenerMetadata": policy.listener_metadata}
    return found


def _syscall(syscall: nri.LinuxSyscall) -> Json:
    found: Json = {"names": list(syscall.names), "action": syscall.action}
    if syscall.HasField("errno_ret"):
        found["errnoRet"] = syscall.errno_ret.value
    arguments = [
        {"index": each.index, "value": each.value, "valueTwo": each.value_two, "op": each.op} for each in syscall.args
    ]
    return found | ({"args": arguments} if arguments else {})
