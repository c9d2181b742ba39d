"""The contract of every Engine: the fake in memory, and real Engines.

The tests are in the modules `contract_*.py`; a module with a `subject` fixture that imports them runs them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shim.base.deadline import Scope
from shim.engine.interface import Engine, JsonObject

UNKNOWN = "f" * 64
LABEL, IMAGE_LABEL = "org.example.from", "org.example.image"
SECONDS = 30
"""Bound on immediate actions; a real Engine on a busy machine may be slow."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An Engine under test. The fixture removes the containers of a test."""

    engine: Engine
    image: str
    """A busybox, labelled IMAGE_LABEL=image and LABEL=image."""
    make_image: Callable[[str], str]
    """Make a new image with this name and return its id."""
    publish_image: Callable[[str], str]
    """Publish a new image for pulls below this repository name and return its reference."""
    expect_exec: Callable[[list[str], bytes, bytes, int], None]
    """Script a command for the fake: its stdout, stderr and exit code."""
    expect_endless_exec: Callable[[list[str], bytes], None]
    """Script a command that goes on after its first output."""
    expect_cat: Callable[[list[str]], None]
    """Script a command that copies its input to its output."""
    expect_stty: Callable[[list[str]], None]
    """Script a command that writes the size of its terminal, as `stty size` does, after each input line."""
    wait_executed: Callable[[str], None]
    """Wait until a started container executes its program; until then it is runc, and SIGTERM ends it with code 2."""
    names: Iterator[str]
    """Free container names."""

    def body(self, **changes: object) -> JsonObject:
        """Return the body of a container that runs until it is stopped, without a network."""
        return {
            "Image": self.image,
            "Cmd": ["sleep", "600"],
            "Labels": {LABEL: "container"},
            "HostConfig": {"NetworkMode": "none", "CpuShares": 512},
            **changes,
        }

    def created(self, **changes: object) -> str:
        return self.engine.create_container(name=next(self.names), body=self.body(**changes))

    def running(self, **changes: object) -> str:
        container_id = self.created(**changes)
        self.engine.start_container(container_id)
        return container_id


class WatchedScope(Scope):
    """A scope that records when a caller waits in it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = threading.Event()

    @contextmanager
    def on_cancel(self, wake: Callable[[], None]) -> Iterator[None]:
        with super().on_cancel(wake):
            self.waited_for.set()
            yield

    def cancel_once_waited_for(self) -> None:
        assert self.waited_for.wait(SECONDS)
        self.cancel()
