"""Rules for combinations of settings."""

from shim.config.model import Config
from shim.domain.errors import InvalidArgument

MIN_LOG_COPY = 32_000_000
"""Minimum bytes of a container's output that Docker must keep.

The log process opens each file as soon as Docker has created it, but runs rarely when the processors are busy. A
flooding container has been seen to fill 65 MB a second of Docker's files (docs/logs.md).
"""

LOG_COPY = ("docker_log_max_size", "docker_log_max_file")
"""Settings that are checked together."""

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
"""Docker's units, which are powers of ten here."""


def bytes_from_size(size: str) -> int:
    """Parse a size in Docker's form, such as `16m`."""
    return int(size[:-1]) * _UNITS[size[-1]]


def check_combinations(config: Config) -> None:
    """Raise InvalidArgument, with the names of the settings, for values that contradict each other."""
    size, count = config.docker_log_max_size, config.docker_log_max_file
    kept = bytes_from_size(size) * count
    if kept < MIN_LOG_COPY:
        raise InvalidArgument(
            f"docker_log_max_size {size} times docker_log_max_file {count} is {kept / 1e6:g} MB: Docker would drop "
            f"output before it is copied, so give {MIN_LOG_COPY // 10**6} MB at least in all, such as 16m and 2"
        )
