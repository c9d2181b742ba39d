"""The bill of materials of what is bundled, in the format of CycloneDX."""

import sys
from pathlib import Path

from release.bundle import Machine
from release.commands import run_tool
from release.environment import PYTHON
from release.source import Source
from release.stage import PREFIX

_PROGRAM = Path(sys.executable).with_name("cyclonedx-py")


def write_sbom(source: Source, stage: Path, into: Path, *, machine: Machine) -> Path:
    """Write the bill of materials of a staged tree, of which Python itself lists the libraries."""
    python = stage / PREFIX.relative_to("/") / PYTHON
    place = into / f"pydockershim-{source.version}-{machine.name}.cdx.json"
    words: list[str | Path] = [_PROGRAM, "environment", python, "--pyproject", source.tree / "pyproject.toml"]
    flags: list[str | Path] = ["--output-reproducible", "--mc-type", "application", "--output-file", place]
    run_tool([*words, *flags], environ=source.environ)
    return place
