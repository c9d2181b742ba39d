import pytest

from shim.domain.errors import Unsupported
from shim.engine.versions import require_api


def test_an_engine_that_is_new_enough_passes() -> None:
    require_api((1, 44), needs=(1, 44), what="f")
    require_api((1, 51), needs=(1, 44), what="f")


def test_the_error_of_an_old_engine_names_the_needed_version() -> None:
    with pytest.raises(Unsupported) as refusal:
        require_api((1, 41), needs=(1, 44), what="config.CDI_devices")
    assert str(refusal.value) == "config.CDI_devices: needs Docker Engine 25.0 (API 1.44); this one speaks 1.41"
