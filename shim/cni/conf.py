"""CNI network configurations: what the files of the configuration directory say, and which of them is in force.

Source: CNI specification 1.1.0, section 1. The first valid file by name wins, as in every Kubernetes runtime. Where the
specification leaves open what plugins a list has beyond its own, the source is the reference library (libcni 1.3): each
file `*.conf` of the directory beside it that has the name of the network is one more plugin, in the order of names.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shim.cni.conf_files import DROP_IN_SUFFIX, SUFFIXES, file_names
from shim.cni.plugin import JsonObject
from shim.cni.programs import FindPlugins, find_plugins
from shim.domain.errors import reason_of
from shim.hostfs.client import HostCall, call_here
from shim.hostfs.file_parts import read_parts

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Released versions of the specification, oldest first."""

READ = "read cni configuration directory"
FILE_LIMIT = 1 << 20
"""Most bytes of one file."""
FILES_LIMIT = 1000
"""Most files of one directory, be it of configurations or of drop-in plugins."""
TYPE_LIMIT = 255
"""Most bytes of a plugin's type, which is a file name (NAME_MAX)."""

DropIns = Callable[[str], Sequence[JsonObject]]
"""Returns the drop-in plugins of a network by its name. Raise ConfError for one that cannot be used."""

INLINED_ONLY = "loadOnlyInlinedPlugins"
"""Key of a list that shall have no drop-in plugins."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")


class ConfError(ValueError):
    """Why a file cannot be used."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """One valid network configuration."""

    file: str
    """Name of the file it comes from."""
    conflist: JsonObject
    """The list as written, unknown keys included; `cniVersion` is the version in use, `plugins` is never empty, and has
    the drop-in plugins at its end."""

    @property
    def name(self) -> str:
        """Return the name of the network."""
        return str(self.conflist["name"])

    @property
    def plugin_types(self) -> list[str]:
        """Return the types of the plugins, in the order of ADD."""
        return [plugin["type"] for plugin in self.conflist["plugins"]]

    def declares(self, capability: str) -> bool:
        """Return whether a plugin of the list takes `capability`; without one, for instance, host ports do nothing."""
        return any(declares(plugin, capability) for plugin in self.conflist["plugins"])


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not used, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Listing:
    """What a configuration directory holds: for each file its network or the reason there is none, by file name."""

    directory: Path
    entries: tuple[NetworkConfig | Skipped, ...] = ()
    problem: str = ""
    """What is wrong with the directory itself."""
    is_empty: bool = False
    """There is no configuration file, or no directory, which is the problem then."""
    networks: frozenset[str] = frozenset()
    """Names of the networks for which drop-in plugins were looked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The network in force, and the files passed over on the way to it."""

    network: NetworkConfig | None
    skipped: tuple[Skipped, ...]


def declares(plugin: JsonObject, capability: str) -> bool:
    """Return whether the configuration of one plugin takes `capability`."""
    return (plugin.get("capabilities") or {}).get(capability) is True


def read_directory(directory: Path, *, call: HostCall = call_here) -> Listing:
    """Read every configuration file of a directory. Whether the plugins exist is not checked: see `choose`.

    `call` is how files are read; what it raises besides OSError is passed on.
    """
    networks: set[str] = set()

    def drop_ins(network: str) -> Sequence[JsonObject]:
        networks.add(network)
        return _read_drop_ins(directory / network, call=call)

    try:
        names = _names(directory, SUFFIXES, call=call)
    except FileNotFoundError:
        return Listing(directory, problem="does not exist", is_empty=True)
    except OSError as error:
        return Listing(directory, problem=f"cannot be read: {reason_of(error)}")
    if not names:
        return Listing(directory, problem=f"holds no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file", is_empty=True)
    if len(names) > FILES_LIMIT:
        return Listing(directory, problem=f"holds more than {FILES_LIMIT} files, so none is read")
    entries = tuple(_read_file(directory / name, drop_ins, call=call) for name in names)
    return Listing(directory, entries, networks=frozenset(networks))


def _names(directory: Path, suffixes: tuple[str, ...], *, call: HostCall) -> list[str]:
    """Return the names of files with these suffixes in order; not all of them when they are more than FILES_LIMIT."""
    names: list[str] = []
    while len(names) <= FILES_LIMIT:
        after = names[-1] if names else ""
        more = call(partial(file_names, directory, after=after, suffixes=suffixes), path=str(directory), what=READ)
        if not more:
            break
        names += more
    return names


def choose(listing: Listing, *, bin_dirs: Sequence[Path], find: FindPlugins = find_plugins) -> Choice:
    """Take the first network whose plugins all exist in `bin_dirs` at this moment."""
    skipped: list[Skipped] = []
    for entry in listing.entries:
        if isinstance(entry, Skipped):
            skipped.append(entry)
        elif missing := _missing_plugins(entry, bin_dirs, find=find):
            skipped.append(Skipped(entry.file, missing))
        else:
            return Choice(entry, tuple(skipped))
    return Choice(None, tuple(skipped))


def parse_network(data: bytes, *, file: str, drop_ins: DropIns = lambda _network: ()) -> NetworkConfig:
    """Read a network configuration; Raise ConfError with the reason why it is none.

    A `.conflist` must be a list, and may have drop-in plugins. In `.conf` and `.json` both forms are met in the field,
    and `plugins` says which it is: a single plugin is wrapped into a list.
    """
    raw = _json_object(data)
    is_conflist = file.endswith(".conflist")
    if "plugins" not in raw and not is_conflist:
        raw = {key: raw[key] for key in ("name", "cniVersion") if key in raw} | {"plugins": [raw]}
    _check_name(raw.get("name"))
    for key in ("disableCheck", "disableGC", INLINED_ONLY):
        _check_flag(raw, key)
    plugins = _inlined(raw)
    if is_conflist and not has_flag(raw, INLINED_ONLY):
        plugins = [*plugins, *drop_ins(raw["name"])]
    if not plugins:
        raise ConfError("no plugins: 'plugins' must be a list of at least one")
    return NetworkConfig(file, {**raw, "plugins": plugins, "cniVersion": _version_in_use(raw)})


def has_flag(conflist: JsonObject, key: str) -> bool:
    """Return whether a list says true for a key. Lists for older libraries have the word, in any case."""
    return str(conflist.get(key, False)).lower() == "true"


def _inlined(raw: JsonObject) -> list[JsonObject]:
    """Return the plugins of the file itself; none where it does not have the key."""
    plugins = raw.get("plugins", [])
    if not isinstance(plugins, list) or ("plugins" in raw and not plugins):
        raise ConfError("no plugins: 'plugins' must be a list of at least one")
    for index, plugin in enumerate(plugins):
        _check_plugin(plugin, where=f"plugins[{index}]")
    return plugins


def _read_drop_ins(directory: Path, *, call: HostCall) -> list[JsonObject]:
    """Return the plugins of a directory of drop-ins; none where there is no such directory.

    One that cannot be used is a ConfError: without it, pods would lack what it is there for.
    """
    try:
        names = _names(directory, (DROP_IN_SUFFIX,), call=call)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfError(f"{directory.name} cannot be read: {reason_of(error)}") from error
    if len(names) > FILES_LIMIT:
        raise ConfError(f"{directory.name} holds more than {FILES_LIMIT} files")
    return [_read_drop_in(directory / name, call=call) for name in names]


def _read_drop_in(path: Path, *, call: HostCall) -> JsonObject:
    where = f"{path.parent.name}/{_as_text(path.name)}"
    try:
        plugin = _json_object(_read(path, call=call))
    except ConfError as error:
        raise ConfError(f"{where}: {error}") from error
    except OSError as error:
        raise ConfError(f"{where} cannot be read: {reason_of(error)}") from error
    _check_plugin(plugin, where=where)
    return plugin


def _read(path: Path, *, call: HostCall) -> bytes:
    return read_parts(path, most=FILE_LIMIT, call=partial(call, path=str(path.parent), what=READ))


def _as_text(name: str) -> str:
    """Return a file name as it goes into messages, which must be text."""
    return os.fsencode(name).decode(errors="replace")


def _read_file(path: Path, drop_ins: DropIns, *, call: HostCall) -> NetworkConfig | Skipped:
    name = _as_text(path.name)
    try:
        return parse_network(_read(path, call=call), file=name, drop_ins=drop_ins)
    except ConfError as error:
        return Skipped(name, str(error))
    except OSError as error:
        return Skipped(name, f"cannot be read: {reason_of(error)}")


def _json_object(data: bytes) -> JsonObject:
    if not data.strip():
        raise ConfError("not JSON: the file is empty")
    try:
        raw = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise ConfError(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfError("not a JSON object")
    return raw


def _check_name(name: Any) -> None:
    if not name:
        raise ConfError("no name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfError(f"bad name {name!r:.80}: only letters, digits, '_', '.' and '-', first a letter or digit")


def _check_flag(raw: JsonObject, key: str) -> None:
    if str(raw.get(key, False)).lower() not in ("true", "false"):
        raise ConfError(f"{key} must be true or false, not {raw[key]!r:.80}")


def _check_plugin(plugin: Any, *, where: str) -> None:
    if not isinstance(plugin, dict):
        raise ConfError(f"{where} is not an object")
    plugin_type = plugin.get("type")
    if not isinstance(plugin_type, str) or not plugin_type:
        raise ConfError(f"{where} has no type")
    # The type is a file name that is looked up in the binary directories, and must not lead out of them.
    if "/" in plugin_type or "\0" in plugin_type or plugin_type in (".", ".."):
        raise ConfError(f"{where} has a bad type {plugin_type!r:.80}")
    if len(plugin_type.encode()) > TYPE_LIMIT:
        raise ConfError(f"{where} has a type longer than {TYPE_LIMIT} bytes: {plugin_type!r:.80}")
    if not isinstance(plugin.get("capabilities") or {}, dict):
        raise ConfError(f"{where}: capabilities is not an object")


def _version_in_use(raw: JsonObject) -> str:
    """Take the newest version that the list offers and we know; 0.1.0 by default (section 1)."""
    offered = raw.get("cniVersions") or []
    if not isinstance(offered, list):
        raise ConfError("cniVersions is not a list")
    if raw.get("cniVersion"):
        offered = [*offered, raw["cniVersion"]]
    if not offered:
        return SUPPORTED_VERSIONS[0]
    known = [version for version in SUPPORTED_VERSIONS if version in offered]
    if not known:
        words = ", ".join(map(str, offered))
        raise ConfError(f"unsupported cniVersion {words:.80}: the newest known is {SUPPORTED_VERSIONS[-1]}")
    return known[-1]


def _missing_plugins(network: NetworkConfig, bin_dirs: Sequence[Path], *, find: FindPlugins) -> str:
    # ipam.type is not looked up: some networks answer it inside their own plugin, without a binary of that name.
    found = find(network.plugin_types, bin_dirs)
    missing = [kind for kind in network.plugin_types if kind not in found]
    if not missing:
        return ""
    words = "plugin binary" if len(missing) == 1 else "plugin binaries"
    return f"{words} {', '.join(missing)} not found in {', '.join(map(str, bin_dirs))}"
