"""The accepted values of settings: a `Form` for each kind, which `shim.config.model` attaches to its fields."""

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shim.base.deadline import LONGEST
from shim.domain import references
from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument

_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_LEVEL_ALIASES = {"panic": "error", "fatal": "error", "warn": "warning", "trace": "debug"}
_IMAGE_CHARACTERS = r"[a-zA-Z0-9._:/@*\[\]-]+"
_KEY_CHARACTERS = r"[a-zA-Z0-9._/*-]+"
_PLUGIN_CHARACTERS = r"[a-zA-Z0-9_.+-]+"

MIN_SECONDS = 0.1
"""Minimum of a time limit on work: a shorter limit could not be met, so it is refused as a mistake."""
REFUSED = "refused"
DEFAULT = "the default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The accepted values of a setting."""

    parse: Callable[[object], Any]
    """Converts text (flag, environment) or a TOML value to the field's value; ValueError for anything else."""
    accepted: str
    """The accepted forms, in words."""
    zero: str = ""
    """The meaning of 0, REFUSED or DEFAULT; empty if the value is not a number."""
    empty_is_default: bool = False
    """Whether an empty text means the default, like in cri-dockerd."""


def seconds(*, least: float = 0.0, zero: str = REFUSED) -> Form:
    """Return the form of a duration in seconds. Without `least` every duration that can be waited for is accepted."""

    def parse(raw: object) -> float:
        value = seconds_from(raw)
        # Beyond LONGEST, poll(2) overflows and the wait fails.
        if value > LONGEST or (value < least and (value or zero == REFUSED)):
            raise ValueError(raw)
        return value

    if least:
        accepted = f"{least:g} s to 277h, as seconds or 1m30s"
        accepted = accepted if zero == REFUSED else f"0, or {accepted}"
    else:
        accepted = "seconds or 1m30s, at most 277h"
    return Form(parse=parse, accepted=accepted, zero=zero)


def number(least: int, most: int, *, zero: str = REFUSED) -> Form:
    """Return the form of an integer within bounds."""

    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str) or not least <= int(raw) <= most:
            raise ValueError(raw)
        return int(raw)

    return Form(parse=parse, accepted=f"a number from {least} to {most}", zero=zero)


def choice(*choices: str) -> Form:
    """Return the form of one of these texts."""

    def parse(raw: object) -> str:
        text = str(raw).lower() if isinstance(raw, bool) else _text(raw)
        if text not in choices:
            raise ValueError(raw)
        return text

    return Form(parse=parse, accepted=" or ".join([", ".join(choices[:-1]), choices[-1]]))


def seconds_from(raw: object) -> float:
    """Parse a duration: a number of seconds, or Go's form (`1m30s`, `250ms`) as in cri-dockerd's flags."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        seconds = _float(raw)
    elif isinstance(raw, str) and _is_go_form(raw):
        seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(raw))
    else:
        seconds = float(_text(raw))
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(raw)
    return seconds


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError as error:  # an integer of more than 308 digits, which TOML allows
        raise ValueError(str(error)) from error


def _is_go_form(text: str) -> bool:
    return bool(re.fullmatch(f"(?:{_GO_PART.pattern})+", text))


def _log_level(raw: object) -> str:
    """Parse a level in any case, or a logrus level, which cri-dockerd's flag takes."""
    text = _text(raw).lower()
    return str(_LOG_LEVELS.parse(_LEVEL_ALIASES.get(text, text)))


def _network_plugin(raw: object) -> str:
    """Parse the plugin; accept cri-dockerd's values too."""
    return str(_NETWORK_PLUGINS.parse("none" if raw in ("", "no-op") else raw))


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw or raw != raw.strip() or "\0" in raw:
        raise ValueError(raw)
    return raw


def _path(raw: object) -> Path:
    path = Path(_text(raw))
    if not path.is_absolute():
        raise ValueError(raw)
    return path


def _paths(raw: object) -> tuple[Path, ...]:
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list) or not items:
        raise ValueError(raw)
    return tuple(_path(item) for item in items)


def _unix_socket(raw: object) -> str:
    text = _text(raw)
    return "unix://" + str(_path(text.removeprefix("unix://")))


def _listening_endpoint(raw: object) -> str:
    return "fd://" if raw == "fd://" else _unix_socket(raw)


def _networks(raw: object) -> str:
    if raw == "":
        return ""
    try:
        return ",".join(parse_pod_cidr(_text(raw)))
    except InvalidArgument as error:
        raise ValueError(str(error)) from error


def _bind_address(raw: object) -> str:
    """Parse `IP:PORT`, or an IP address, which gets port 0."""
    text = _text(raw)
    bracketed = re.fullmatch(r"\[([^]]*)\](?::(\d+))?", text) or re.fullmatch(r"([\d.]*):(\d+)", text)
    address, port = bracketed.groups() if bracketed else (text, None)
    ip, number = ipaddress.ip_address(address), int(port or 0)
    if number >= 1 << 16:
        raise ValueError(raw)
    return f"[{ip}]:{number}" if ip.version == 6 else f"{ip}:{number}"


