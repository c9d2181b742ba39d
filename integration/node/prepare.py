"""Everything a box needs, fetched before it is closed: inside there is no network."""

import os

from integration.node.box import Node, cgroup_parent_here
from integration.node.commands import NodeError
from integration.node.packages import (
    BUSYBOX,
    HOST_PACKAGES,
    KUBECTL,
    NEWER,
    NEWER_KUBECTL,
    STABLE,
    TOOLS,
    Bundle,
    Unpacked,
    ensure_installed,
    ensure_unpacked,
)


def prepare() -> Node:
    """Install and unpack what is missing.

    The newer engine and kubectl are optional on a developer's machine, whose mirror may not carry them. With CI set
    in the environment their absence is an error: tests against them must not vanish unnoticed.
    """
    ensure_installed(HOST_PACKAGES)
    stable, tools, busybox, kubectl = (ensure_unpacked(bundle) for bundle in (STABLE, TOOLS, BUSYBOX, KUBECTL))
    newer, missing = _optional(NEWER, "the newer engine's tests")
    newer_kubectl, kubectl_missing = _optional(NEWER_KUBECTL, "the tests with the newer kubectl")
    return Node(
        stable=stable,
        newer=newer,
        newer_missing=missing,
        tools=tools,
        busybox=busybox.root / "bin/busybox",
        kubectl=kubectl.root / "usr/bin/kubectl",
        newer_kubectl=newer_kubectl.root / "usr/bin/kubectl" if newer_kubectl else None,
        newer_kubectl_missing=kubectl_missing,
        cgroup_parent=cgroup_parent_here(),
    )


def _optional(bundle: Bundle, what: str) -> tuple[Unpacked | None, str]:
    try:
        return ensure_unpacked(bundle), ""
    except NodeError as cause:
        if os.environ.get("CI"):
            raise
        print(f"  - {what} will be skipped: {cause}", flush=True)
        return None, str(cause)
