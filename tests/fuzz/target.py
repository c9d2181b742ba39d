"""What a fuzzer is: where bytes go in, which errors may come out, and what one input may cost."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from hypothesis import strategies as st

Run = Callable[[bytes], object]
"""Takes one input. What it raises beyond the declared errors, AssertionError included, is a finding."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One place where bytes of others come in."""

    name: str
    corpus: Sequence[bytes]
    """Good inputs, to begin with."""
    declared: tuple[type[BaseException], ...]
    """What may come out."""
    open: Callable[[], AbstractContextManager[Run]]
    """Makes what takes the inputs."""
    words: Sequence[bytes] = ()
    """What is put into inputs: words of the format."""
    strategy: st.SearchStrategy[bytes] | None = None
    """Inputs of the right shape, for Hypothesis."""
    memory: int = 16 << 20
    """Most bytes that one input may take."""
    seconds: float = 5.0
    """Longest time for one input; far more than any needs, for machines that are busy."""
    longest: int = 1 << 16
    """Bytes of the largest input."""
    enormous: Sequence[Callable[[], bytes]] = field(default=())
    """Inputs beyond `longest`, each tried once."""


def pure(run: Run) -> Callable[[], AbstractContextManager[Run]]:
    """Return the `open` of a target that needs nothing made for it."""
    return lambda: nullcontext(run)


def json_values(*, leaves: int = 20) -> st.SearchStrategy[object]:
    """Any JSON, with numbers that no field can hold."""
    numbers = st.integers() | st.sampled_from([2**63, 2**64, -(2**63) - 1, 1e308, 0.1, -0.0])
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=leaves,
    )


def objects(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[object]:
    """Objects with some of these fields, each of its own kind or any other."""
    if not fields:
        return json_values(leaves=4)
    return st.fixed_dictionaries(
        {}, optional={name: value | json_values(leaves=4) for name, value in fields.items()}
    ) | st.dictionaries(st.sampled_from(sorted(fields)), json_values(leaves=6), max_size=5)


def shape(example: object) -> st.SearchStrategy[object]:
    """JSON like an example: some of its fields, of the same kinds or of others."""
    if isinstance(example, dict):
        return objects({name: shape(value) for name, value in example.items()})
    if isinstance(example, list):
        return st.lists(shape(example[0]), max_size=3) if example else json_values(leaves=3)
    return st.just(example) | json_values(leaves=2)


def encoded(values: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """JSON as bytes."""
    return values.map(lambda value: json.dumps(value).encode())


NESTED: tuple[Callable[[], bytes], ...] = (
    lambda: b"[" * 200_000,
    lambda: b'{"a":' * 200_000,
    lambda: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)
"""JSON that is nested too deeply."""
