"""Fetches everything an isolated run needs before it begins: inside there is no network."""

import os
import sys

from integration.node.commands import NodeError
from integration.node.control_groups import CgroupDriver, parent_here
from integration.node.engine import program
from integration.node.isolation import Node
from integration.node.own_libraries import ensure_runs
from integration.node.packages import (
    BUSYBOX,
    CRIU,
    HOST_PACKAGES,
    KUBECTL,
    LOG_AGENT,
    MONITORING,
    NEWER,
    NEWER_KUBECTL,
    NEWER_PLUGINS,
    NEWER_RUNC,
    OLDER_PLUGINS,
    ON_DEMAND,
    PODMAN,
    SHELLS,
    STABLE,
    TOOLS,
    Bundle,
    Unpacked,
    ensure_installed,
    ensure_unpacked,
    unpacked,
)
from integration.pins import LAST_PYTHON, fetch_lowest
from release.bundle import fetch_bundle, this_machine
from release.errors import BuildError


def prepare(*, driver: CgroupDriver = "cgroupfs") -> Node:
    """Install and unpack everything that is missing; `driver` is the cgroup driver of the run's containers.

    The newer engine and kubectl are optional on a developer's machine, whose mirror may lack them. With CI set in the
    environment a missing program is an error, so that no tests vanish unnoticed.
    """
    ensure_installed(HOST_PACKAGES)
    _fetch_wheels()
    stable, tools, busybox, kubectl = (ensure_unpacked(bundle) for bundle in (STABLE, TOOLS, BUSYBOX, KUBECTL))
    monitoring, shells, podman = (ensure_unpacked(bundle) for bundle in (MONITORING, SHELLS, PODMAN))
    log_agent = ensure_unpacked(LOG_AGENT)
    newer, missing = _optional(NEWER, "the newer engine's tests")
    newer_runc, _ = _optional(NEWER_RUNC, "the tests with the newer runc")
    if newer_runc is not None:
        ensure_runs(program("runc", newer_runc.path), newer_runc)
    newer_kubectl, kubectl_missing = _optional(NEWER_KUBECTL, "the tests with the newer kubectl")
    newer_plugins, plugins_missing = _optional(NEWER_PLUGINS, "the tests with the newer CNI plugins")
    older_plugins, older_missing = _optional(OLDER_PLUGINS, "the tests with the older CNI plugins")
    criu, criu_missing = _optional(CRIU, "the tests of checkpoints")
    return Node(
        stable=stable,
        newer=newer,
        newer_missing=missing,
        newer_runc=newer_runc,
        on_demand={name: there for name, bundle in ON_DEMAND.items() if (there := unpacked(bundle)) is not None},
        tools=tools,
        busybox=busybox.root / "bin/busybox",
        monitoring=monitoring,
        log_agent=log_agent,
        shells=shells,
        podman=podman,
        kubectl=kubectl.root / "usr/bin/kubectl",
        newer_kubectl=newer_kubectl.root / "usr/bin/kubectl" if newer_kubectl else None,
        newer_kubectl_missing=kubectl_missing,
        newer_plugins=newer_plugins,
        newer_plugins_missing=plugins_missing,
        older_plugins=older_plugins,
        older_plugins_missing=older_missing,
        criu=criu,
        criu_missing=criu_missing,
        cgroup_driver=driver,
        cgroup_parent=parent_here(driver),
    )


def _fetch_wheels() -> None:
    """Fetch the libraries that packages bundle, and the oldest allowed versions."""
    try:
        fetch_bundle([this_machine()])
        if sys.version_info[:2] <= LAST_PYTHON:
            fetch_lowest()
    except (BuildError, NodeError) as cause:
        if os.environ.get("CI"):
            raise NodeError(str(cause)) from cause
        print(f"  - the tests of packages will fail: {cause}", flush=True)


def _optional(bundle: Bundle, what: str) -> tuple[Unpacked | None, str]:
    try:
        return ensure_unpacked(bundle), ""
    except NodeError as cause:
        if os.environ.get("CI"):
            raise
        print(f"  - {what} will be skipped: {cause}", flush=True)
        return None, str(cause)
