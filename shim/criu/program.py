"""Finds the program criu and its version."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from shim.base.spawn import run_bounded
from shim.domain.errors import ShimError, reason_of

_DIRECTORIES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_VERSION_SECONDS = 2.0

INSTALL = "install the package criu, version 4 or newer, with iptables"


def search_path(environ: Mapping[str, str]) -> str:
    """Return the search path for criu and for programs that criu runs: PATH, then the usual directories."""
    return os.pathsep.join(filter(None, (environ.get("PATH", ""), _DIRECTORIES)))


def find_criu(environ: Mapping[str, str]) -> Path | None:
    """Return the path of criu; None if it is not installed."""
    found = shutil.which("criu", path=search_path(environ))
    return Path(found) if found else None


def describe(environ: Mapping[str, str]) -> str:
    """Return a text for people: path and version of criu, how to install it, or why it does not run."""
    criu = find_criu(environ)
    if criu is None:
        return f"not found: {INSTALL}"
    try:
        said = run_bounded(
            criu,
            arguments=["--version"],
            environment={"PATH": search_path(environ)},
            stdin=b"",
            timeout=_VERSION_SECONDS,
            what=f"{criu} --version",
        )
    except ShimError as error:
        return str(error)
    except OSError as error:
        return f"{criu}: {reason_of(error)}"
    return f"{criu} {version_in(said.stdout)}"


def version_in(output: bytes) -> str:
    """Parse the output of `criu --version`; return a note if it contains no version."""
    first = output.decode(errors="replace").partition("\n")[0]
    return first.removeprefix("Version: ") or "of an unknown version"
