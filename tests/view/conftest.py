"""An empty Engine, and a view that a test syncs by hand."""

import pytest

from shim.view.node_view import NodeView
from tests.view.late import LateEngine


@pytest.fixture
def engine() -> LateEngine:
    """An Engine without containers and images, whose answers a test may delay."""
    return LateEngine()


@pytest.fixture
def view(engine: LateEngine) -> NodeView:
    """A synced view whose reads do not wait for a sync."""
    view = NodeView(engine, sync_timeout=0)
    view.complete_sync(view.begin_sync())
    view.images.refresh()
    engine.calls.clear()
    return view
