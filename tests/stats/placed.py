"""Running containers and pods with recorded control groups, because the fake Engine starts no processes."""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.locator import Place
from shim.cgroup.places import Group
from shim.dockerd.facts import EngineFacts
from shim.domain.ids import ContainerId, SandboxId
from shim.engine.interface import Engine
from shim.runtime import Runtime
from tests.cgroup.trees import group_v1, group_v2, pod_group
from tests.pods import ready_pod, running

VERSIONS = pytest.mark.parametrize("group", [group_v1(), group_v2()], ids=["v1", "v2"])


@dataclass(frozen=True)
class Pod:
    sandbox: SandboxId
    container: ContainerId


def place(rt: Runtime, key: str, group: Group, *, pod: Group | None = None) -> None:
    """Put a container or pause container into this group."""
    pids = {str(record.id): record.state.pid for record in rt.view.containers()}
    pids.update({str(record.id): record.state.pid for record in rt.view.sandboxes()})
    rt.cgroups.remember(key, Place(pids[key], group, pod or pod_group(group)))


def pod_with_container(rt: Runtime, group: Group, *, name: str = "web", cgroup_parent: str = "/kubepods/p") -> Pod:
    context = pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE))
    linux = pb.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent, security_context=context)
    sandbox = ready_pod(rt, name, linux=linux)
    container = running(rt, sandbox, labels={"tier": name})
    place(rt, sandbox, group)
    place(rt, container, group)
    return Pod(sandbox, container)


class NoEngine:
    """An Engine that fails every call."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"docker was asked: {name}")


def without_docker(rt: Runtime) -> Runtime:
    """Return the same node for code that must not query Docker. The view stays current by its own threads."""
    engine = cast("Engine", NoEngine())
    return replace(rt, engine=engine, facts=EngineFacts(engine, restrict_oom_score_adj="false"))
