import sys

import pytest

from shim.daemon.process_limits import check_64_bit
from shim.domain.errors import FailedPrecondition


def test_a_32_bit_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_64_bit()
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    with pytest.raises(FailedPrecondition, match="32-bit"):
        check_64_bit()
