"""Limits of the server process: its word size, open files, and the OOM score that its systemd unit asks for."""

import os
import platform
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from shim.domain.errors import FailedPrecondition

OPEN_FILES = 65536
"""Wanted limit of open files: each call to Docker and each client holds one. Not higher, because plugins inherit the
limit, and some programs close every possible descriptor one by one."""
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")

_MOST_OF_32_BITS = 1 << 32

log = structlog.get_logger(__name__)


def check_64_bit() -> None:
    """Raise FailedPrecondition in a 32-bit process: structures of the kernel have other layouts there."""
    if sys.maxsize < _MOST_OF_32_BITS:
        raise FailedPrecondition(f"Python is a 32-bit program ({platform.machine()}); pydockershim needs 64 bits")


def raise_open_files_limit() -> None:
    """Raise the soft limit to OPEN_FILES, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_low_limits(environ: Mapping[str, str]) -> None:
    """Log limits that systemd could not raise: in a container it does not report that."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES:
        log.info("limit of open files is low", limit=limit, wanted=OPEN_FILES)
    if environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return  # not started by the unit, which asks for a lower score
    score = int(_OOM_SCORE_ADJ.read_bytes())
    if score >= 0:
        log.info("OOM score is not lowered", oom_score_adj=score)
