"""A machine on which a thread cannot be started."""

import threading

import pytest


def no_thread_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the start of the threads of this name fail, as where the limit on threads is reached."""
    start = threading.Thread.start

    def start_others(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_others)