def _own_directory(raw: object) -> Path:
    """Parse a directory that becomes private: neither `/` nor a path with `..`."""
    path = _path(raw)
    if ".." in path.parts or len(path.parts) == 1:
        raise ValueError(raw)
    return path


def _optional_path(raw: object) -> str:
    return "" if raw == "" else str(_path(raw))


def _optional_key(raw: object) -> str:
    text = "" if raw == "" else _text(raw)
    if text and ("*" in text or not re.fullmatch(_KEY_CHARACTERS, text)):
        raise ValueError(raw)
    return text


def _image_reference(raw: object) -> str:
    text = _text(raw)
    try:
        references.parse(text)
    except InvalidArgument as error:
        raise ValueError(str(error)) from error
    return text


def _patterns_of(characters: str) -> Callable[[object], tuple[str, ...]]:
    def parse(raw: object) -> tuple[str, ...]:
        items = raw if isinstance(raw, list) else _text(raw).split(",") if raw != "" else []
        patterns = tuple(_text(item) for item in items)
        if not all(re.fullmatch(characters, pattern) for pattern in patterns):
            raise ValueError(raw)
        return patterns

    return parse


def _http_address(raw: object) -> str:
    """Parse `host:port`, `:port` or a port; empty stays empty. Without a host it is loopback."""
    if raw == "":
        return ""
    text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else _text(raw)
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(raw)
    if host:
        # A name could resolve to any address of this machine, or of another.
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]") if host.startswith("[") else host)
    return f"{host or '127.0.0.1'}:{int(port)}"


def _collector(raw: object) -> str:
    """Parse `http://host:port`, `https://host:port`, or `host:port` like the kubelet; empty stays empty."""
    if raw == "":
        return ""
    found = re.fullmatch(r"(https?://)?([a-zA-Z0-9.-]+|\[[0-9a-fA-F:.]+\]):(\d+)", _text(raw))
    if found is None or not 0 < int(found[3]) < 1 << 16:
        raise ValueError(raw)
    return f"{found[1] or 'http://'}{found[2]}:{found[3]}"


def _size(raw: object) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"[1-9]\d*[kmg]", raw):
        raise ValueError(raw)
    return raw


_SWITCHES = choice("true", "false")
_LOG_LEVELS = choice("debug", "info", "warning", "error")
_NETWORK_PLUGINS = choice("cni", "none")

TEXT = Form(parse=_text, accepted="a non-empty text")
SWITCH = Form(parse=lambda raw: _SWITCHES.parse(raw) == "true", accepted=_SWITCHES.accepted)
PATH = Form(parse=_path, accepted="an absolute path")
PATHS = Form(parse=_paths, accepted="absolute paths, comma-separated")
OPTIONAL_PATH = Form(parse=_optional_path, accepted="an absolute path")
PRIVATE_DIRECTORY = Form(
    parse=_own_directory,
    accepted="an absolute path without `..`, not /",
)
LISTENING_ENDPOINT = Form(
    parse=_listening_endpoint,
    accepted="unix:///path, an absolute path, or fd:// for a socket of systemd; no TCP",
)
DOCKER_ENDPOINT = Form(
    parse=_unix_socket,
    accepted="unix:///path or an absolute path; no TCP",
    empty_is_default=True,
)
BIND_ADDRESS = Form(
    parse=_bind_address,
    accepted="IP, IP:PORT or [IP]:PORT; no host names",
    empty_is_default=True,
)
HTTP_ADDRESS = Form(
    parse=_http_address,
    accepted="IP:PORT, [IP]:PORT, a port alone, or empty",
)
COLLECTOR = Form(parse=_collector, accepted="http://HOST:PORT, https://HOST:PORT, HOST:PORT (http), or empty")
IMAGE_REFERENCE = Form(parse=_image_reference, accepted="a reference such as registry.k8s.io/pause:3.10")
IMAGE_PATTERNS = Form(
    parse=_patterns_of(_IMAGE_CHARACTERS),
    accepted="names such as registry.example/infra/*, comma-separated",
)
ANNOTATION_PATTERNS = Form(parse=_patterns_of(_KEY_CHARACTERS), accepted="keys such as dev.gvisor.*, comma-separated")
PLUGIN_NAMES = Form(parse=_patterns_of(_PLUGIN_CHARACTERS), accepted="names such as balloons, comma-separated")
OPTIONAL_ANNOTATION = Form(parse=_optional_key, accepted="the key of an annotation")
POD_RANGES = Form(parse=_networks, accepted="address ranges such as 10.244.0.0/24,fd00:10:244::/64")
LOG_SIZE = Form(
    parse=_size,
    accepted="such as 16m, 500m or 1g; times docker_log_max_file at least 32m",
)
LOG_LEVEL = Form(parse=_log_level, accepted=_LOG_LEVELS.accepted, empty_is_default=True)
NETWORK_PLUGIN = Form(parse=_network_plugin, accepted="cni or none; no-op and empty mean none")
