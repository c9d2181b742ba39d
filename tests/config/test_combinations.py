from pathlib import Path

import pytest

from shim.config.combinations import MIN_LOG_COPY, bytes_from_size, check_combinations
from shim.config.load import load
from shim.config.model import Config
from shim.domain.errors import InvalidArgument


def test_sizes_are_parsed_like_docker() -> None:
    assert [bytes_from_size(size) for size in ("512k", "16m", "1g")] == [512_000, 16_000_000, 10**9]


FLAGS = "flag --docker-log-max-size and flag --docker-log-max-file"


@pytest.mark.parametrize(("size", "count"), [("16m", 2), ("320k", 100), ("1g", 2), ("11m", 3)])
def test_large_enough_log_copy_is_accepted(size: str, count: int) -> None:
    assert bytes_from_size(size) * count >= MIN_LOG_COPY
    check_combinations(Config(docker_log_max_size=size, docker_log_max_file=count))


@pytest.mark.parametrize(
    ("size", "count", "shown"), [("512k", 2, "1.024 MB"), ("1k", 100, "0.1 MB"), ("10m", 3, "30 MB")]
)
def test_small_log_copy_is_refused(size: str, count: int, shown: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(flags={"docker_log_max_size": size, "docker_log_max_file": str(count)}, environ={}, file=Path("/dev/null"))

    message = str(caught.value)
    assert message.startswith(f"{FLAGS}: docker_log_max_size {size} times docker_log_max_file {count} is {shown}: ")
    assert "32 MB at least" in message
