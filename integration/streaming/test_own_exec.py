"""The server's own exec gives the process that Docker's would give, and Docker does what it cannot."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, in_context, secured
from shim.api.v1 import api_pb2 as pb

FACTS = """
exec 2>&1
cat /proc/self/status | grep -vE '^(Pid|PPid|Tgid|Ngid|NS|Vm|Rss|FDSize|SigQ|Name|State|.*ctxt)'
cat /proc/self/limits /proc/self/cgroup /proc/self/oom_score_adj /proc/self/attr/current /proc/self/sessionid
for each in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$each; done
pwd; env | grep -v '^_='; id; readlink /proc/self/fd/0; ls -l /proc/self/fd | sed 's/.*-> //; s/[0-9]//g'
"""
"""A script that prints all that makes up a process, but for what differs from one process to the next."""


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    before = served.snapshot()
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
    assert served.snapshot() == before


def by_docker(served: Served, container_id: str, *cmd: str) -> str:
    """Run a command as `docker exec` does."""
    api = served.engine.api
    made = api.exec_create(container_id, list(cmd))
    output: bytes = api.exec_start(made, detach=False, stream=False, socket=False, demux=False)
    return output.decode()


def left_to_docker(served: Served) -> dict[str, Any]:
    """Return how many execs Docker had to do, by reason."""
    answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
    state = json.loads(answer.info["config"])["ownExec"]
    return dict(state["leftToDocker"])


CONTEXTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a user by number": {"run_as_user": pb.Int64Value(value=1234)},
    "a user and groups": {
        "run_as_user": pb.Int64Value(value=1234),
        "run_as_group": pb.Int64Value(value=77),
        "supplemental_groups": [5, 6],
    },
    "no capabilities": {"capabilities": pb.Capability(drop_capabilities=["ALL"])},
    "more capabilities": {"capabilities": pb.Capability(add_capabilities=["NET_ADMIN", "SYS_PTRACE"])},
    "no new privileges": {"no_new_privs": True},
    "the default filter": {"seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)},
    "the default filter for a user": {
        "seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault),
        "no_new_privs": True,
        "run_as_user": pb.Int64Value(value=1234),
    },
    "a read-only root": {"readonly_rootfs": True},
    "privileged": {"privileged": True},
    "processes of the pod": {"namespace_options": pb.NamespaceOption(pid=pb.POD)},
    "processes of the node": {"namespace_options": pb.NamespaceOption(pid=pb.NODE)},
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_process_is_like_dockers(served: Served, kubelet: Kubelet, context: str) -> None:
    fields = CONTEXTS[context]
    options = fields.get("namespace_options", pb.NamespaceOption(pid=pb.CONTAINER))
    if context == "privileged" and served.engine.name == "20.10":
        pytest.skip("privileged containers fail here on Docker 20.10")
    pod = kubelet.pod(**in_context(namespace_options=options, privileged=bool(fields.get("privileged"))))
    container = kubelet.started(pod, **secured(**({"namespace_options": options} | fields)))
    own = served.cri.exec(container, "sh", "-c", FACTS).stdout.decode()
    assert left_to_docker(served) == {}
    assert own.split("\n") == by_docker(served, container, "sh", "-c", FACTS).split("\n")
