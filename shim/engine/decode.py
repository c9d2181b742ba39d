"""Converts the Engine's JSON into the shapes of `shim.engine.answers`."""

from typing import Any, Generic, TypeVar

import msgspec
import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


def read(answer: Any, shape: type[T]) -> T:
    """Convert a decoded answer; an unexpected `null` counts as missing. Raise msgspec.ValidationError."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError:
        return msgspec.convert(_without_nulls(answer), shape)


def decoded(content: bytes, shape: type[T]) -> T:
    """Decode an answer and convert it as `read` does."""
    try:
        return msgspec.json.decode(content, type=shape)
    except msgspec.ValidationError:
        return read(msgspec.json.decode(content), shape)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class ListReader(Generic[T]):
    """Converts lists and leaves out unreadable entries. Thread-safe."""

    def __init__(self, shape: type[T], *, what: str) -> None:
        """Create a reader of lists of `shape`; `what` names the kind of an entry in the log."""
        self._shape = shape
        self._what = what
        self._logged: set[str] = set()

    def read(self, answer: Any) -> list[T]:
        """Convert the entries; leave out unreadable entries, and log each once until it changes.

        Raise msgspec.ValidationError if `answer` is not a list.
        """
        try:
            found = read(answer, list[self._shape])  # type: ignore[name-defined] # a shape is only known at run time
        except msgspec.ValidationError:
            return self._readable(msgspec.convert(answer, list[Any]))
        self._logged = set()
        return found

    def _readable(self, entries: list[Any]) -> list[T]:
        found, problems = [], set()
        for entry in entries:
            try:
                found.append(read(entry, self._shape))
            except msgspec.ValidationError as error:
                problems.add(f"{_name(entry)}: {error}")
        for problem in sorted(problems - self._logged):
            log.warning("skipped unreadable entry of a list from Docker", kind=self._what, error=problem)
        self._logged = problems
        return found


def _name(entry: Any) -> str:
    name = entry.get("Id") if isinstance(entry, dict) else None
    return str(name or "without an id")
