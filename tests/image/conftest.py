"""A view that has seen all there is before the first question."""

import pytest

from shim.runtime import Runtime


@pytest.fixture
def rt(rt: Runtime) -> Runtime:
    """The collaborators, once the first sync with the Engine is over."""
    rt.view.images.all()
    return rt
