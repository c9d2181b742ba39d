"""A view that is complete before the first call."""

import pytest

from shim.runtime import Runtime


@pytest.fixture
def rt(rt: Runtime) -> Runtime:
    """The collaborators, after the first sync with the Engine."""
    rt.view.images.all()
    return rt
