"""The licences of what is bundled, from the metadata of the installed libraries."""

import email
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from release.errors import BuildError

_TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")
_RULE = "=" * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """The licence of one library."""

    library: str
    version: str
    name: str
    """SPDX expression, or what the metadata has instead."""
    texts: tuple[str, ...]


def licences_of(environment: Path) -> list[Licence]:
    """Return the licences of all libraries below a directory. Raise BuildError for one without a text."""
    found = {}
    for path in sorted(environment.rglob("*.dist-info")):
        licence = _licence(path)
        if not licence.texts:
            raise BuildError(f"{licence.library} {licence.version} brings no text of its licence: {path}")
        found[licence.library.lower()] = licence
    return [found[name] for name in sorted(found)]


def write_licences(stage: Path, into: Path) -> Path:
    """Write the text that packages bring as a file of its own."""
    place = into / "LICENCES.txt"
    place.write_text(copyright_text(licences_of(stage)))
    return place


def copyright_text(licences: list[Licence]) -> str:
    """Return one text with the licences of all libraries."""
    lines = ["pydockershim is licensed under Apache-2.0. This package bundles these libraries:", ""]
    lines += [f"  {licence.library} {licence.version}: {licence.name}" for licence in licences]
    for licence in licences:
        for text in licence.texts:
            lines += ["", _RULE, f"{licence.library} {licence.version}", _RULE, "", text.strip()]
    return "\n".join(lines) + "\n"


def _licence(path: Path) -> Licence:
    metadata = email.message_from_string((path / "METADATA").read_text())
    return Licence(
        library=str(metadata["Name"]),
        version=str(metadata["Version"]),
        name=str(metadata["License-Expression"] or "") or _short(metadata["License"]) or _classified(metadata),
        texts=tuple(file.read_text(errors="replace") for file in _files(path)),
    )


def _files(path: Path) -> Iterator[Path]:
    for file in sorted(path.rglob("*")):
        if file.is_file() and (file.parent.name == "licenses" or file.name.upper().startswith(_TEXTS)):
            yield file


def _short(text: str | None) -> str:
    """Return a licence field that is a name; some hold the whole text."""
    return text.strip() if text and "\n" not in text.strip() else ""


def _classified(metadata: Message) -> str:
    names = [str(name) for name in metadata.get_all("Classifier", [])]
    return ", ".join(name.rpartition(" :: ")[2] for name in names if name.startswith("License :: ")) or "see the text"
