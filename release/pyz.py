"""The single file `pydockershim.pyz`: a zip archive that Python runs, with the private environment in it.

It unpacks the environment once, into a cache, since compiled libraries cannot be loaded from an archive. shiv and pex
do the like for one Python version at a time, or resolve libraries again at the first start; this one holds what
the packages hold, for all versions, and its start is `bootstrap.py`.
"""

import hashlib
import zipfile
from pathlib import Path
from time import gmtime

from release.bundle import Machine
from release.source import Source, supported_pythons
from release.stage import PREFIX

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
SHEBANG = b"#!/usr/bin/env python3\n"


def build_pyz(source: Source, stage: Path, into: Path, *, machine: Machine) -> Path:
    """Build the single file for a machine from a staged tree."""
    home = stage / PREFIX.relative_to("/")
    files = sorted(path for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    files = [path for path in files if path.parent != home / "bin" and path.name != "pyvenv.cfg"]
    contents = {f"environment/{path.relative_to(home)}": path for path in files}
    digest = hashlib.sha256()
    for name, path in contents.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    bootstrap = _filled(BOOTSTRAP.read_text(), source, machine=machine, digest=digest.hexdigest())
    package = into / f"pydockershim-{source.version}-{machine.name}.pyz"
    with package.open("wb") as raw:
        raw.write(SHEBANG)
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_entry("__main__.py", 0o644, source), bootstrap)
            for name, path in contents.items():
                archive.writestr(_entry(name, path.stat().st_mode & 0o777, source), path.read_bytes())
    package.chmod(0o755)
    return package


def _entry(name: str, mode: int, source: Source) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=gmtime(source.time)[:6])
    entry.external_attr = mode << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _filled(text: str, source: Source, *, machine: Machine, digest: str) -> str:
    """Return the bootstrap with what is known of this build."""
    values = {
        "VERSION": source.version,
        "MACHINE": machine.name,
        "DIGEST": digest[:16],
        "PYTHONS": tuple(supported_pythons(source.tree)),
    }
    for name, value in values.items():
        text = text.replace(f"{name} = _unset", f"{name} = {value!r}")
    return text
