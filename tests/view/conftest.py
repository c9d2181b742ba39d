"""An empty Engine, and a view of it that a test feeds by hand."""

import pytest

from shim.view.node import NodeView
from tests.view.late import LateEngine


@pytest.fixture
def engine() -> LateEngine:
    """An Engine without containers and images; its answers travel as slowly as a test says."""
    return LateEngine()


@pytest.fixture
def view(engine: LateEngine) -> NodeView:
    """A view that has been told of everything there was, and that waits for nobody's look."""
    view = NodeView(engine, sync_timeout=0)
    view.complete_sync(view.begin_sync())
    view.images.refresh()
    engine.calls.clear()
    return view
