"""Settings of the kubelet of this node that concern the runtime, from its flags and its configuration files.

Flags win over files, and a later file wins over an earlier file. The settings are those of the kubelet that runs, else
those in the files that kubeadm and the kubelet's packages write.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from shim.base.atomic_files import open_regular
from shim.base.proc import value_of
from shim.domain.errors import reason_of

_PROC = Path("/proc")
_CONFIG_BYTES = 1 << 20
"""Most bytes of a configuration file that are read; a kubelet's file has some thousand bytes."""

FLAGS = {
    "container-runtime-endpoint": "containerRuntimeEndpoint",
    "cgroup-driver": "cgroupDriver",
    "fail-cgroupv1": "failCgroupV1",
    "fail-swap-on": "failSwapOn",
    "feature-gates": "featureGates",
    "pod-cidr": "podCIDR",
}
"""Flags by name, with the key of a configuration file that says the same."""

_FLAG_FILES = ("kubeadm-flags.env",)
"""Files in the kubelet's root directory with flags in a variable."""
_FLAG_FILES_OF_PACKAGES = (Path("/etc/default/kubelet"), Path("/etc/sysconfig/kubelet"))

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it is set."""

    value: Any
    file: Path | None
    """The file to change; None for a flag that is in none of the files known here."""
    name: str
    """The flag with its dashes, or the key of a configuration file."""

    def __str__(self) -> str:
        return f"{self.name} in {self.file}" if self.file else f"the flag {self.name}"

    def command_to_set(self, text: str) -> str:
        """Return what gives the setting the value `text`: a command where it is known."""
        if self.file is None:
            return f"set {self.name}={text} in the kubelet's unit (systemctl cat kubelet), then {RESTART}"
        change = rf"s#{self.name}[= ][^ \"]*#{self.name}={text}#"
        if not self.name.startswith("-"):
            change = rf"s#^{self.name}:.*#{self.name}: {text}#"
        return f"sed -i '{change}' {self.file} && {RESTART}"


RESTART = "systemctl restart kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """Settings of a node's kubelet, from its flags and files."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By the key of a configuration file."""
    flags: Sequence[str] = ()
    """Names of all flags, without dashes."""
    flag_files: Sequence[Path] = ()
    """Files that may hold flags."""
    config: Path | None = None
    """The configuration file, if any."""
    program: Path | None = None
    """The program of a kubelet that runs."""
    problem: str = ""
    """Why a configuration file cannot be used."""

    @property
    def exists(self) -> bool:
        """Return whether a kubelet runs, or was configured."""
        return self.program is not None or self.config is not None or bool(self.flags)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting."""
        found = self.settings.get(key)
        return default if found is None else found.value

    def gate(self, name: str) -> bool | None:
        """Return whether a feature gate is on; None where nothing sets it."""
        gates = self.value("featureGates")
        found = gates.get(name) if isinstance(gates, dict) else None
        return found if isinstance(found, bool) else None

    def command_to_set(self, key: str, text: str) -> str:
        """Return what gives a setting a value, a command where it is known."""
        found = self.settings.get(key)
        if found is not None:
            return found.command_to_set(text)
        if self.config is not None:
            return f"echo '{key}: {text}' >> {self.config} && {RESTART}"
        return f"set {key}: {text} in the kubelet's configuration, then {RESTART}"


def accepts_cgroup_v1(kubelet: Kubelet) -> str:
    """Return what lets the kubelet start with control groups of version 1; empty where nothing does."""
    found = kubelet.settings.get("failCgroupV1")
    if found is None or found.value is not False:
        return ""
    return f"{found.name}=false" if found.name.startswith("-") else f"failCgroupV1: false in {found.file}"


def read_kubelet(
    kubelet_root_dir: Path, *, proc: Path = _PROC, packages: Sequence[Path] = _FLAG_FILES_OF_PACKAGES
) -> Kubelet:
    """Read the settings of the kubelet that runs, else of the kubelet that was configured on this node."""
    flag_files = [*(kubelet_root_dir / name for name in _FLAG_FILES), *packages]
    in_files = [(path, flag) for path in flag_files for flag in _flags(_words(path))]
    running = _running(proc)
    if running is None:
        config = kubelet_root_dir / "config.yaml"
        files = [(config, config)] if os.path.exists(config) else []  # noqa: PTH110 - without root, Path would raise
        return _kubelet(in_files, files, flag_files=flag_files)
    process, arguments = running
    flags = _flags(arguments[1:])
    given = [(next((path for path, in_file in in_files if in_file == flag), None), flag) for flag in flags]
    # Through the root of the process: a kubelet may have another file system than this program.
    files = [(path, process / "root" / str(path).lstrip("/")) for path in _files(process, dict(flags))]
    return _kubelet(given, files, flag_files=flag_files, program=process / "exe")


def _kubelet(
    given: Sequence[tuple[Path | None, tuple[str, str]]],
    files: Sequence[tuple[Path, Path]],
    *,
    flag_files: Sequence[Path],
    program: Path | None = None,
) -> Kubelet:
    settings: dict[str, Setting] = {}
    gates: dict[str, Any] = {}
    problem = ""
    for shown, path in files:
        try:
            content = _load(path)
        except OSError as error:
            problem = problem or f"{shown}: {reason_of(error)}"
            continue
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problem = problem or f"{shown} is not YAML: {' '.join(str(error).split())}"
            continue
        settings |= {key: Setting(value, shown, key) for key, value in content.items() if isinstance(key, str)}
        gates |= _gates(content.get("featureGates"))
    for file, (name, value) in given:
        if key := FLAGS.get(name, ""):
            gates |= _gates(value) if key == "featureGates" else {}
            settings[key] = Setting(value if key == "featureGates" else _typed(value), file, f"--{name}")
    if gates:
        settings["featureGates"] = Setting(gates, settings["featureGates"].file, settings["featureGates"].name)
    return Kubelet(
        settings=settings,
        flags=[name for _, (name, _) in given],
        flag_files=flag_files,
        config=files[0][0] if files else None,
        program=program,
        problem=problem,
    )


def _load(path: Path) -> Mapping[Any, Any]:
    with open_regular(path) as file:
        content = yaml.load(file.read(_CONFIG_BYTES), Loader=_Loader)  # noqa: S506 - a safe loader
    return content if isinstance(content, dict) else {}


def _flags(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and value of each flag, which is given as `--name=value` or `--name value`."""
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found.append((name.removeprefix("--"), value if equals else following))
    return found


