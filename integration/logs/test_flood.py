"""A container that writes as fast as Docker accepts output, on a server with default settings."""

from integration.logs.conftest import Logged
from shim.config.combinations import MIN_LOG_COPY, bytes_from_size
from shim.config.model import Config

FLOOD = 500_000
"""Lines of 100 bytes: 90 MB in Docker's files."""


def test_no_line_of_a_flood_is_lost_with_the_minimum_log_size(logged: Logged) -> None:
    config = Config()  # the shared server's settings
    assert bytes_from_size(config.docker_log_max_size) * config.docker_log_max_file == MIN_LOG_COPY
    container_id, path = logged.run(f"yes {'x' * 99} | head -n {FLOOD}")
    logged.wait_exited(container_id, seconds=90)

    docker_log = logged.docker_log(container_id)
    kept = sum(file.stat().st_size for file in docker_log.parent.glob(f"{docker_log.name}*"))
    with path.open("rb") as log:
        assert sum(1 for _ in log) == FLOOD
    assert kept < FLOOD * 100  # Docker has dropped some lines by now
