"""Everything a box needs, fetched before it is closed: inside there is no network."""

import os

from integration.node.box import Node, cgroup_parent_here
from integration.node.commands import NodeError
from integration.node.packages import (
    BUSYBOX,
    HOST_PACKAGES,
    NEWER,
    STABLE,
    TOOLS,
    Unpacked,
    ensure_installed,
    ensure_unpacked,
)


def prepare() -> Node:
    """Install and unpack what is missing.

    The newer engine is optional on a developer's machine, whose mirror may not carry it. With CI set in the
    environment its absence is an error: tests against it must not vanish unnoticed.
    """
    ensure_installed(HOST_PACKAGES)
    stable, tools, busybox = (ensure_unpacked(bundle) for bundle in (STABLE, TOOLS, BUSYBOX))
    newer, missing = _newer()
    return Node(
        stable=stable,
        newer=newer,
        newer_missing=missing,
        tools=tools,
        busybox=busybox.root / "bin/busybox",
        cgroup_parent=cgroup_parent_here(),
    )


def _newer() -> tuple[Unpacked | None, str]:
    try:
        return ensure_unpacked(NEWER), ""
    except NodeError as cause:
        if os.environ.get("CI"):
            raise
        print(f"  - the newer engine's tests will be skipped: {cause}", flush=True)
        return None, str(cause)
