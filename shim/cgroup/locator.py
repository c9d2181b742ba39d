"""Where the control groups of containers are: the one place that maps a container to its group."""

from collections.abc import Mapping
from dataclasses import dataclass

from shim.cgroup.places import UNIFIED, Group, Mounts, above, group_at, own_groups, slice_path
from shim.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class Place:
    """Where the control groups of a running container are; true for one process only."""

    pid: int
    group: Group
    pod: Group
    """The group around it."""
    path: str = ""
    """Of the container's group, from the root of its tree, as in /proc/<pid>/cgroup; empty if not known."""


class CgroupLocator:
    """Finds the groups of containers and pause containers below the trees in `mounts`. Thread-safe.

    Readers use `place`, which is cached for as long as the container has the same first process. Writers use `find`,
    which asks the kernel each time: a group that is gone must not be mistaken for a container without limits.
    """

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._places: dict[str, Place] = {}
        """By container or sandbox id; entries are replaced as a whole."""

    def find(self, container_id: str, *, pid: int) -> Group:
        """Return the group that was made for a container, `pid` its first process.

        Raise NotFound when the process has ended, or is in no such group.
        """
        return group_at(own_groups(pid, name=container_id, mounts=self._mounts), self._mounts)

    def place(self, container_id: str, *, pid: int) -> Place | None:
        """Return the groups of a container and of its pod; None when it does not run (`pid` is 0), or has none."""
        known = self._places.get(container_id)
        if known is not None and known.pid == pid:
            return known
        if not pid:
            return None
        try:
            groups = own_groups(pid, name=container_id, mounts=self._mounts)
            path = groups["memory" if "memory" in self._mounts else UNIFIED]
            found = Place(pid, group_at(groups, self._mounts), group_at(above(groups), self._mounts), path)
        except NotFound:
            return None
        self.remember(container_id, found)
        return found

    def directory(self, container_id: str, *, parent: str, systemd: bool) -> str:
        """Return where the group of a container will be that Docker is to start: its directory, without asking.

        `parent` is Docker's: a path, or with systemd the name of a slice. Empty if no tree is mounted.
        """
        mount = self._mounts.get("memory", self._mounts.get(UNIFIED))
        if mount is None:
            return ""
        path = (
            f"{slice_path(parent)}/docker-{container_id}.scope" if systemd else f"{parent.rstrip('/')}/{container_id}"
        )
        return mount.directory(path)

    def remember(self, container_id: str, place: Place) -> None:
        """Keep a place for the next readers."""
        self._places[container_id] = place

    def keep_only(self, pids: Mapping[str, int]) -> None:
        """Drop from the cache what is not of these first processes, by container id, and so close its files."""
        for container_id in set(self._places):  # a copy: readers may add to it at the same time
            place = self._places.get(container_id)
            if place is not None and place.pid != pids.get(container_id):
                self._places.pop(container_id, None)
