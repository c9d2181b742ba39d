"""Whether containers can be checkpointed."""

from collections.abc import Iterator, Mapping

from shim.base.spawn import run_bounded
from shim.criu.program import INSTALL, describe, find_criu, search_path
from shim.doctor.findings import Finding
from shim.domain.errors import ShimError, reason_of

_SUBJECT = "checkpoints"
_SECONDS = 10.0
"""For `criu check`, which takes 0.1 s."""


def check_criu(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return whether criu is there and runs on this kernel. Most nodes do without."""
    criu = find_criu(environ)
    if criu is None:
        yield Finding("ok", _SUBJECT, f"of containers need criu, which is not there: {INSTALL}")
        return
    try:
        found = run_bounded(
            criu,
            arguments=["check"],
            environment={"PATH": search_path(environ)},
            stdin=b"",
            timeout=_SECONDS,
            what=f"{criu} check",
        )
    except (ShimError, OSError) as error:
        text = reason_of(error) if isinstance(error, OSError) else str(error)
        yield Finding("warn", _SUBJECT, text, INSTALL)
        return
    if found.returncode:
        said = (found.stderr or found.stdout).decode(errors="replace").strip().rpartition("\n")[2]
        yield Finding("warn", _SUBJECT, f"{describe(environ)} does not run on this kernel: {said}", INSTALL)
        return
    yield Finding("ok", _SUBJECT, f"of containers can be made: {describe(environ)} runs on this kernel")
