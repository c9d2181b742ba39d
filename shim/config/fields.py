"""Names of each setting as flag, variable and key, and its accepted values.

They follow from `shim.config.model`: a field's type determines how its text is parsed, and its docstring is the help of
its flag. A field with an unusual form has a row in `_BY_NAME`, and each number has a row in `_ZERO`.
"""

import ast
import inspect
import ipaddress
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import msgspec

from shim.base.deadline import LONGEST
from shim.config.model import Config, LogLevel, NetworkPlugin
from shim.domain import references
from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument

ENVIRONMENT_PREFIX = "PYDOCKERSHIM_"

_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_IMAGE_PATTERN = re.compile(r"[a-zA-Z0-9._:/@*\[\]-]+")
"""Characters of image references, and `*`."""
_KEY_PATTERN = re.compile(r"[a-zA-Z0-9._/*-]+")
"""Characters of annotation keys, and `*`."""
_PLUGIN_PATTERN = re.compile(r"[a-zA-Z0-9_.+-]+")
"""Characters of NRI plugin names."""
_MIN_SECONDS = 0.1
"""Minimum of a time limit on work: a shorter limit could not be met, so it is refused as a mistake."""

# cri-dockerd's flags are accepted unchanged, and it has more levels, in any case.
_LEVEL_ALIASES = {"panic": "error", "fatal": "error", "warn": "warning", "trace": "debug"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A setting: its names and accepted values."""

    name: str
    doc: str
    default: object
    accepted: str
    """The accepted forms, in words."""
    zero: str
    """The meaning of 0, or `refused`; empty if the value is not a number."""
    parse: Callable[[object], Any]
    """Converts text (flag, environment) or a TOML value to the field's value; ValueError for anything else."""

    @property
    def flag(self) -> str:
        """Return the flag, with the dashes."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()


@cache
def fields() -> Mapping[str, Field]:
    """Return all settings by name, in the order of the model."""
    docs = _docs()
    return MappingProxyType(
        {
            info.name: Field(
                name=info.name,
                doc=docs[info.name],
                default=info.default,
                accepted=_kind(info).accepted,
                zero=_zero(info),
                parse=_kind(info).parse,
            )
            for info in msgspec.structs.fields(Config)
        }
    )


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


@dataclass(frozen=True, slots=True)
class _Kind:
    parse: Callable[[object], object]
    accepted: str


def _kind(info: msgspec.structs.FieldInfo) -> _Kind:
    if info.name in _BY_NAME:
        return _BY_NAME[info.name]
    if get_origin(info.type) is Literal:
        return _choice(get_args(info.type))
    return _BY_TYPE[info.type]


def _zero(info: msgspec.structs.FieldInfo) -> str:
    """Return the meaning of 0; raise KeyError for a number without a row in `_ZERO`."""
    return _ZERO[info.name] if info.type in {float, int} else ""


def _choice(choices: tuple[str, ...]) -> _Kind:
    def parse(raw: object) -> str:
        text = str(raw).lower() if isinstance(raw, bool) else _text(raw)
        if text not in choices:
            raise ValueError(raw)
        return text

    return _Kind(parse, " or ".join([", ".join(choices[:-1]), choices[-1]]))


def _log_level(raw: object) -> object:
    """Parse a level in any case, or a logrus level; empty means the default, like in cri-dockerd."""
    text = "" if raw == "" else _text(raw).lower()
    return _LOG_LEVELS.parse(_LEVEL_ALIASES.get(text, text) or Config().log_level)


def _network_plugin(raw: object) -> str:
    """Parse the plugin; accept cri-dockerd's values too."""
    return _NETWORK_PLUGINS.parse("none" if raw in ("", "no-op") else raw)  # type: ignore[return-value] # one of the choices


def _request_timeout(raw: object) -> float:
    """Parse seconds; 0, cri-dockerd's default, means this server's default."""
    return _some_seconds(raw) or Config().runtime_request_timeout


def _seconds(raw: object) -> float:
    """Parse seconds up to LONGEST, beyond which poll(2) overflows and the wait fails."""
    seconds = seconds_from(raw)
    if seconds > LONGEST:
        raise ValueError(raw)
    return seconds


def _some_seconds(raw: object) -> float:
    """Parse seconds: 0, or enough for the work to be done."""
    seconds = _seconds(raw)
    if 0 < seconds < _MIN_SECONDS:
        raise ValueError(raw)
    return seconds


def _one_second_or_more(raw: object) -> float:
    seconds = _seconds(raw)
    if seconds < 1:
        raise ValueError(raw)
    return seconds


def _needed_seconds(raw: object) -> float:
    seconds = _some_seconds(raw)
    if not seconds:
        raise ValueError(raw)
    return seconds


def _switch(raw: object) -> bool:
    return _SWITCHES.parse(raw) == "true"


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


def _docker_endpoint(raw: object) -> str:
    """Parse an endpoint; empty means the default, like in cri-dockerd."""
    return _unix_socket(Config().docker_endpoint if raw == "" else raw)


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
    """Parse `IP:PORT` or an IP address, with port 0; empty, cri-dockerd's default, means this server's default."""
    if raw == "":
        return Config().streaming_bind_addr
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
    if text and ("*" in text or not _KEY_PATTERN.fullmatch(text)):
        raise ValueError(raw)
    return text


def _image_reference(raw: object) -> str:
    text = _text(raw)
    try:
        references.parse(text)
    except InvalidArgument as error:
        raise ValueError(str(error)) from error
    return text


def _patterns_of(allowed: re.Pattern[str]) -> Callable[[object], tuple[str, ...]]:
    def parse(raw: object) -> tuple[str, ...]:
        items = raw if isinstance(raw, list) else _text(raw).split(",") if raw != "" else []
        patterns = tuple(_text(item) for item in items)
        if not all(allowed.fullmatch(pattern) for pattern in patterns):
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


def _per_million(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str) or not 0 <= int(raw) <= 1_000_000:
        raise ValueError(raw)
    return int(raw)


def _size(raw: object) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"[1-9]\d*[kmg]", raw):
        raise ValueError(raw)
    return raw


