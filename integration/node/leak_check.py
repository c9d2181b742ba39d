"""Objects that pods may leave behind on a node, for comparisons."""

import socket
from dataclasses import dataclass, fields
from pathlib import Path

import docker

from integration.node.mounts import mount_paths


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All objects of a node that must be the same once all pods are removed."""

    containers: frozenset[str]
    namespaces: frozenset[str]
    leases: frozenset[str]
    links: frozenset[str]
    mounts: frozenset[str]
    state: frozenset[str]

    def added(self, later: "NodeSnapshot") -> list[str]:
        """Return the objects that only `later` has, each with its kind."""
        return [
            f"{field.name}: {name}"
            for field in fields(self)
            for name in sorted(getattr(later, field.name) - getattr(self, field.name))
        ]


def snapshot(api: docker.APIClient, *, netns_dir: Path, lease_dir: Path, state_dir: Path) -> NodeSnapshot:
    """Return the current objects of a node.

    `lease_dir` is host-local's directory; its files lock and last_reserved_ip are no reservations.
    """
    leases = (path.name for path in lease_dir.glob("*/*") if path.name[:1].isdigit() or ":" in path.name)
    return NodeSnapshot(
        containers=frozenset(row["Id"] for row in api.containers(all=True, quiet=True)),
        namespaces=frozenset(path.name for path in netns_dir.glob("*")),
        leases=frozenset(leases),
        # Bridges of Docker's own networks come and go with engines, and with swarms.
        links=frozenset(name for _, name in socket.if_nameindex() if not name.startswith("docker")),
        mounts=mount_paths(),
        state=frozenset(str(path.relative_to(state_dir)) for path in state_dir.rglob("*") if path.is_file()),
    )
