"""Sources of the settings' values: flags, then the environment, then TOML files, then defaults."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shim.config.combinations import LOG_COPY, check_combinations
from shim.config.fields import Field, fields
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

DEFAULT_FILE = Path("/etc/pydockershim/config.toml")
"""Read if no other file is named and it exists."""

_DROP_INS = "conf.d"
"""Directory next to DEFAULT_FILE. Its `*.toml` files are read after it in name order; the last value of a setting
wins."""

DEFAULT = "default"

_LIKENESS = 0.9
"""Of a variable that is probably a misspelt setting, from 0 to 1."""

_SHOWN_CHARACTERS = 200
"""Maximum length of a refused value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The effective settings and their origins."""

    config: Config
    origins: Mapping[str, str]
    """Origin of each field: `default`, `file /path`, `environment NAME` or `flag --name`."""


@dataclass(frozen=True, slots=True)
class _Given:
    origin: str
    raw: object
    place: str
    """The origin for a message; for a file with the line."""


def load(*, flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None, root: Path = Path("/")) -> Loaded:
    """Return the effective settings.

    `flags` maps field names to the text of their flags. `file` must exist, and is then the only file. Without it,
    DEFAULT_FILE and the files of `drop_in_directory` are read below `root`, if they exist. Raise InvalidArgument with
    the flag, variable, or file and line, the field, and the accepted form. Raise FailedPrecondition for a file that is
    missing or unreadable: it may appear a moment later.
    """
    given = {
        **(_from_default_files(root) if file is None else _from_file(file, _read(file))),
        **_from_environment(environ),
        **{name: _given(f"flag {fields()[name].flag}", text) for name, text in flags.items()},
    }
    values = {name: _value(fields()[name], value) for name, value in given.items()}
    origins = {name: given[name].origin if name in given else DEFAULT for name in fields()}
    config = Config(**values)
    try:
        check_combinations(config)
    except InvalidArgument as error:
        places = dict.fromkeys(given[name].place for name in LOG_COPY if name in given)
        raise InvalidArgument(f"{' and '.join(places)}: {error}") from None
    return Loaded(config=config, origins=origins)


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each environment variable that is almost that of a setting.

    An unknown variable is no error: Kubernetes sets some with our prefix for a Service named `pydockershim`.
    """
    known = [field.variable for field in fields().values()]
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS) for name in environ.keys() - set(known)}
    return [f"environment {name} is no setting, perhaps {found[0]}" for name, found in sorted(near.items()) if found]


def drop_in_directory() -> Path:
    """Return the directory of settings files that are read after DEFAULT_FILE."""
    return DEFAULT_FILE.with_name(_DROP_INS)


def files_read(file: Path | None) -> list[Path]:
    """Return the paths that `load` reads on this machine, even if missing, and the directory of drop-ins."""
    if file is not None:
        return [file]
    try:
        files = list(_default_files(Path("/")))
    except FailedPrecondition:
        files = [DEFAULT_FILE]
    return [*files, drop_in_directory()]


def _given(origin: str, raw: object) -> _Given:
    return _Given(origin, raw, origin)


def _value(field: Field, given: _Given) -> Any:
    try:
        return field.parse(given.raw)
    except ValueError:
        raise InvalidArgument(
            f"{given.place}: {field.name} {_shown(given.raw)} is not accepted, give {field.accepted}"
        ) from None


def _shown(raw: object) -> str:
    """Return a value for a message, shortened if it is long."""
    try:
        text = repr(raw)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return f"(too long to show, {type(raw).__name__})"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    return {
        field.name: _given(f"environment {field.variable}", environ[field.variable])
        for field in fields().values()
        if field.variable in environ
    }


def _from_default_files(root: Path) -> dict[str, _Given]:
    """Read the existing default files; the last file wins."""
    given: dict[str, _Given] = {}
    for path in _default_files(root):
        try:
            text = _read(path)
        except FailedPrecondition as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue  # removed since the directory was listed, or never there
            raise
        given |= _from_file(path, text)
    return given


def _default_files(root: Path) -> Iterator[Path]:
    """Yield DEFAULT_FILE and the files of `drop_in_directory` in name order. Hidden files belong to editors."""
    yield root / DEFAULT_FILE.relative_to("/")
    directory = root / drop_in_directory().relative_to("/")
    try:
        names = [path for path in directory.iterdir() if path.suffix == ".toml" and not path.name.startswith(".")]
    except FileNotFoundError:
        return
    except OSError as error:
        raise FailedPrecondition(f"directory {directory}: cannot be read: {reason_of(error)}") from error
    yield from sorted(names)


def _from_file(path: Path, text: str) -> dict[str, _Given]:
    table = _parse(path, text)
    given = {name: _Given(f"file {path}", raw, _place(path, text, name)) for name, raw in table.items()}
    for name, value in given.items():
        if name not in fields():
            raise InvalidArgument(f"{value.place}: there is no setting {name!r}{_hint(name)}")
    return given


def _place(path: Path, text: str, name: str) -> str:
    """Return `file PATH, line N` of a key, or without the line if the key is written with escapes.

    The standard library's TOML parser does not report where a key was.
    """
    key = f"""(?:{re.escape(name)}|"{re.escape(name)}"|'{re.escape(name)}')"""
    found = re.search(rf"^[ \t]*\[{{0,2}}[ \t]*{key}[ \t]*[=.\]]", text, re.MULTILINE)
    return f"file {path}" if found is None else f"file {path}, line {text.count(chr(10), 0, found.start()) + 1}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(f"file {path}: cannot be read: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"file {path}, line {line}: is not TOML: {error}") from error


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+),", str(error))
        place = f"line {line[1]}" if line else f"line {text.count(chr(10)) + 1}"  # at the end of the document
        raise InvalidArgument(f"file {path}, {place}: is not TOML: {error}") from error
    except ValueError as error:
        raise InvalidArgument(f"file {path}: cannot be read: a number in it is too long") from error
    except RecursionError as error:
        raise InvalidArgument(f"file {path}: cannot be read: it is nested too deep") from error


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").lower(), fields(), n=1)
    return f", perhaps {near[0]!r}" if near else ""