def _file_count(raw: object) -> int:
    # Docker truncates a single file in place, and output that was not copied by then is lost.
    if isinstance(raw, bool) or not isinstance(raw, int | str) or not 2 <= int(raw) <= 100:
        raise ValueError(raw)
    return int(raw)


def _session_count(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str) or not 1 <= int(raw) <= 10000:
        raise ValueError(raw)
    return int(raw)


def _is_go_form(text: str) -> bool:
    return bool(re.fullmatch(f"(?:{_GO_PART.pattern})+", text))


_SWITCHES = _choice(("true", "false"))
_LOG_LEVELS = _choice(get_args(LogLevel))
_NETWORK_PLUGINS = _choice(get_args(NetworkPlugin))
_SECONDS = _Kind(_seconds, "seconds or 1m30s, at most 277h")
_SOME_SECONDS = _Kind(_some_seconds, f"0, or {_MIN_SECONDS:g} s to 277h, as seconds or 1m30s")
_ONE_SECOND_OR_MORE = _Kind(_one_second_or_more, "1 s to 277h, as seconds or 1m30s")
_OPTIONAL_PATH = _Kind(_optional_path, "an absolute path")

_BY_NAME = {
    "container_runtime_endpoint": _Kind(
        _listening_endpoint, "unix:///path, an absolute path, or fd:// for a socket of systemd; no TCP"
    ),
    "docker_endpoint": _Kind(
        _docker_endpoint,
        "unix:///path or an absolute path; no TCP",
    ),
    "root_directory": _Kind(_own_directory, "an absolute path without `..`, not /"),
    "streaming_bind_addr": _Kind(_bind_address, "IP, IP:PORT or [IP]:PORT; no host names"),
    **dict.fromkeys(
        ("streaming_tls_cert_file", "streaming_tls_key_file", "streaming_tls_client_ca_file"),
        _OPTIONAL_PATH,
    ),
    "pod_infra_container_image": _Kind(_image_reference, "a reference such as registry.k8s.io/pause:3.10"),
    "pinned_images": _Kind(_patterns_of(_IMAGE_PATTERN), "names such as registry.example/infra/*, comma-separated"),
    **dict.fromkeys(
        ("pod_annotations", "container_annotations"),
        _Kind(_patterns_of(_KEY_PATTERN), "keys such as dev.gvisor.*, comma-separated"),
    ),
    "nri_required_plugins": _Kind(_patterns_of(_PLUGIN_PATTERN), "names such as balloons, comma-separated"),
    "nri_tolerate_missing_plugins_annotation": _Kind(_optional_key, "the key of an annotation"),
    **dict.fromkeys(
        ("nri_plugin_registration_timeout", "nri_plugin_request_timeout"),
        _Kind(_needed_seconds, f"{_MIN_SECONDS:g} s to 277h, as seconds or 1m30s"),
    ),
    "runtime_request_timeout": _Kind(_request_timeout, _SOME_SECONDS.accepted),
    **dict.fromkeys(("image_pull_progress_deadline", "streaming_idle_timeout"), _SOME_SECONDS),
    **dict.fromkeys(("cni_plugin_timeout", "streaming_creation_timeout"), _ONE_SECOND_OR_MORE),
    "cni_gc_interval": _SOME_SECONDS,
    "cni_conf_template": _OPTIONAL_PATH,
    "network_plugin": _Kind(_network_plugin, "cni or none; no-op and empty mean none"),
    "image_credential_provider_config": _OPTIONAL_PATH,
    "image_credential_provider_bin_dir": _OPTIONAL_PATH,
    "metrics_bind_addr": _Kind(_http_address, "IP:PORT, [IP]:PORT, a port alone, or empty"),
    "tracing_endpoint": _Kind(_collector, "http://HOST:PORT, https://HOST:PORT, HOST:PORT (http), or empty"),
    "tracing_sampling_rate_per_million": _Kind(_per_million, "a number from 0 to 1000000"),
    "docker_log_max_size": _Kind(_size, "such as 16m, 500m or 1g; times docker_log_max_file at least 32m"),
    **dict.fromkeys(
        ("streaming_max_sessions", "streaming_max_sessions_per_container"),
        _Kind(_session_count, "a number from 1 to 10000"),
    ),
    "docker_log_max_file": _Kind(_file_count, "a number from 2 to 100"),
    "log_level": _Kind(_log_level, _LOG_LEVELS.accepted),
    "pod_cidr": _Kind(_networks, "address ranges such as 10.244.0.0/24,fd00:10:244::/64"),
}

