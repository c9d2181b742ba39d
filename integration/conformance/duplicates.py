"""Detects two live containers of one pod with the same name, and requests for such containers.

Docker's events show duplicates, of the same or of another attempt. The kubelet's log shows requests that the server
refused.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import docker

from integration.node.engine import Engine
from shim.base.times import SECOND

_PREFIX = "k8s"
_PARTS = 6
"""Parts of a container's name: k8s, container, pod, namespace, uid, attempt.

More parts are a suffix against conflicts.
"""
_WITHOUT_ATTEMPT = 5
_REFUSED = re.compile(r'CreateContainer in sandbox.*? code = AlreadyExists desc = (.*?)"')
"""A kubelet's log line about a container that it requested although the container was running."""


class Watch:
    """Follows an engine's events while the block runs; `duplicates` holds the findings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live: dict[str, str] = {}
        self._last = time.time_ns()
        """Time of the last event, ns since the epoch."""
        self._over = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._follow, name="duplicates", daemon=True)
        self.duplicates: list[str] = []
        self.starts = 0

    def __enter__(self) -> "Watch":
        """Start to follow the events."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._over.set()
        if self._stream is not None:
            self._stream.close()
        self._thread.join()

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Process container events in order."""
        for event in events:
            attributes = event["Actor"]["Attributes"]
            name = identity(str(attributes.get("name", "")))
            if not name:
                continue
            if event["Action"] == "start":
                other = self._live.get(name)
                self.starts += 1
                if other is not None and other != event["Actor"]["ID"] and self._runs(other):
                    self.duplicates.append(f"{name}: {event['Actor']['ID'][:12]} was started while {other[:12]} ran")
                self._live[name] = event["Actor"]["ID"]
            elif event["Action"] in ("die", "destroy") and self._live.get(name) == event["Actor"]["ID"]:
                del self._live[name]

    def _runs(self, container: str) -> bool:
        """Return whether a container runs: Docker answers a stop before it emits the die event."""
        try:
            return bool(self._engine.api.inspect_container(container)["State"]["Running"])
        except docker.errors.NotFound:
            return False

    def _follow(self) -> None:
        """Follow the events across restarts of Docker: each stream begins with the second of the last event."""
        while not self._over.is_set():
            try:
                since = self._last // SECOND
                self._stream = self._engine.api.events(decode=True, filters={"type": "container"}, since=since)
                self.take(self._later(self._stream))
            except (OSError, ValueError):
                self._over.wait(0.2)

    def _later(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Skip events that were already processed."""
        for event in events:
            if event["timeNano"] > self._last:
                self._last = event["timeNano"]
                yield event


def identity(name: str) -> str:
    """Return a container's name without the attempt; empty if the container belongs to no pod."""
    parts = name.split("_")
    return "_".join(parts[:_WITHOUT_ATTEMPT]) if parts[0] == _PREFIX and len(parts) >= _PARTS else ""


def refused(log: str) -> list[str]:
    """Return the AlreadyExists errors of CreateContainer from a kubelet's log."""
    return _REFUSED.findall(log)
