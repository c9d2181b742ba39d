"""Where the values of the settings come from: flags, then the environment, then the TOML file, then defaults."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shim.config.fields import Field, fields
from shim.config.model import Config
from shim.config.together import check_together
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

DEFAULT_FILE = Path("/etc/pydockershim/config.toml")
"""Read when no other file is named, if it exists."""

DEFAULT = "default"

_SHOWN_CHARACTERS = 200
"""Of a refused value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The effective settings, and their origins."""

    config: Config
    origins: Mapping[str, str]
    """For each field: `default`, `file /path`, `environment NAME` or `flag --name`."""


@dataclass(frozen=True, slots=True)
class _Given:
    origin: str
    raw: object


def load(*, flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None) -> Loaded:
    """Return the effective settings.

    `flags` maps field names to the text of their flags. `file` must exist; without one, DEFAULT_FILE is read if it is
    there. Environment variables with our prefix that are no setting are left alone: Kubernetes itself makes such ones
    for a Service of our name. InvalidArgument names the flag, variable or file, the field, and the accepted form.
    FailedPrecondition for a file that is not there or cannot be read: it may come a moment later.
    """
    given = {
        **_from_file(file),
        **_from_environment(environ),
        **{name: _Given(f"flag {fields()[name].flag}", text) for name, text in flags.items()},
    }
    values = {name: _value(fields()[name], value) for name, value in given.items()}
    origins = {name: given[name].origin if name in given else DEFAULT for name in fields()}
    config = Config(**values)
    check_together(config)
    return Loaded(config=config, origins=origins)


def _value(field: Field, given: _Given) -> Any:
    try:
        return field.parse(given.raw)
    except ValueError:
        raise InvalidArgument(
            f"{given.origin}: {field.name} {_shown(given.raw)} is not accepted, give {field.accepted}"
        ) from None


def _shown(raw: object) -> str:
    """Return a value for a message, cut where it is long."""
    try:
        text = repr(raw)
    except (ValueError, RecursionError):  # Python writes neither numbers of thousands of digits nor deep nests
        return f"(too long to be shown, {type(raw).__name__})"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    return {
        field.name: _Given(f"environment {field.variable}", environ[field.variable])
        for field in fields().values()
        if field.variable in environ
    }


def _from_file(file: Path | None) -> dict[str, _Given]:
    path = DEFAULT_FILE if file is None else file
    table = _read(path, may_be_missing=file is None)
    for name in table:
        if name not in fields():
            raise InvalidArgument(f"file {path}: there is no setting {name!r}{_hint(name)}")
    return {name: _Given(f"file {path}", raw) for name, raw in table.items()}


def _read(path: Path, *, may_be_missing: bool) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError):
            return {}
        raise FailedPrecondition(f"file {path}: cannot be read: {reason_of(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"file {path}: is not TOML: {error}") from error
    except ValueError as error:
        raise InvalidArgument(f"file {path}: cannot be read: a number in it is too long") from error
    except RecursionError as error:
        raise InvalidArgument(f"file {path}: cannot be read: it is nested too deep") from error


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").lower(), fields(), n=1)
    return f", perhaps {near[0]!r}" if near else ""
