"""Users, user namespaces, capabilities, seccomp and sysctls."""

import json
from typing import Any

from integration.conformance.scenario import Case, container, eventually, job_pod, pod, scenario


@scenario()
def process_runs_as_the_pod_asks(case: Case) -> None:
    """User, group and supplemental groups; settings of the container override the pod's."""
    own = {"securityContext": {"runAsUser": 1001, "runAsGroup": 1002}}
    spec = {"securityContext": {"runAsUser": 2001, "supplementalGroups": [3001]}}
    text = case.finish(job_pod("p", "sh", "-c", "id -u; id -g; id -G", container_fields=own, **spec))
    assert text.splitlines()[:2] == ["1001", "1002"]
    assert set(text.splitlines()[2].split()) == {"1002", "3001"}


@scenario()
def root_is_refused_where_it_must_not_be(case: Case) -> None:
    """An image that runs as root, with runAsNonRoot."""
    case.kubectl.apply(pod("p", securityContext={"runAsNonRoot": True}))
    eventually(
        lambda: case.status("p").get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError"
    )


@scenario()
def capabilities_are_added_and_dropped(case: Case) -> None:
    """According to the status of the process."""
    change = {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}
    text = case.finish(job_pod("p", "grep", "CapEff", "/proc/self/status", container_fields=change))
    assert int(text.split()[1], 16) == 1 << 10


