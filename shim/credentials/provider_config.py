"""The kubelet's CredentialProviderConfig, its file of exec credential providers, read and validated at the start.

Rules and names follow `kubelet.config.k8s.io` v1alpha1, v1beta1 and v1. An unknown field is an error, like in the
kubelet, because a misspelt field would change which images get which credentials.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from shim.base.atomic_files import read_regular
from shim.config.forms import seconds_from
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

T = TypeVar("T")

_CONFIG_GROUP = "kubelet.config.k8s.io"
_PROTOCOL_GROUP = "credentialprovider.kubelet.k8s.io"
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_KIND = "CredentialProviderConfig"
FILE_LIMIT = 256 << 10
"""Maximum bytes of a file. Parsing YAML of this size takes some seconds."""
_SUFFIXES = frozenset({".json", ".yaml", ".yml"})
"""Suffixes of the files that are read in a directory, the same as the kubelet's."""

_TEXT, _DATE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """An entry of `providers`."""

    name: str
    binary: Path
    match_images: tuple[str, ...]
    """`host[:port][/path]` with `*` in labels of the host: the plugin runs for matching images only."""
    api_version: str
    """Version of request and response: `credentialprovider.kubelet.k8s.io/v1` or older."""
    default_cache_seconds: float
    """How long to cache a response that specifies no duration."""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """Added to the server's environment; may contain secrets."""
    needs_service_account: bool = False
    """Whether it needs a pod's token, which only the kubelet has; then it cannot serve pulls of the node."""


