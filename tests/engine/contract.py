"""What every Engine must do is tried with this: the fake in memory, and the real ones.

The tests are in `contract_containers.py` and `contract_streams.py`; who imports them and has a `subject` fixture runs
them.
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
"""Bound on what must happen at once; a real Engine on a loaded machine takes its time."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An Engine under test. Containers made through it are removed by its maker."""

    engine: Engine
    image: str
    """A busybox, labelled IMAGE_LABEL=image and LABEL=image."""
    make_image: Callable[[str], str]
    """Have a fresh image of this name, and give its id."""
    publish_image: Callable[[str], str]
    """Offer a fresh image for pulling below this repository name, and give its reference."""
    expect_exec: Callable[[list[str], bytes, bytes, int], None]
    """Say what a command will do: stdout, stderr, exit code; only the fake needs it."""
    expect_endless_exec: Callable[[list[str], bytes], None]
    """The same of one that runs on after its first output."""
    expect_cat: Callable[[list[str]], None]
    """The same of one that writes what it reads, and ends with its input."""
    expect_stty: Callable[[list[str]], None]
    """The same of one that writes the size of its terminal, as `stty size` does, when a line is typed."""
    wait_executed: Callable[[str], None]
    """Wait until a started container executes its program; until then it is runc, and SIGTERM ends it with code 2."""
    names: Iterator[str]
    """Container names that are free."""

    def body(self, **changes: object) -> JsonObject:
        """A container that runs until it is stopped, without network."""
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
    """A scope that knows when a caller waits in it."""

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
