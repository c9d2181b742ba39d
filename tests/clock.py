"""A clock that tests set."""


class Clock:
    """A clock that stands still; tests change `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
