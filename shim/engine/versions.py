"""Checks the API version of an Engine, and has the error text for an Engine that is too old."""

from shim.domain.errors import Unsupported
from shim.engine.connection import ApiVersion, text_from_version

FIRST_ENGINE = {
    (1, 41): "20.10",
    (1, 42): "23.0",
    (1, 43): "24.0",
    (1, 44): "25.0",
    (1, 45): "26.0",
    (1, 46): "27.0",
    (1, 47): "27.2",
    (1, 48): "28.0",
    (1, 49): "28.1",
    (1, 50): "28.2",
    (1, 51): "28.3",
    (1, 52): "29.0",
}
"""The first Engine release of each API version (the version history of the Engine API)."""


def require_api(have: ApiVersion, *, needs: ApiVersion, what: str) -> None:
    """Raise Unsupported unless the Engine supports `needs`; `what` is the field, and perhaps its value."""
    if have < needs:
        raise Unsupported(f"{what}: {too_old(have, needs=needs)}")


def too_old(have: ApiVersion, *, needs: ApiVersion) -> str:
    """Return a text such as `needs Docker Engine 25.0 (API 1.44); this one speaks 1.41`."""
    least, speaks = text_from_version(needs), text_from_version(have)
    return f"needs Docker Engine {FIRST_ENGINE[needs]} (API {least}); this one speaks {speaks}"