def _typed(value: str) -> Any:
    return {"true": True, "false": False}.get(value, value)


def _gates(value: Any) -> dict[str, Any]:
    """Return feature gates, which a file has as a mapping and a flag as `A=true,B=false`."""
    if isinstance(value, dict):
        return value
    pairs = [each.partition("=") for each in value.split(",")] if isinstance(value, str) else []
    return {name.strip(): _typed(switch.strip()) for name, _, switch in pairs if name.strip()}


def _words(path: Path) -> list[str]:
    """Return the words of the variables in a file for systemd's EnvironmentFile=; none where it cannot be read."""
    try:
        with open_regular(path) as file:
            text = file.read(_CONFIG_BYTES).decode(errors="replace")
    except OSError:
        return []
    values = [re.sub(r"^[\"']|[\"']$", "", value.strip()) for value in re.findall(r"^\s*\w+=(.*)$", text, re.MULTILINE)]
    try:
        return [word for value in values for word in shlex.split(value)]
    except ValueError:  # a quotation without its end
        return []


def _running(proc: Path) -> tuple[Path, Sequence[str]] | None:
    """Return directory and arguments of the kubelet of this node; a node in a container has other process ids."""
    ours = _namespace(proc / "self")
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            arguments = os.fsdecode((process / "cmdline").read_bytes()).removesuffix("\0").split("\0")
            if Path(arguments[0]).name == "kubelet" and _namespace(process) == ours and _is_of_our_user(process):
                return process, arguments
        except OSError:  # the process has ended
            continue
    return None


def _namespace(process: Path) -> str:
    return str((process / "ns/pid").readlink())


def _is_of_our_user(process: Path) -> bool:
    """Return whether a process has our user: another user could name a program `kubelet`, and files for us to read."""
    return value_of((process / "status").read_bytes(), b"Uid").split()[:1] == [b"%d" % os.getuid()]


def _files(process: Path, flags: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration file and then the drop-ins, in the kubelet's order."""
    if config := flags.get("config"):
        yield Path(config)
    if drop_ins := flags.get("config-dir"):
        try:
            names = sorted(path.name for path in (process / "root" / drop_ins.lstrip("/")).iterdir())
        except OSError:
            return
        yield from (Path(drop_ins) / name for name in names if name.endswith(".conf"))
