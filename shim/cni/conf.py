"""CNI network configurations: parsing the files of the configuration directory, and choosing the network in force.

Source: CNI specification 1.1.0, section 1. As in every Kubernetes runtime, the first valid file by name wins. Drop-in
plugins follow the reference library (libcni 1.3): if the configuration directory has a subdirectory with the name of
the network, each file `*.conf` in it adds a plugin to the end of the list, in the order of names.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shim.cni.host_files import DROP_IN_SUFFIX, SUFFIXES, file_names
from shim.cni.plugin import JsonObject
from shim.cni.programs import FindPlugins, find_plugins
from shim.domain.errors import reason_of
from shim.hostfs.client import HostCall, call_here
from shim.hostfs.file_parts import read_parts

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""The released versions of the specification, oldest first."""

READ = "read cni configuration directory"
FILE_LIMIT = 1 << 20
"""Most bytes of a file."""
FILES_LIMIT = 1000
"""Most files in a directory of configurations or drop-in plugins."""
TYPE_LIMIT = 255
"""Most bytes of a plugin's type, which is a file name (NAME_MAX)."""

DropIns = Callable[[str], Sequence[JsonObject]]
"""Returns the drop-in plugins of a network, by its name. Raises ConfError if a drop-in is unusable."""

INLINED_ONLY = "loadOnlyInlinedPlugins"
"""The key that disables drop-in plugins of a list."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")


class ConfError(ValueError):
    """Why a file cannot be used."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """A valid network configuration."""

    file: str
    """Name of its file."""
    conflist: JsonObject
    """The list as written, including unknown keys. `cniVersion` is the version in use. `plugins` is not empty, and ends
    with the drop-in plugins."""

    @property
    def name(self) -> str:
        """The name of the network."""
        return str(self.conflist["name"])

    @property
    def plugin_types(self) -> list[str]:
        """The types of the plugins, in the order of ADD."""
        return [plugin["type"] for plugin in self.conflist["plugins"]]

    def declares(self, capability: str) -> bool:
        """Return whether a plugin of the list declares `capability`."""
        return any(declares(plugin, capability) for plugin in self.conflist["plugins"])


@dataclass(frozen=True, slots=True)
class Skipped:
    """An unusable file and the reason."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a configuration directory: for each file, by name, its network or why it has none."""

    directory: Path
    entries: tuple[NetworkConfig | Skipped, ...] = ()
    problem: str = ""
    """Why the directory itself is unusable; empty if it is usable."""
    is_empty: bool = False
    """Whether the directory or every configuration file is missing; then `problem` says so."""
    networks: frozenset[str] = frozenset()
    """Names of the networks whose drop-in plugins were searched."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The network in force, and the skipped files before it."""

    network: NetworkConfig | None
    skipped: tuple[Skipped, ...]


def declares(plugin: JsonObject, capability: str) -> bool:
    """Return whether the configuration of a plugin declares `capability`."""
    return (plugin.get("capabilities") or {}).get(capability) is True


def read_directory(directory: Path, *, call: HostCall = call_here) -> Listing:
    """Read every configuration file of a directory. `choose` checks whether the plugins exist.

    `call` runs each read. Its exceptions other than OSError are passed on.
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
    """Return the names of files with these suffixes in order, but stop after more than FILES_LIMIT."""
    names: list[str] = []
    while len(names) <= FILES_LIMIT:
        after = names[-1] if names else ""
        more = call(partial(file_names, directory, after=after, suffixes=suffixes), path=str(directory), what=READ)
        if not more:
            break
        names += more
    return names


def choose(listing: Listing, *, bin_dirs: Sequence[Path], find: FindPlugins = find_plugins) -> Choice:
    """Choose the first network whose plugins all exist in `bin_dirs` now."""
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
    """Parse a network configuration. Raise ConfError with the reason if it is invalid.

    A `.conflist` must be a list, and may have drop-in plugins. A `.conf` or `.json` may hold a list, which has the key
    `plugins`, or a single plugin, which is wrapped into a list: both forms are common.
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
    """Return whether a key of a list is true. Lists for older libraries have text, in upper or lower case."""
    return str(conflist.get(key, False)).lower() == "true"


def _inlined(raw: JsonObject) -> list[JsonObject]:
    """Return the plugins in the file itself; none without the key `plugins`."""
    plugins = raw.get("plugins", [])
    if not isinstance(plugins, list) or ("plugins" in raw and not plugins):
        raise ConfError("no plugins: 'plugins' must be a list of at least one")
    for index, plugin in enumerate(plugins):
        _check_plugin(plugin, where=f"plugins[{index}]")
    return plugins


def _read_drop_ins(directory: Path, *, call: HostCall) -> list[JsonObject]:
    """Return the plugins of a directory of drop-ins; none if it does not exist.

    Raise ConfError for an unusable drop-in: without it, pods would silently lack its function.
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
    """Return a file name as valid text for messages."""
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
    # The type is a file name in the binary directories, and must not lead out of them.
    if "/" in plugin_type or "\0" in plugin_type or plugin_type in (".", ".."):
        raise ConfError(f"{where} has a bad type {plugin_type!r:.80}")
    if len(plugin_type.encode()) > TYPE_LIMIT:
        raise ConfError(f"{where} has a type longer than {TYPE_LIMIT} bytes: {plugin_type!r:.80}")
    if not isinstance(plugin.get("capabilities") or {}, dict):
        raise ConfError(f"{where}: capabilities is not an object")


def _version_in_use(raw: JsonObject) -> str:
    """Return the newest version that both the list and the server support; 0.1.0 by default (section 1)."""
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
    # ipam.type is not searched: some plugins handle their IPAM type themselves, without a binary of that name.
    found = find(network.plugin_types, bin_dirs)
    missing = [kind for kind in network.plugin_types if kind not in found]
    if not missing:
        return ""
    words = "plugin binary" if len(missing) == 1 else "plugin binaries"
    return f"{words} {', '.join(missing)} not found in {', '.join(map(str, bin_dirs))}"
