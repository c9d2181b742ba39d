"""Containers whose cgroups are trees of plain files, and an Engine that writes to them like runc."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from shim.cgroup.locator import Place
from shim.cgroup.places import Group
from shim.cgroup.v2 import GroupV2
from shim.domain.errors import NotFound, ShimError, Unavailable
from shim.domain.ids import ContainerId
from shim.engine.interface import JsonObject
from shim.runtime import Runtime
from tests.cgroup.trees import new_group_v1, new_group_v2
from tests.fakes.engine import FakeEngine

_PAGE = 4096
"""Bytes."""


class RuncEngine(FakeEngine):
    """Writes the limits of an update to the container's cgroup, memory last."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Group] = {}
        self.runtime_fails = ""
        """Error of the runtime after it has written all limits but memory; Docker then discards the update."""
        self.loses_answers = False
        """Whether the next update is applied but its answer is lost."""
        self.then = ""
        """Error of the update after the next."""

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        former = dict(self.containers[container_id].host)
        super().update_container(container_id, body=body)
        group = self.groups.get(container_id)
        if group is not None:
            self._write_cpu(group, body)
            if self.runtime_fails:
                self.containers[container_id].body["HostConfig"] = former
                raise ShimError(self.runtime_fails)
            self._write_memory(group, body)
        if self.loses_answers:
            self.loses_answers = False
            if self.then:
                self.fail_next("update_container", ShimError(self.then))
            raise Unavailable("the connection to docker was lost")

    def _write_cpu(self, group: Group, body: JsonObject) -> None:
        if isinstance(group, GroupV2):
            if "CpuQuota" in body:
                quota = "max" if body["CpuQuota"] < 0 else body["CpuQuota"]
                Path(group.directory, "cpu.max").write_text(f"{quota} {body.get('CpuPeriod', 100_000)}\n")
            return
        files = {path.rpartition("/")[2]: Path(path) for path in group.limit_files()}
        for name, file in {"CpuQuota": "cpu.cfs_quota_us", "CpuShares": "cpu.shares"}.items():
            if name in body:
                files[file].write_text(f"{body[name]}\n")

    def _write_memory(self, group: Group, body: JsonObject) -> None:
        if "Memory" not in body:
            return
        path, text = group.memory_file(body["Memory"])
        Path(path).write_text(f"{text}\n")
        if body["MemorySwap"] > 0:
            path, text = group.swap_file(body["MemorySwap"], memory=body["Memory"])
            Path(path).write_text(f"{int(text) // _PAGE * _PAGE}\n")


@dataclass
class Groups:
    """The cgroups of this test's containers, by id."""

    rt: Runtime
    engine: RuncEngine
    root: Path
    version: str
    made: dict[str, Group] = field(default_factory=dict)

    def of(self, container_id: ContainerId, **changed: str) -> Group:
        """Create the cgroup of a running container."""
        compose = new_group_v2 if self.version == "2" else new_group_v1
        group: Group = compose(self.root, container_id, **changed)
        self.made[container_id] = self.engine.groups[container_id] = group
        record = self.rt.view.container(container_id)
        self.rt.cgroups.remember(container_id, Place(record.state.pid, group, group))
        return group

    def find(self, container_id: str, *, pid: int) -> Group:
        """Stand for `CgroupLocator.find`."""
        if container_id not in self.made:
            raise NotFound(f"process {pid} is in no control group of container {container_id}")
        return self.made[container_id]

    def file(self, container_id: str, name: str) -> str:
        """Return the content of a cgroup file."""
        (path,) = self.root.glob(f"**/{container_id}/{name}")
        return path.read_text().strip()


def composed_groups(
    rt: Runtime, engine: FakeEngine, root: Path, monkeypatch: pytest.MonkeyPatch, *, version: str
) -> Groups:
    """Give containers cgroups of this version below `root`."""
    assert isinstance(engine, RuncEngine)
    engine.engine_info = replace(engine.engine_info, cgroup_version=version)
    rt.facts.info(max_age=0)
    groups = Groups(rt, engine, root, version)
    monkeypatch.setattr(rt.cgroups, "find", groups.find)
    return groups
