"""Where the program criu is looked for."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_DIRECTORIES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INSTALL = "install the package criu, version 4 or newer, with iptables"


def search_path(environ: Mapping[str, str]) -> str:
    """Return the search path for criu and what it runs: PATH, and the usual directories behind it."""
    return os.pathsep.join(filter(None, (environ.get("PATH", ""), _DIRECTORIES)))


def find_criu(environ: Mapping[str, str]) -> Path | None:
    """Return the program; None where there is none."""
    found = shutil.which("criu", path=search_path(environ))
    return Path(found) if found else None
