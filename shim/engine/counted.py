"""Reports the calls to an Engine to `shim.base.meter`, by operation and result."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from shim.base.meter import Kind, timed
from shim.engine.interface import Engine

_QUIET = frozenset({"close", "daemon_pid"})
"""Operations that send no request to the Engine."""


class _Counted:
    """Delegates every call by name, which avoids another list of all operations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not callable(found) or name in _QUIET:
            return found
        wrapped = _reporting(name, found)
        # Cache the wrapper: __getattr__ is called only for missing attributes.
        setattr(self, name, wrapped)
        return wrapped


def counted(engine: Engine) -> Engine:
    """Return `engine` with its calls reported."""
    return cast("Engine", _Counted(engine))


def _reporting(operation: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def reporting(*args: Any, **options: Any) -> Any:
        with timed(Kind.DOCKER, operation) as timing:
            answer = call(*args, **options)
            if isinstance(answer, AbstractContextManager):
                timing.drop()
                return _measure_opening(operation, answer)
            return answer

    return reporting


@contextmanager
def _measure_opening(operation: str, stream: AbstractContextManager[Any]) -> Iterator[Any]:
    """Report how long opening a stream takes, not how long the stream stays open."""
    with timed(Kind.DOCKER, operation):
        value = stream.__enter__()
    try:
        yield value
    except BaseException as error:
        if not stream.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        stream.__exit__(None, None, None)
