"""Names of each setting as flag, variable and key, and its accepted values.

All of it comes from the setting's field in `shim.config.model`: the docstring is the help of the flag, and the type, or
the `Form` attached to it, determines the accepted values.
"""

import ast
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from shim.config import forms
from shim.config.forms import Form
from shim.config.model import Config

ENVIRONMENT_PREFIX = "PYDOCKERSHIM_"

_BY_TYPE: Mapping[object, Form] = {
    str: forms.TEXT,
    bool: forms.SWITCH,
    Path: forms.PATH,
    tuple[Path, ...]: forms.PATHS,
}
"""Forms of types that need no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A setting: its names and accepted values."""

    name: str
    doc: str
    default: object
    form: Form

    @property
    def flag(self) -> str:
        """Return the flag, with the dashes."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def accepted(self) -> str:
        """Return the accepted forms, in words."""
        return self.form.accepted

    @property
    def zero(self) -> str:
        """Return the meaning of 0, or `refused`; empty if the value is not a number."""
        return self.form.zero

    def parse(self, raw: object) -> Any:
        """Convert text (flag, environment) or a TOML value to the field's value; ValueError for anything else."""
        if raw == "" and self.form.empty_is_default:
            return self.default
        value = self.form.parse(raw)
        return self.default if self.form.zero == forms.DEFAULT and not value else value


@cache
def fields() -> Mapping[str, Field]:
    """Return all settings by name, in the order of the model."""
    docs = _docs()
    return MappingProxyType(
        {
            info.name: Field(name=info.name, doc=docs[info.name], default=info.default, form=_form(info.type))
            for info in msgspec.structs.fields(Config)
        }
    )


def _form(kind: object) -> Form:
    if get_origin(kind) is Annotated:
        form: Form = get_args(kind)[1]
        return form
    return forms.choice(*get_args(kind)) if get_origin(kind) is Literal else _BY_TYPE[kind]


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
