"""Credentials files of `docker login` and the kubelet: `config.json`, and its predecessor `.dockercfg`."""

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from shim.base import deadline
from shim.credentials.matching import key_from_location
from shim.credentials.model import Credentials, pair_from_base64
from shim.domain.errors import DeadlineExceeded, ResourceExhausted
from shim.hostfs.client import HostCall, call_here
from shim.hostfs.file_parts import present, read_parts

log = structlog.get_logger(__name__)

CONFIG_JSON = "config.json"
DOCKERCFG = ".dockercfg"

FILE_LIMIT = 1 << 20
"""Maximum bytes of a file; the size limit of a Kubernetes secret, which such files come from, is the same."""


_READ = "read credentials file"


class _MalformedError(ValueError):
    """A file that cannot be parsed, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsFile:
    """The content of a file. Keys are in the form of `shim.credentials.matching`."""

    path: Path
    entries: tuple[tuple[str, Credentials], ...] = ()
    """`auths`: credentials by key."""
    stores: tuple[tuple[str, str], ...] = ()
    """`credHelpers`: names of credential helpers by key."""
    default_store: str = ""
    """`credsStore`: the credential helper for all registries; empty for none."""


class _ConfigJson(msgspec.Struct):
    auths: dict[str, msgspec.Raw] | None = None
    stores: dict[str, str] | None = msgspec.field(default=None, name="credHelpers")
    default_store: str | None = msgspec.field(default=None, name="credsStore")


class _Entry(msgspec.Struct):
    """A value in `auths`, or in `.dockercfg`."""

    username: str = ""
    password: str = ""
    auth: str = ""
    identitytoken: str = ""
    registrytoken: str = ""

    def __repr__(self) -> str:
        return "_Entry(...)"


def search_paths(*, kubelet_root: Path, working: Path, home: Path | None, root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the search path of the kubelet (`pkg/credentialprovider/config.go`).

    Every `config.json` comes before every `.dockercfg`; in a home directory only `.dockercfg` is at the top level.
    """
    homes = [home] if home is not None else []
    modern = [kubelet_root, working, *(place / ".docker" for place in homes), root / ".docker"]
    older = [kubelet_root, working, *homes, root]
    return (*(place / CONFIG_JSON for place in modern), *(place / DOCKERCFG for place in older))


def home_directory(environ: Mapping[str, str]) -> Path | None:
    """Return `$HOME`, or this user's home: services of systemd have no `$HOME`."""
    if named := environ.get("HOME"):
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def read_first(paths: Sequence[Path], *, call: HostCall = call_here) -> CredentialsFile | None:
    """Read the first existing, well-formed file, like the kubelet; log and skip a malformed file.

    If `call` raises DeadlineExceeded or ResourceExhausted, the file is on a volume that hangs, and is skipped too.
    Other exceptions of `call` are passed on.
    """
    for path in _present(paths, call=call):
        try:
            return _read(path, call=call)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, DeadlineExceeded, ResourceExhausted) as failure:
            deadline.current().check(_READ)
            log.warning("cannot read credentials file, trying the next", file=path, error=failure)
        except _MalformedError as failure:
            log.warning("malformed credentials file, trying the next", file=path, error=failure)
    return None


def _present(paths: Sequence[Path], *, call: HostCall) -> Sequence[Path]:
    """Return the paths that exist, with a single call: mostly none of them does.

    Return all paths if that call is not answered: reading them one after the other shows where the read hangs.
    """
    names = [str(path) for path in paths]
    try:
        return [Path(name) for name in call(present, names, path=", ".join(names), what=_READ)]
    except (DeadlineExceeded, ResourceExhausted):
        deadline.current().check(_READ)
        return paths


def _read(path: Path, *, call: HostCall) -> CredentialsFile:
    content = read_parts(path, most=FILE_LIMIT, call=partial(call, path=str(path), what=_READ))
    try:
        return _config_json(path, content) if path.name == CONFIG_JSON else _dockercfg(path, content)
    except msgspec.DecodeError as failure:  # names the position, but no value
        raise _MalformedError(str(failure)) from failure
    except UnicodeDecodeError:
        raise _MalformedError("not UTF-8") from None
    except RecursionError:
        raise _MalformedError("nested too deeply") from None


def _config_json(path: Path, content: bytes) -> CredentialsFile:
    table = msgspec.json.decode(content, type=_ConfigJson)
    return CredentialsFile(
        path=path,
        entries=_entries(path, table.auths or {}),
        stores=tuple((key_from_location(location), name) for location, name in (table.stores or {}).items()),
        default_store=table.default_store or "",
    )


def _dockercfg(path: Path, content: bytes) -> CredentialsFile:
    return CredentialsFile(path=path, entries=_entries(path, msgspec.json.decode(content, type=dict[str, msgspec.Raw])))


def _entries(path: Path, table: Mapping[str, msgspec.Raw]) -> tuple[tuple[str, Credentials], ...]:
    found = []
    for location, raw in table.items():
        key = key_from_location(location)
        try:
            credentials = _credentials(msgspec.json.decode(raw, type=_Entry | None) or _Entry())
        except (ValueError, RecursionError) as failure:  # includes msgspec's errors
            log.warning("skipped entry of credentials file", file=path, entry=key, error=failure)
            continue
        # Docker writes an empty entry if a credential helper stores the secret.
        if credentials.is_given:
            found.append((key, credentials))
    return tuple(found)


def _credentials(entry: _Entry) -> Credentials:
    username, password = pair_from_base64(entry.auth) if entry.auth else (entry.username, entry.password)
    return Credentials(
        username=username,
        password=password,
        identity_token=entry.identitytoken,
        registry_token=entry.registrytoken,
    )
