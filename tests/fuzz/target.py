"""The definition of a fuzzer: the code under test, its declared errors, and the bounds of an input."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from hypothesis import strategies as st

Run = Callable[[bytes], object]
"""Runs an input. Any exception except the declared errors, also AssertionError, is a finding."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Code that reads bytes of other programs."""

    name: str
    corpus: Sequence[bytes]
    """Valid inputs to start from."""
    declared: tuple[type[BaseException], ...]
    """The exceptions that are no findings."""
    open: Callable[[], AbstractContextManager[Run]]
    """Opens the function that runs inputs."""
    words: Sequence[bytes] = ()
    """Words of the format that mutations insert."""
    strategy: st.SearchStrategy[bytes] | None = None
    """Hypothesis strategy of inputs with a valid shape."""
    memory: int = 16 << 20
    """Bound on the memory of an input, in bytes."""
    seconds: float = 5.0
    """Bound on the seconds of an input; generous, for busy machines."""
    longest: int = 1 << 16
    """Bytes of the largest input."""
    enormous: Sequence[Callable[[], bytes]] = field(default=())
    """Inputs larger than `longest`, each run once."""


def pure(run: Run) -> Callable[[], AbstractContextManager[Run]]:
    """Return the `open` of a target without set-up."""
    return lambda: nullcontext(run)


def json_values(*, leaves: int = 20) -> st.SearchStrategy[object]:
    """Return a strategy of any JSON, including numbers beyond every field's range."""
    numbers = st.integers() | st.sampled_from([2**63, 2**64, -(2**63) - 1, 1e308, 0.1, -0.0])
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=leaves,
    )


def objects(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[object]:
    """Return a strategy of objects with some of these fields, of the right or another type."""
    if not fields:
        return json_values(leaves=4)
    return st.fixed_dictionaries(
        {}, optional={name: value | json_values(leaves=4) for name, value in fields.items()}
    ) | st.dictionaries(st.sampled_from(sorted(fields)), json_values(leaves=6), max_size=5)


def shape(example: object) -> st.SearchStrategy[object]:
    """Return a strategy of JSON like an example: some of its fields, of the same or another type."""
    if isinstance(example, dict):
        return objects({name: shape(value) for name, value in example.items()})
    if isinstance(example, list):
        return st.lists(shape(example[0]), max_size=3) if example else json_values(leaves=3)
    return st.just(example) | json_values(leaves=2)


def encoded(values: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """Encode a strategy of values as JSON."""
    return values.map(lambda value: json.dumps(value).encode())


NESTED: tuple[Callable[[], bytes], ...] = (
    lambda: b"[" * 200_000,
    lambda: b'{"a":' * 200_000,
    lambda: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)
"""Too deeply nested JSON."""
