"""Maps a container to its control group. No other module does."""

from collections.abc import Mapping
from dataclasses import dataclass

from shim.cgroup.places import UNIFIED, Group, Mounts, group_at, own_groups, parents, slice_path
from shim.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class Place:
    """The control groups of a running container, valid for one first process."""

    pid: int
    group: Group
    pod: Group
    """The parent group."""
    path: str = ""
    """Path of the container's group from the root of its tree, as in /proc/<pid>/cgroup; empty if unknown."""


class CgroupLocator:
    """Finds the groups of containers and pause containers in the trees of `mounts`. Thread-safe.

    Readers use `place`, which is cached while the container has the same first process. Writers use `find`, which asks
    the kernel each time: a removed group must not be mistaken for a container without limits.
    """

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._places: dict[str, Place] = {}
        """By container or sandbox id."""

    def find(self, container_id: str, *, pid: int) -> Group:
        """Return the group that was made for a container; `pid` is its first process.

        Raise NotFound when the process has exited or is in another group.
        """
        return group_at(own_groups(pid, name=container_id, mounts=self._mounts), self._mounts)

    def place(self, container_id: str, *, pid: int) -> Place | None:
        """Return the groups of a container and its pod; None if it is not running (`pid` is 0) or has no group."""
        known = self._places.get(container_id)
        if known is not None and known.pid == pid:
            return known
        if not pid:
            return None
        try:
            groups = own_groups(pid, name=container_id, mounts=self._mounts)
            path = groups["memory" if "memory" in self._mounts else UNIFIED]
            found = Place(pid, group_at(groups, self._mounts), group_at(parents(groups), self._mounts), path)
        except NotFound:
            return None
        self.remember(container_id, found)
        return found

    def directory(self, container_id: str, *, parent: str, systemd: bool) -> str:
        """Return the directory that the group of a container will have once Docker starts it; empty without a tree.

        `parent` is the container's `CgroupParent`: a path, or the name of a slice with the systemd driver.
        """
        mount = self._mounts.get("memory", self._mounts.get(UNIFIED))
        if mount is None:
            return ""
        path = (
            f"{slice_path(parent)}/docker-{container_id}.scope" if systemd else f"{parent.rstrip('/')}/{container_id}"
        )
        return mount.directory(path)

    def remember(self, container_id: str, place: Place) -> None:
        """Cache a place."""
        self._places[container_id] = place

    def keep_only(self, pids: Mapping[str, int]) -> None:
        """Drop the places of other first processes than `pids` has, by container id. This closes their files."""
        for container_id in set(self._places):  # a copy: readers may add places at the same time
            place = self._places.get(container_id)
            if place is not None and place.pid != pids.get(container_id):
                self._places.pop(container_id, None)
