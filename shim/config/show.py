"""The effective settings for people and for programs."""

import json
import textwrap
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from shim.config.fields import fields
from shim.config.load import Loaded
from shim.config.model import Config

_WIDTH = 100
_REFERENCE_HEAD = """\
# Every setting of pydockershim, with its default. `pydockershim config` shows what is in effect.
# Settings go into /etc/pydockershim/config.toml and /etc/pydockershim/conf.d/*.toml.
# After a change: systemctl restart pydockershim
"""


def text(value: object) -> str:
    """Return a value in the form that its flag takes."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def as_table(loaded: Loaded) -> str:
    """Return columns: setting, value, origin."""
    rows = [(name, text(getattr(loaded.config, name)), origin) for name, origin in loaded.origins.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)


def as_json(loaded: Loaded) -> str:
    """Return `{"name": {"value": ..., "origin": ...}}`; durations in seconds."""
    plain = _plain(loaded)
    shown = {name: {"value": plain[name], "origin": origin} for name, origin in loaded.origins.items()}
    return json.dumps(shown, indent=2)


def as_toml(loaded: Loaded) -> str:
    """Return a configuration file with the effective settings, each under its documentation."""
    plain = _plain(loaded)
    return "\n".join(
        f"# {fields()[name].doc}\n# From: {origin}.\n{name} = {json.dumps(plain[name], ensure_ascii=False)}\n"
        for name, origin in loaded.origins.items()
    ).rstrip()


def reference() -> str:
    """Return a configuration file that sets nothing: each setting's documentation and default in comments."""
    plain: dict[str, object] = msgspec.to_builtins(Config(), enc_hook=str)
    settings = (
        f"{_comment(f'{field.doc} {_sentence(field.accepted)}')}\n#{name} = {json.dumps(plain[name])}\n"
        for name, field in fields().items()
    )
    return "\n".join([_REFERENCE_HEAD, *settings])


FORMATS: Mapping[str, Callable[[Loaded], str]] = MappingProxyType({"table": as_table, "toml": as_toml, "json": as_json})


def _comment(words: str) -> str:
    return textwrap.fill(words, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _sentence(accepted: str) -> str:
    return f"Give {accepted}."


def _plain(loaded: Loaded) -> dict[str, object]:
    # Types that TOML and JSON write alike: strings, numbers, booleans, and lists of strings.
    plain: dict[str, object] = msgspec.to_builtins(loaded.config, enc_hook=str)
    return plain
