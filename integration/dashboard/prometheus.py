"""A Prometheus that scrapes the server as packaging/monitoring/prometheus.yml says."""

import json
import math
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.dashboard.recording import DASHBOARD, Series
from integration.node.daemon import Daemon
from integration.node.registry import free_port

SCRAPE_SECONDS = 15
"""The scrape interval of prometheus.yml."""
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_ANSWER_SECONDS = 30.0
_DIGITS = 4
"""Significant digits kept of a value: no picture shows more."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)["data"]

    def version(self) -> str:
        """Return its version, without Debian's suffix."""
        return str(self.ask("status/buildinfo")["version"]).partition("+")[0]

    def has(self, query: str) -> bool:
        """Whether a query has a series now."""
        return bool(self.ask("query", query=query)["result"])

    def series(self, query: str, *, start: float, step: int, points: int) -> list[Series]:
        """Return the series of a query with a value for each point, sorted by labels."""
        end = start + step * (points - 1)
        found = self.ask("query_range", query=query, start=start, end=end, step=step)["result"]
        made = [
            Series(
                {name: value for name, value in each["metric"].items() if name != "__name__"},
                _aligned(each["values"], start=start, step=step, points=points),
            )
            for each in found
        ]
        return sorted(made, key=lambda series: sorted(series.labels.items()))


@contextmanager
def running(program: Path, home: Path) -> Iterator[Prometheus]:
    """Run a Prometheus below `home` while the block runs."""
    shutil.copytree(DASHBOARD.parent, home / "configuration")
    address = f"127.0.0.1:{free_port()}"
    daemon = Daemon(
        [
            program,
            f"--config.file={home}/configuration/prometheus.yml",
            f"--storage.tsdb.path={home}/data",
            f"--web.listen-address={address}",
        ],
        log=home / "prometheus.log",
        env=dict(os.environ),
    )
    daemon.start(ready=lambda: _is_ready(address), timeout=_START_SECONDS)
    try:
        yield Prometheus(address)
    finally:
        daemon.stop(timeout=_STOP_SECONDS)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def _aligned(found: list[tuple[float, str]], *, start: float, step: int, points: int) -> list[float | None]:
    values: list[float | None] = [None] * points
    for when, text in found:
        values[round((when - start) / step)] = _rounded(float(text))
    return values


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):  # NaN: the quantile of an empty histogram
        return None
    kept = float(f"{value:.{_DIGITS}g}")
    return int(kept) if kept == int(kept) else kept
