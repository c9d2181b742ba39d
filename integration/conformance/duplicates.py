"""Two live containers of one pod with the same name, of one attempt or of two: never right, and never asked for either.

Docker's events show the former, the kubelet's log what it asked for and was refused.
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
"""Of a container's name: k8s, container, pod, namespace, uid, attempt; what follows is a suffix against conflicts."""
_WITHOUT_ATTEMPT = 5
_REFUSED = re.compile(r'CreateContainer in sandbox.*? code = AlreadyExists desc = (.*?)"')
"""A kubelet's line about a container that it has asked for although it runs."""


class Watch:
    """Follows an engine's events while its block runs; `duplicates` returns what was seen."""

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
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._over.set()
        if self._stream is not None:
            self._stream.close()
        self._thread.join()

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take container events in their order."""
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
        """Return whether a container runs: Docker answers a stop before it says that the container has died."""
        try:
            return bool(self._engine.api.inspect_container(container)["State"]["Running"])
        except docker.errors.NotFound:
            return False

    def _follow(self) -> None:
        """Follow the events, also over restarts of Docker: each stream begins with the second of the last event."""
        while not self._over.is_set():
            try:
                since = self._last // SECOND
                self._stream = self._engine.api.events(decode=True, filters={"type": "container"}, since=since)
                self.take(self._later(self._stream))
            except (OSError, ValueError):
                self._over.wait(0.2)

    def _later(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Leave out what was there before."""
        for event in events:
            if event["timeNano"] > self._last:
                self._last = event["timeNano"]
                yield event


def identity(name: str) -> str:
    """Return what a container's name says of it, whichever attempt it is; empty for another's name."""
    parts = name.split("_")
    return "_".join(parts[:_WITHOUT_ATTEMPT]) if parts[0] == _PREFIX and len(parts) >= _PARTS else ""


def refused(log: str) -> list[str]:
    """Return the errors of CreateContainer, from a kubelet's log, for containers that ran already."""
    return _REFUSED.findall(log)
