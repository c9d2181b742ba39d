"""Volumes: changes while a pod runs are visible inside."""

import base64
import json
from typing import Any

from integration.conformance.scenario import Case, Skipped, container, eventually, job_pod, pod, scenario
from integration.node import images

_MOUNT = {"name": "v", "mountPath": "/v"}
_FIRST_WITH_IMAGE_MOUNTS = 28
_FIRST_WITH_PARTS_OF_IMAGES = (1, 33)
"""First kubelet that supports the sub-path of an image."""


def _configmap(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def _secret(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def _with_volume(volume: dict[str, Any], **mount: Any) -> dict[str, Any]:
    return pod("p", container(volumeMounts=[{**_MOUNT, **mount}]), volumes=[{"name": "v", **volume}])


def _reads(case: Case, path: str) -> str:
    done = case.kubectl.try_to("exec", "p", "--", "cat", path)
    return done.out if done.code == 0 else ""


@scenario()
def changed_configmap_is_seen_inside(case: Case) -> None:
    """A changed value, a new key and a removed key, without a restart."""
    case.kubectl.apply(_configmap("c", word="one", gone="soon"))
    case.run(_with_volume({"configMap": {"name": "c"}}))
    assert _reads(case, "/v/word") == "one"
    case.kubectl("replace", "-f", "-", stdin=json.dumps(_configmap("c", word="two", new="key")))
    eventually(lambda: (_reads(case, "/v/word"), _reads(case, "/v/new")) == ("two", "key"))
    assert case.exec("p", "ls", "/v").split() == ["new", "word"]
    assert case.restarts("p") == 0


@scenario()
def changed_secret_is_seen_inside(case: Case) -> None:
    """With its mode, and on tmpfs only."""
    case.kubectl.apply(_secret("s", word="one"))
    case.run(_with_volume({"secret": {"secretName": "s", "defaultMode": 0o400}}))
    assert _reads(case, "/v/word") == "one"
    assert case.exec("p", "stat", "-L", "-c", "%a", "/v/word") == "400\n"
    assert " tmpfs " in case.exec("p", "grep", " /v ", "/proc/mounts")
    case.kubectl.apply(_secret("s", word="two"))
    eventually(lambda: _reads(case, "/v/word") == "two")
    assert case.restarts("p") == 0


@scenario()
def changed_projected_volume_is_seen_inside(case: Case) -> None:
    """ConfigMap, Secret, labels of the pod and a token in one directory."""
    case.kubectl.apply(_configmap("c", open="one"))
    case.kubectl.apply(_secret("s", hidden="one"))
    labels = {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    token = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}
    sources = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, labels, token]
    case.run(_with_volume({"projected": {"sources": sources}}))
    claims = _claims(_reads(case, "/v/token"))
    assert claims["aud"] == ["vault"]
    assert claims["kubernetes.io"]["pod"]["name"] == "p"
    case.kubectl.apply(_configmap("c", open="two"))
    case.kubectl.apply(_secret("s", hidden="two"))
    case.kubectl("label", "pod", "p", "colour=blue")
    eventually(lambda: (_reads(case, "/v/open"), _reads(case, "/v/hidden")) == ("two", "two"))
    eventually(lambda: 'colour="blue"' in _reads(case, "/v/labels"))


@scenario(alone=True)
def renewed_token_is_seen_inside(case: Case) -> None:
    """The kubelet requests a new token when it has lost the old token, here through its restart."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    case.run(_with_volume({"projected": {"sources": [token]}}))
    before = _claims(_reads(case, "/v/token"))
    case.cluster.kubelet.stop(timeout=60)
    case.cluster.start_kubelet()
    eventually(lambda: _claims(_reads(case, "/v/token")).get("jti") not in (None, before["jti"]))
    assert case.restarts("p") == 0


def _claims(token: str) -> dict[str, Any]:
    if not token:
        return {}
    body = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))


@scenario()
def file_of_a_configmap_stays_as_it_was_mounted(case: Case) -> None:
    """A file mounted by subPath does not follow changes, as Kubernetes documents."""
    case.kubectl.apply(_configmap("c", word="one"))
    both = [_MOUNT, {"name": "v", "mountPath": "/one/word", "subPath": "word"}]
    case.run(pod("p", container(volumeMounts=both), volumes=[{"name": "v", "configMap": {"name": "c"}}]))
    case.kubectl.apply(_configmap("c", word="two"))
    eventually(lambda: _reads(case, "/v/word") == "two")
    assert _reads(case, "/one/word") == "one"


@scenario()
def environment_comes_from_everywhere(case: Case) -> None:
    """Values, ConfigMaps, Secrets, fields of the pod and its limits."""
    case.kubectl.apply(_configmap("c", COLOUR="blue"))
    case.kubectl.apply(_secret("s", PASSWORD="a $HOME 'quoted' word"))
    fields: dict[str, Any] = {
        "env": [
            {"name": "PLAIN", "value": "is $(COLOUR), not $$(COLOUR)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    # kubelet 1.27 shows no address of an ended pod
    case.run(pod("p", container("sh", "-c", "env; sleep 3600", **fields)))
    text = case.logs("p")
    seen = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert seen["PLAIN"] == "is blue, not $(COLOUR)"
    assert seen["PASSWORD"] == "a $HOME 'quoted' word"
    assert (seen["NAME"], seen["NODE"], seen["LIMIT"]) == ("p", "node", str(64 << 20))
    assert seen["ADDRESS"] == case.pod("p")["status"]["podIP"]


@scenario()
def changed_labels_are_seen_inside(case: Case) -> None:
    """Through the downward API's volume."""
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    manifest = _with_volume({"downwardAPI": {"items": items}})
    manifest["metadata"]["labels"] = {"colour": "red"}
    case.run(manifest)
    assert _reads(case, "/v/labels") == 'colour="red"'
    case.kubectl("label", "--overwrite", "pod", "p", "colour=green")
    eventually(lambda: _reads(case, "/v/labels") == 'colour="green"')


@scenario()
def empty_directory_is_shared_and_bounded(case: Case) -> None:
    """Two containers see the same files; a volume in memory has the requested size."""
    memory = {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}
    write = container("sh", "-c", "echo hello >/v/file; sleep 3600", volumeMounts=[_MOUNT], name="writer")
    limits = {"limits": {"memory": "64Mi"}}
    case.run(
        pod("p", container(volumeMounts=[_MOUNT], resources=limits), {**write, "resources": limits}, volumes=[memory])
    )
    eventually(lambda: _reads(case, "/v/file") == "hello\n")
    size = case.exec("p", "sh", "-c", "df -k /v | tail -1").split()[1]
    assert size == "8192", size


@scenario(since=(1, 31))
def image_is_mounted_as_a_volume(case: Case) -> None:
    """Read-only, whole or with a sub-path."""
    if int(case.cluster.served.engine.version.partition(".")[0]) < _FIRST_WITH_IMAGE_MOUNTS:
        raise Skipped("Docker mounts images from Engine 28 on")
    volume = {"name": "v", "image": {"reference": images.BUSYBOX, "pullPolicy": "IfNotPresent"}}
    part = {"name": "v", "mountPath": "/part", "subPath": "var/www"}
    parts = [part] if case.cluster.kubelet_version >= _FIRST_WITH_PARTS_OF_IMAGES else []
    case.run(pod("p", container(volumeMounts=[_MOUNT, *parts]), volumes=[volume]))
    assert _reads(case, "/v/var/www/index.html") == "it works\n"
    assert not parts or _reads(case, "/part/index.html") == "it works\n"
    assert case.kubectl.try_to("exec", "p", "--", "touch", "/v/new").code != 0


@scenario()
def mount_of_a_container_is_seen_by_another(case: Case) -> None:
    """Bidirectional in one container, HostToContainer in the other."""
    place = case.cluster.home / case.namespace
    volume = {"name": "v", "hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
    mounts = container(
        "sh",
        "-c",
        "mkdir -p /v/m; mount -t tmpfs tmpfs /v/m; touch /v/m/inside; trap 'umount /v/m; exit 0' TERM; "
        "while :; do sleep 0.2; done",
        name="mounts",
        volumeMounts=[{**_MOUNT, "mountPropagation": "Bidirectional"}],
        securityContext={"privileged": True},
    )
    sees = container(volumeMounts=[{**_MOUNT, "mountPropagation": "HostToContainer"}])
    case.run(pod("p", mounts, sees, volumes=[volume], terminationGracePeriodSeconds=10))
    eventually(lambda: case.kubectl.try_to("exec", "p", "-c", "main", "--", "ls", "/v/m/inside").code == 0)
    case.kubectl("delete", "pod", "p")


@scenario()
def claimed_volume_keeps_its_data(case: Case) -> None:
    """A persistent volume of the node, from one pod to the next."""
    place = case.cluster.home / case.namespace
    spec = {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": case.namespace,
        "hostPath": {"path": str(place), "type": "DirectoryOrCreate"},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": case.namespace}, "spec": spec}
    request = {"accessModes": ["ReadWriteOnce"], "storageClassName": case.namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}}
    case.kubectl.apply(volume)
    case.kubectl.apply({**claim, "spec": {**request, "resources": {"requests": {"storage": "1Mi"}}}})
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    for name, command in (("first", "echo kept >/v/file"), ("second", "cat /v/file")):
        fields = {"volumeMounts": [_MOUNT]}
        text = case.finish(job_pod(name, "sh", "-c", command, container_fields=fields, volumes=volumes))
    assert text == "kept\n"


@scenario()
def group_of_the_pod_owns_its_volumes(case: Case) -> None:
    """With fsGroup; the processes are in the group too."""
    manifest = _with_volume({"emptyDir": {}})
    manifest["spec"]["securityContext"] = {"runAsUser": 1000, "fsGroup": 2000, "supplementalGroups": [3000]}
    case.run(manifest)
    assert case.exec("p", "stat", "-c", "%g", "/v") == "2000\n"
    assert {"2000", "3000"} <= set(case.exec("p", "id", "-G").split())
    case.exec("p", "touch", "/v/file")