class _Variable(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str = ""

    def __repr__(self) -> str:
        return f"_Variable({self.name!r}, ...)"


class _TokenAttributes(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    service_account_token_audience: str
    require_service_account: bool
    cache_type: str = ""
    required_service_account_annotation_keys: list[str] | None = None
    optional_service_account_annotation_keys: list[str] | None = None


class _Provider(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    match_images: list[str]
    default_cache_duration: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    token_attributes: _TokenAttributes | None = None


class _Config(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: str
    kind: str
    providers: list[dict[str, Any]]


def read_providers(config: Path, *, bin_dir: Path) -> tuple[ProviderSettings, ...]:
    """Read the file, or all files of a directory in name order, and find every plugin in `bin_dir`.

    Raise InvalidArgument with file, provider and field. Raise FailedPrecondition for a file that is missing or
    unreadable: the setup of the node may create it a moment later.
    """
    if not (os.access(bin_dir, os.X_OK) and bin_dir.is_dir()):
        raise FailedPrecondition(f"image_credential_provider_bin_dir {bin_dir} is not a directory")
    found: dict[str, ProviderSettings] = {}
    for path in _files(config):
        for where, raw in _raw_providers(path):
            settings = _settings(raw, bin_dir=bin_dir, where=where)
            if settings.name in found:
                raise InvalidArgument(f"{where}: name {settings.name!r} is taken by an earlier provider")
            found[settings.name] = settings
    return tuple(found.values())


def _files(config: Path) -> list[Path]:
    try:
        files = sorted(path for path in config.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    except NotADirectoryError:
        return [config]
    except OSError as failure:
        raise _unreadable_error(f"image_credential_provider_config {config}", failure) from failure
    if not files:
        raise FailedPrecondition(f"image_credential_provider_config {config}: no .json, .yaml or .yml file in it")
    return files


def _raw_providers(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each provider as written in the file, with its place for error messages."""
    where = f"image_credential_provider_config {path}"
    config = _convert(_parse(path, where=where), _Config, where=where)
    if config.api_version not in {f"{_CONFIG_GROUP}/{version}" for version in _VERSIONS}:
        raise InvalidArgument(f"{where}: apiVersion {config.api_version!r} is not {_one_of(_CONFIG_GROUP)}")
    if config.kind != _KIND:
        raise InvalidArgument(f"{where}: kind {config.kind!r} is not {_KIND}")
    if not config.providers:
        raise InvalidArgument(f"{where}: providers is empty")
    for number, raw in enumerate(config.providers):
        name = raw.get("name")
        yield f"{where}: provider {name if isinstance(name, str) and name else number}", raw


_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""ValueError: not UTF-8, or `!!int` before a value that is not an integer. The library does not check the values after
`!!bool` and `!!timestamp`, nor whether there is a value: LookupError, AttributeError."""


class _Loader(yaml.SafeLoader):
    """Loads YAML like the kubelet, for which a date and `1:30` are strings."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """Return the tag of a node."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # a gap in the stubs
        return _TEXT if tag == _DATE or (tag in _NUMBERS and value and ":" in value) else tag


def _parse(path: Path, *, where: str) -> object:
    try:
        return _decode(read_regular(path, most=FILE_LIMIT).decode())
    except OSError as failure:
        raise _unreadable_error(where, failure) from failure
    except _NOT_YAML as failure:
        # The error text quotes the malformed line, which may contain a secret.
        mark = getattr(failure, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise InvalidArgument(f"{where}: is not YAML{place}") from None


def _decode(text: str) -> object:
    """Parse JSON or YAML. YAML is not a superset of JSON here: it forbids tabs."""
    if text.lstrip().startswith("{"):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader


def _unreadable_error(where: str, failure: OSError) -> FailedPrecondition:
    return FailedPrecondition(f"{where}: cannot be read: {reason_of(failure)}")


def _settings(raw: dict[str, Any], *, bin_dir: Path, where: str) -> ProviderSettings:
    provider = _convert(raw, _Provider, where=where)
    _check_name(provider.name, where=where)
    if provider.api_version not in {f"{_PROTOCOL_GROUP}/{version}" for version in _VERSIONS}:
        raise InvalidArgument(f"{where}: apiVersion {provider.api_version!r} is not {_one_of(_PROTOCOL_GROUP)}")
    if not provider.match_images:
        raise InvalidArgument(f"{where}: matchImages is empty")
    tokens = provider.token_attributes
    return ProviderSettings(
        name=provider.name,
        binary=_binary(bin_dir / provider.name, where=where),
        match_images=tuple(_match_image(text, where=where) for text in provider.match_images),
        api_version=provider.api_version,
        default_cache_seconds=_duration(provider.default_cache_duration, where=where),
        arguments=tuple(provider.args or ()),
        environment={variable.name: variable.value for variable in _variables(provider, where=where)},
        needs_service_account=tokens is not None and tokens.require_service_account,
    )


def _check_name(name: str, *, where: str) -> None:
    # The name becomes the last part of a path.
    if not name or name in {".", ".."} or any(sign in name for sign in "/ \0"):
        raise InvalidArgument(f"{where}: name {name!r} is not a file name without spaces")


def _match_image(text: str, *, where: str) -> str:
    if "://" in text or not text.partition("/")[0] or any(sign.isspace() for sign in text):
        raise InvalidArgument(f"{where}: matchImages: {text!r} is not host[:port][/path]")
    return text


def _duration(text: str, *, where: str) -> float:
    try:
        return seconds_from(text)
    except ValueError:
        message = f"{where}: defaultCacheDuration {text!r} is not a duration such as 12h or 1h30m"
        raise InvalidArgument(message) from None


def _variables(provider: _Provider, *, where: str) -> list[_Variable]:
    variables = provider.env or []
    for variable in variables:
        if not variable.name or "=" in variable.name or "\0" in variable.name + variable.value:
            raise InvalidArgument(f"{where}: env: {variable.name!r} is not a valid environment variable")
    return variables


def _binary(path: Path, *, where: str) -> Path:
    if not (os.access(path, os.X_OK) and path.is_file()):
        raise FailedPrecondition(f"{where}: name: {path} is not an executable file")
    return path


def _convert(raw: object, kind: type[T], *, where: str) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as failure:  # names the field and types, but no value
        raise InvalidArgument(f"{where}: {failure}") from failure


def _one_of(group: str) -> str:
    return " or ".join(f"{group}/{version}" for version in _VERSIONS)