@scenario()
def root_file_system_is_read_only(case: Case) -> None:
    """Volumes are not."""
    fields = {
        "securityContext": {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    command = "touch /file 2>&1; touch /v/file && echo written"
    volume = {"name": "v", "emptyDir": {}}
    text = case.finish(job_pod("p", "sh", "-c", command, container_fields=fields, volumes=[volume]))
    assert "Read-only file system" in text
    assert text.endswith("written\n")


@scenario()
def seccomp_profile_is_applied(case: Case) -> None:
    """Unconfined, the runtime's default, and a profile of the node that forbids a syscall."""
    profiles = case.cluster.disk / "seccomp"
    profiles.mkdir(exist_ok=True)
    forbid = {"names": ["chmod", "fchmod", "fchmodat"], "action": "SCMP_ACT_ERRNO"}
    (profiles / "no-chmod.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [forbid]}))
    command = "grep Seccomp: /proc/self/status; touch /tmp/f; chmod 700 /tmp/f 2>&1 || true"
    seen = {}
    for name, profile in {
        "unconfined": {"type": "Unconfined"},
        "runtime": {"type": "RuntimeDefault"},
        "localhost": {"type": "Localhost", "localhostProfile": "no-chmod.json"},
    }.items():
        seen[name] = case.finish(job_pod(name, "sh", "-c", command, securityContext={"seccompProfile": profile}))
    assert seen["unconfined"].split() == ["Seccomp:", "0"]
    assert seen["runtime"].split() == ["Seccomp:", "2"]
    assert "Operation not permitted" in seen["localhost"]


@scenario()
def sysctls_of_a_pod_are_set(case: Case) -> None:
    """A safe sysctl, and a sysctl that the kubelet allows; any other is refused."""
    sysctls = [
        {"name": "net.ipv4.ip_unprivileged_port_start", "value": "42"},
        {"name": "net.core.somaxconn", "value": "77"},
    ]
    command = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn"
    text = case.finish(job_pod("p", "sh", "-c", command, securityContext={"sysctls": sysctls}))
    assert text.split() == ["42", "77"]
    refused = {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}
    case.kubectl.apply(pod("refused", securityContext=refused))
    eventually(lambda: case.pod("refused").get("status", {}).get("reason") == "SysctlForbidden")


@scenario()
def privileged_container_sees_the_devices(case: Case) -> None:
    """An ordinary container does not."""
    command = ("sh", "-c", "test -e /dev/kmsg && echo seen || echo hidden")
    ordinary = case.finish(job_pod("ordinary", *command))
    assert ordinary == "hidden\n"
    fields = {"securityContext": {"privileged": True}}
    assert case.finish(job_pod("privileged", *command, container_fields=fields)) == "seen\n"


@scenario()
def new_privileges_can_be_forbidden(case: Case) -> None:
    """With allowPrivilegeEscalation false."""
    fields = {"securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 1000}}
    text = case.finish(job_pod("p", "grep", "NoNewPrivs", "/proc/self/status", container_fields=fields))
    assert text.split() == ["NoNewPrivs:", "1"]


@scenario()
def namespaces_of_the_host_can_be_shared(case: Case) -> None:
    """PID and IPC namespaces."""
    sees = container("sh", "-c", "cat /proc/1/comm", name="main")
    text = case.finish(pod("p", sees, hostPID=True, hostIPC=True, restartPolicy="Never"))
    assert text.strip() not in ("sh", "cat", "pause")


_VOLUMES: dict[str, dict[str, Any]] = {
    "configmap": {"configMap": {"name": "c"}},
    "secret": {"secret": {"secretName": "s", "defaultMode": 0o440}},
    "fields": {"downwardAPI": {"items": [{"path": "word", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    "token": {"projected": {"sources": [{"serviceAccountToken": {"path": "word", "expirationSeconds": 600}}]}},
    "disk": {"emptyDir": {}},
    "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
}
_IDS = 1 << 16
"""How many ids a kubelet gives a pod."""


@scenario(since=(1, 33))
def pods_have_user_namespaces_of_their_own(case: Case) -> None:
    """With separate ids on the node; volumes of all kinds have the owners that the pod asks for."""
    case.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"word": "open"}})
    case.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"word": "hid"}})
    firsts = []
    for name, proc in {"masked": "Default", "unmasked": "Unmasked"}.items():
        case.run(_with_own_users(name, proc))
        ids = case.exec(name, "cat", "/proc/self/uid_map")
        assert case.logs(name) == ids
        inside, first, count = map(int, ids.split())
        assert (inside, count) == (0, _IDS)
        firsts.append(first)
        _check_volumes(case, name)
    assert min(firsts) >= _IDS
    assert abs(firsts[0] - firsts[1]) >= _IDS
    masks = [case.exec(name, "sh", "-c", "grep -c ' /proc/' /proc/mounts; true") for name in ("masked", "unmasked")]
    assert (int(masks[0]) > 0, int(masks[1])) == (True, 0)


def _with_own_users(name: str, proc: str) -> dict[str, Any]:
    mounts = [{"name": volume, "mountPath": f"/v/{volume}"} for volume in _VOLUMES]
    parts = [
        {"name": "configmap", "mountPath": "/part/word", "subPath": "word"},
        {"name": "disk", "mountPath": "/part/disk", "subPath": "disk"},
    ]
    main = container(
        *("sh", "-c", "cat /proc/self/uid_map; trap 'exit 0' TERM; sleep 3600 & wait"),
        volumeMounts=mounts + parts,
        securityContext={"procMount": proc},
        readinessProbe={"exec": {"command": ["cat", "/v/secret/word"]}, "periodSeconds": 1},
    )
    context = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
    volumes = [{"name": volume, **source} for volume, source in _VOLUMES.items()]
    return pod(name, main, hostUsers=False, securityContext=context, volumes=volumes)


def _check_volumes(case: Case, name: str) -> None:
    read = ["/v/configmap/word", "/v/secret/word", "/v/fields/word", "/part/word"]
    assert case.exec(name, "cat", *read) == f"openhid{case.namespace}open"
    assert case.exec(name, "cat", "/v/token/word").count(".") == 2
    assert case.exec(name, "stat", "-L", "-c", "%u:%g", "/v/secret/word") == "0:2000\n"
    for place in ("/v/disk", "/v/memory", "/part/disk"):
        owner = case.exec(name, "sh", "-c", f"echo new >{place}/file && stat -c %u:%g {place}/file")
        assert owner == "1000:2000\n", (place, owner)
    volumes = case.cluster.disk / "pods" / case.pod(name)["metadata"]["uid"] / "volumes" / "kubernetes.io~empty-dir"
    for path in ("disk/file", "disk/disk/file", "memory/file"):
        kept = (volumes / path).stat()
        assert (kept.st_uid, kept.st_gid) == (1000, 2000), path
