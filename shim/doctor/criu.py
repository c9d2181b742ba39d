"""Whether containers can be checkpointed."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from shim.criu.checkpoint import tried
from shim.criu.program import INSTALL, describe, find_criu
from shim.doctor.findings import Finding
from shim.domain.errors import ShimError, reason_of

_SUBJECT = "checkpoints"


def check_criu(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return whether criu is there and runs on this kernel. Most nodes do without."""
    if find_criu(environ) is None:
        yield Finding("ok", _SUBJECT, f"of containers need criu, which is not there: {INSTALL}")
        return
    try:
        problem = tried(environ, work=Path(tempfile.gettempdir()))
    except (ShimError, OSError) as error:
        problem = reason_of(error) if isinstance(error, OSError) else str(error)
    if problem:
        yield Finding("warn", _SUBJECT, f"are not possible: {problem}", INSTALL)
        return
    yield Finding("ok", _SUBJECT, f"of containers can be made: {describe(environ)} has dumped a process")
