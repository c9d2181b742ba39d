"""Changes config.json and exec processes as NRI plugins and the CRI have requested, where Docker has no field for it.

Each kind of change has a function here. An order with an unknown kind is refused.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

from shim.oci_runtime import json_text
from shim.oci_runtime.order import OrderError

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from shim.oci_runtime.order import Json

_SPEC_WITH_SCHEDULER = (1, 1)
"""First version of the OCI runtime specification whose runtimes set scheduler and I/O priority; older runc ignores
them."""


def adjust(config: Json, changes: Mapping[str, Any], *, runtime: str) -> None:
    """Change a config.json. Raise OrderError for a change that this program or the OCI runtime does not support."""
    for kind in changes:
        if kind not in CHANGES:
            raise OrderError(f"it has an adjustment {kind!r}, which this program does not support")
    _check_features(changes, runtime=runtime)
    for kind, change in changes.items():
        CHANGES[kind](config, change)


def adjust_process(process: Json, changes: Mapping[str, Any]) -> None:
    """Change the process of an exec, which Docker has built without knowing the changes.

    A variable whose value differs from the container's original value was given with the exec, and stays.
    """
    lines: list[str] = list(process.get("env") or ())
    present = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
    for name, (before, after) in changes.get("env", {}).items():
        if present.get(name, before) != before:
            continue
        lines = [line for line in lines if line.partition("=")[0] != name]
        if after is not None:
            lines.append(f"{name}={after}")
    process["env"] = lines
    if "rlimits" in changes:
        process["rlimits"] = _with_rlimits(process.get("rlimits") or (), changes["rlimits"])


def _check_features(changes: Mapping[str, Any], *, runtime: str) -> None:
    needed = {"scheduler", "ioPriority", "memoryPolicy", "netDevices"} & changes.keys()
    if not needed:
        return
    features = _features(runtime)
    linux = features.get("linux") or {}
    is_new = _version(features.get("ociVersionMax", "")) >= _SPEC_WITH_SCHEDULER
    known = {
        "scheduler": is_new,
        "ioPriority": is_new,
        "memoryPolicy": bool(linux.get("memoryPolicy")),
        "netDevices": bool((linux.get("netDevices") or {}).get("enabled")),
    }
    for kind in sorted(needed):
        if not known[kind]:
            raise OrderError(f"an NRI plugin has set {kind}, which this version of {runtime} does not support")


def _features(runtime: str) -> Json:
    import subprocess  # noqa: PLC0415 - it takes a third of the start of this program, and few orders need it

    finished = subprocess.run([runtime, "features"], capture_output=True, check=False)
    if finished.returncode != 0:
        return {}
    found: Json = json_text.read(finished.stdout)
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("-")[0].split(".") if part.isdecimal())


def _annotations(config: Json, change: Json) -> None:
    _change_map(config, "annotations", change)


def _env(config: Json, change: Json) -> None:
    process = config["process"]
    changed = {*change["remove"], *(name for name, _ in change["set"])}
    kept = [line for line in process.get("env") or () if line.partition("=")[0] not in changed]
    process["env"] = [*kept, *(f"{name}={value}" for name, value in change["set"])]


def _args(config: Json, change: list[str]) -> None:
    config["process"]["args"] = change


def _groups(config: Json, change: list[int]) -> None:
    user = config["process"].setdefault("user", {})
    user["additionalGids"] = list(dict.fromkeys([*(user.get("additionalGids") or ()), *change]))


def _mounts(config: Json, change: Json) -> None:
    changed = {*change["remove"], *(mount["destination"] for mount in change["set"])}
    kept = [mount for mount in config["mounts"] if mount["destination"] not in changed]
    # Deeper mounts come later, because a mount hides what is below it.
    config["mounts"] = sorted([*kept, *change["set"]], key=lambda mount: _depth(mount["destination"]))
    for mount in change["set"]:
        for propagation in ("rshared", "rslave"):
            if propagation in mount.get("options", ()):
                _propagate(config["linux"], propagation)


def _mount_options(config: Json, change: Mapping[str, list[str]]) -> None:
    """Add options to mounts, by destination."""
    missing = change.keys() - {mount["destination"] for mount in config["mounts"]}
    if missing:
        raise OrderError(f"there is no mount at {', '.join(sorted(missing))}, which is to have more options")
    for mount in config["mounts"]:
        added = change.get(mount["destination"], [])
        if added:
            mount["options"] = [*(option for option in mount.get("options") or () if option not in added), *added]


def _depth(path: str) -> int:
    return sum(bool(part) for part in path.split("/"))


def _propagate(linux: Json, propagation: str) -> None:
    """Let the node's mounts propagate to the container (`rslave`), or also the container's to the node (`rshared`)."""
    if propagation == "rshared" or linux.get("rootfsPropagation") not in {"rshared", "shared"}:
        linux["rootfsPropagation"] = propagation


def _hooks(config: Json, change: Mapping[str, list[Json]]) -> None:
    hooks = config.setdefault("hooks", {})
    for point, added in change.items():
        hooks[point] = [*(hooks.get(point) or ()), *added]


def _rlimits(config: Json, change: list[Json]) -> None:
    config["process"]["rlimits"] = _with_rlimits(config["process"].get("rlimits") or (), change)


def _with_rlimits(present: Iterable[Json], change: list[Json]) -> list[Json]:
    changed = {limit["type"] for limit in change}
    return [*(limit for limit in present if limit["type"] not in changed), *change]


def _devices(config: Json, change: Json) -> None:
    linux = config["linux"]
    changed = {*change["remove"], *(device["path"] for device in change["set"])}
    present = linux.get("devices") or ()
    linux["devices"] = [*(device for device in present if device["path"] not in changed), *change["set"]]
    rules = [
        {"allow": True, "type": device["type"], "major": device["major"], "minor": device["minor"], "access": "rwm"}
        for device in change["set"]
    ]
    _device_rules(config, rules)


def _device_rules(config: Json, change: list[Json]) -> None:
    resources = config["linux"].setdefault("resources", {})
    resources["devices"] = [*(resources.get("devices") or ()), *change]


def _namespaces(config: Json, change: Json) -> None:
    linux = config["linux"]
    changed = {*change["remove"], *(each["type"] for each in change["set"])}
    kept = [each for each in linux.get("namespaces") or () if each["type"] not in changed]
    linux["namespaces"] = [*kept, *change["set"]]


def _sysctl(config: Json, change: Json) -> None:
    _change_map(config["linux"], "sysctl", change)


def _net_devices(config: Json, change: Json) -> None:
    _change_map(config["linux"], "netDevices", change)


def _change_map(parent: Json, name: str, change: Json) -> None:
    changed = {key: value for key, value in (parent.get(name) or {}).items() if key not in change["remove"]}
    parent[name] = {**changed, **change["set"]}


def _rdt(config: Json, change: Json) -> None:
    linux = config["linux"]
    before = {} if change["remove"] else linux.get("intelRdt") or {}
    linux["intelRdt"] = {**before, **change["set"]}
    if not linux["intelRdt"]:
        del linux["intelRdt"]


def _resources(config: Json, change: Mapping[str, Json]) -> None:
    resources = config["linux"].setdefault("resources", {})
    for kind, values in change.items():
        resources[kind] = {**(resources.get(kind) or {}), **values}


def _no_block_io(config: Json, _: object) -> None:
    (config["linux"].get("resources") or {}).pop("blockIO", None)


def _of_process(name: str) -> Callable[[Json, Any], None]:
    def change(config: Json, value: Any) -> None:
        config["process"][name] = value

    return change


def _of_linux(name: str) -> Callable[[Json, Any], None]:
    def change(config: Json, value: Any) -> None:
        config["linux"][name] = value

    return change


CHANGES: Mapping[str, Callable[[Json, Any], None]] = {
    "annotations": _annotations,
    "env": _env,
    "args": _args,
    "additionalGids": _groups,
    "mounts": _mounts,
    "mountOptions": _mount_options,
    "hooks": _hooks,
    "rlimits": _rlimits,
    "devices": _devices,
    "deviceRules": _device_rules,
    "namespaces": _namespaces,
    "sysctl": _sysctl,
    "netDevices": _net_devices,
    "intelRdt": _rdt,
    "resources": _resources,
    "noBlockIO": _no_block_io,
    "oomScoreAdj": _of_process("oomScoreAdj"),
    "ioPriority": _of_process("ioPriority"),
    "scheduler": _of_process("scheduler"),
    "memoryPolicy": _of_linux("memoryPolicy"),
    "seccomp": _of_linux("seccomp"),
}
"""The kinds of changes, by their names in orders."""