_ZERO = {
    "image_pull_progress_deadline": "no limit",
    "runtime_request_timeout": "the default",
    "cni_plugin_timeout": "refused",
    "cni_gc_interval": "no clean-up, not even at the start",
    "streaming_idle_timeout": "no limit",
    "streaming_creation_timeout": "refused",
    "streaming_max_sessions": "refused",
    "streaming_max_sessions_per_container": "refused",
    "nri_plugin_registration_timeout": "refused",
    "nri_plugin_request_timeout": "refused",
    "docker_log_max_file": "refused",
    "tracing_sampling_rate_per_million": "only RPCs whose client traces them",
    "shutdown_grace": "calls in flight are cut off at once",
}

_BY_TYPE: dict[object, _Kind] = {
    str: _Kind(_text, "a non-empty text"),
    bool: _Kind(_switch, _SWITCHES.accepted),
    float: _SECONDS,
    Path: _Kind(_path, "an absolute path"),
    tuple[Path, ...]: _Kind(_paths, "absolute paths, comma-separated"),
}


def _docs() -> dict[str, str]:
    # Python drops the docstrings of attributes; in the source they follow their field.
    body = ast.parse(inspect.getsource(Config)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - for the type checker
    docs: dict[str, str] = {}
    for field, doc in itertools.pairwise(body.body):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
