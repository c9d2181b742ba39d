"""A machine on which no thread can be started."""

import threading

import pytest


def no_thread_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the start of threads with this name fail, as at the limit on threads."""
    start = threading.Thread.start

    def start_others(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_others)
