"""The life of pods: static pods, init containers, sidecars, restarts, jobs, probes, hooks and termination."""

import json
import time
from pathlib import Path
from typing import Any

from integration.conformance.cluster import NODE_NAME
from integration.conformance.scenario import Case, container, eventually, job_pod, pod, scenario

_FORGOTTEN_SECONDS = 15.0
"""A kubelet that has lost track of a pod creates it again within 5 s."""

_FOREVER = ("sh", "-c", "while :; do sleep 1; done")
_SHARED = {"name": "shared", "mountPath": "/shared"}
_EMPTY = {"name": "shared", "emptyDir": {}}


@scenario()
def static_pod_follows_its_file(case: Case) -> None:
    """Its mirror pod appears, changes with the file, and disappears with it."""
    file = case.cluster.manifests / f"{case.namespace}.json"
    mirror = f"static-{NODE_NAME}"

    def write(word: str) -> None:
        manifest = pod("static", container("sh", "-c", f"echo {word}; sleep 3600"))
        manifest["metadata"]["namespace"] = case.namespace
        partial = file.with_name(f".{file.name}")
        partial.write_text(json.dumps(manifest))
        partial.rename(file)

    def said(word: str) -> bool:
        return case.kubectl.try_to("logs", mirror).out == f"{word}\n"

    try:
        write("one")
        eventually(lambda: said("one"))
        write("two")
        eventually(lambda: said("two"))
    finally:
        file.unlink()
    eventually(lambda: not case.pod(mirror))


@scenario()
def init_containers_run_one_after_the_other(case: Case) -> None:
    """Each exits before the next starts, and all before the main containers."""

    def write(word: str) -> dict[str, Any]:
        return container("sh", "-c", f"sleep 1; echo {word} >>/shared/order", name=word, volumeMounts=[_SHARED])

    last = container("cat", "/shared/order", volumeMounts=[_SHARED])
    manifest = pod("p", last, initContainers=[write("a"), write("b")], volumes=[_EMPTY], restartPolicy="Never")
    assert case.finish(manifest) == "a\nb\n"


@scenario()
def failing_init_container_is_repeated(case: Case) -> None:
    """Until it succeeds; then the main containers start."""
    once = "test -e /shared/seen && exit 0; touch /shared/seen; exit 4"
    first = container("sh", "-c", once, name="first", volumeMounts=[_SHARED])
    case.run(pod("p", initContainers=[first], volumes=[_EMPTY]))
    assert case.status("p", "first", kind="initContainerStatuses")["restartCount"] == 1


@scenario(since=(1, 28))
def sidecar_serves_a_pod_and_ends_with_it(case: Case) -> None:
    """It starts before the main container, and the pod completes although the sidecar runs forever."""
    sidecar = container(
        "sh",
        "-c",
        "echo ready >/shared/ready; sleep 3600",
        name="sidecar",
        restartPolicy="Always",
        volumeMounts=[_SHARED],
    ) | {"startupProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}}
    main = container("cat", "/shared/ready", volumeMounts=[_SHARED])
    manifest = pod("p", main, initContainers=[sidecar], volumes=[_EMPTY], restartPolicy="Never")
    assert case.finish(manifest) == "ready\n"
    eventually(lambda: "terminated" in case.status("p", "sidecar", kind="initContainerStatuses")["state"])


@scenario()
def crashing_container_is_restarted(case: Case) -> None:
    """The exit code and the log of the previous container are kept."""

    def previous() -> str:
        return case.kubectl.try_to("logs", "p", "--previous").out

    case.kubectl.apply(pod("p", container("sh", "-c", "echo going down; sleep 1; exit 3")))
    eventually(lambda: case.restarts("p") >= 2)
    assert case.status("p")["lastState"]["terminated"]["exitCode"] == 3
    # The previous container is removed as soon as the current container exits, also between two requests of kubectl.
    eventually(lambda: previous() == "going down\n", previous)


@scenario()
def job_runs_its_pods_to_completion(case: Case) -> None:
    """Three pods, two at a time."""
    case.kubectl.apply(_job("j", "true", completions=3, parallelism=2))
    case.kubectl("wait", "--for=condition=complete", "job/j", "--timeout=120s")
    phases = [item["status"]["phase"] for item in case.get("pods")["items"]]
    assert phases == ["Succeeded"] * 3


@scenario()
def job_gives_up_after_its_retries(case: Case) -> None:
    """The failed pods stay for inspection."""
    case.kubectl.apply(_job("j", "false", backoffLimit=0))
    case.kubectl("wait", "--for=condition=failed", "job/j", "--timeout=120s")


def _job(name: str, command: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": job_pod("ignored", command)["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**spec, "template": template}}


@scenario()
def deployment_rolls_out_a_change(case: Case) -> None:
    """New pods replace the old pods."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("ignored")["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    case.kubectl.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    case.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    before = {item["metadata"]["uid"] for item in case.get("pods")["items"]}
    case.kubectl("set", "env", "deployment/web", "CHANGED=yes")
    case.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    eventually(lambda: len(case.get("pods")["items"]) == 3)
    after = {item["metadata"]["uid"] for item in case.get("pods")["items"]}
    assert not before & after
    assert case.kubectl("exec", "deployment/web", "--", "sh", "-c", "echo $CHANGED") == "yes\n"


@scenario()
def liveness_probe_restarts_a_container(case: Case) -> None:
    """A probe that runs a command; the event has the probe's output."""
    command = "touch /tmp/alive; sleep 3; rm /tmp/alive; while :; do sleep 1; done"
    probe = {"exec": {"command": ["cat", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 2}
    case.kubectl.apply(pod("p", container("sh", "-c", command, livenessProbe=probe)))
    eventually(lambda: case.restarts("p") >= 1)
    messages = [event["message"] for event in case.events("p") if event["reason"] == "Unhealthy"]
    assert any("No such file" in message for message in messages), messages


@scenario()
def readiness_probe_takes_a_pod_out_and_back(case: Case) -> None:
    """The container is not restarted."""
    probe = {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1}
    serve = container("sh", "-c", "mkdir /web; touch /web/ready; httpd -f -p 8080 -h /web", readinessProbe=probe)
    case.run(pod("p", serve))
    case.exec("p", "rm", "/web/ready")
    eventually(lambda: not case.is_ready("p"))
    case.exec("p", "touch", "/web/ready")
    eventually(lambda: case.is_ready("p"))
    assert case.restarts("p") == 0


@scenario()
def startup_probe_holds_the_others_back(case: Case) -> None:
    """The liveness probe, which would fail at first, starts after the startup probe has succeeded."""
    start = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 60}
    live = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1}
    command = "sleep 5; exec httpd -f -p 8080 -h /var/www"
    case.run(pod("p", container("sh", "-c", command, startupProbe=start, livenessProbe=live)))
    assert case.restarts("p") == 0


@scenario()
def slow_probe_is_ended_at_its_timeout(case: Case) -> None:
    """No process of it stays in the container."""
    probe = {"exec": {"command": ["sleep", "1234"]}, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 100}
    case.kubectl.apply(pod("p", container(readinessProbe=probe)))
    eventually(
        lambda: [event for event in case.events("p") if event["reason"] == "Unhealthy" and event.get("count", 1) >= 3]
    )
    left = case.exec("p", "sh", "-c", "grep -lx sleep /proc/[0-9]*/comm | wc -l")
    assert int(left) <= 2, left  # one of the pod, and one of a probe in progress


@scenario()
def hooks_run_after_the_start_and_before_the_stop(case: Case) -> None:
    """The first before the container counts as started, the second within the pod's grace period."""
    place = case.cluster.home / case.namespace
    host = {"name": "shared", "hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "sleep 1; echo started >/shared/log"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "sleep 1; echo stopping >>/shared/log"]}},
    }
    manifest = pod(
        "p", container(lifecycle=hooks, volumeMounts=[_SHARED]), volumes=[host], terminationGracePeriodSeconds=20
    )
    case.run(manifest)
    assert (place / "log").read_text() == "started\n"
    case.kubectl("delete", "pod", "p")
    assert (place / "log").read_text() == "started\nstopping\n"


@scenario()
def failing_start_hook_restarts_the_container(case: Case) -> None:
    """As if the container had failed."""
    hooks = {"postStart": {"exec": {"command": ["false"]}}}
    case.kubectl.apply(pod("p", container(*_FOREVER, lifecycle=hooks)))
    eventually(lambda: case.restarts("p") >= 1)


@scenario()
def grace_is_given_and_has_an_end(case: Case) -> None:
    """A container that handles SIGTERM can use the grace period; a container that ignores SIGTERM is killed."""
    place = case.cluster.home / case.namespace
    host = {"name": "shared", "hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
    handles = container(
        "sh",
        "-c",
        "trap 'sleep 2; echo bye >/shared/bye; exit 0' TERM; while :; do sleep 0.2; done",
        volumeMounts=[_SHARED],
    )
    ignores = container("sh", "-c", "trap '' TERM; while :; do sleep 1; done", name="ignores")
    case.run(pod("p", handles, ignores, volumes=[host], terminationGracePeriodSeconds=5))
    case.kubectl("delete", "pod", "p")
    assert (place / "bye").read_text() == "bye\n"


@scenario()
def deleted_pod_leaves_nothing(case: Case) -> None:
    """No container and no address, also after a forced deletion."""
    case.run(pod("calm"))
    case.run(pod("forced", container(*_FOREVER), terminationGracePeriodSeconds=30))
    uids = {case.pod(name)["metadata"]["uid"] for name in ("calm", "forced")}
    case.kubectl("delete", "pod", "calm")
    case.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    api = case.cluster.served.engine.api
    filters = {"label": "io.kubernetes.pod.uid"}
    eventually(
        lambda: (
            not [
                item
                for item in api.containers(all=True, filters=filters)
                if item["Labels"]["io.kubernetes.pod.uid"] in uids
            ]
        )
    )
    pods = case.cluster.disk / "pods"
    eventually(lambda: not uids & {path.name for path in pods.iterdir()})


@scenario()
def termination_message_is_reported(case: Case) -> None:
    """From its file, or from the end of the log if the policy says so."""
    written = container("sh", "-c", "printf said >/dev/termination-log", name="written")
    logged = container(
        "sh", "-c", "echo logged; exit 1", name="logged", terminationMessagePolicy="FallbackToLogsOnError"
    )
    case.kubectl.apply(pod("p", written, logged, restartPolicy="Never"))
    eventually(lambda: case.phase("p") == "Failed")
    assert case.status("p", "written")["state"]["terminated"]["message"] == "said"
    assert case.status("p", "logged")["state"]["terminated"]["message"] == "logged\n"


@scenario()
def deadline_ends_a_pod(case: Case) -> None:
    """With its reason."""
    case.kubectl.apply(pod("p", activeDeadlineSeconds=3))
    eventually(lambda: case.phase("p") == "Failed")
    assert case.pod("p")["status"]["reason"] == "DeadlineExceeded"


@scenario()
def ephemeral_container_sees_its_target(case: Case) -> None:
    """`kubectl debug`: it shares the processes of its target container."""
    case.run(pod("p", container("sh", "-c", "exec sleep 4321")))
    command = "cat /proc/1/cmdline | tr '\\0' ' '; echo; sleep 3600"
    spec = ["--target=main", "--container=debugger", "--profile=general"]
    image = ["--image=docker.io/library/busybox:latest", "--image-pull-policy=IfNotPresent"]
    case.kubectl("debug", "p", *image, *spec, "--", "sh", "-c", command)
    eventually(lambda: "sleep 4321" in case.kubectl.try_to("logs", "p", "-c", "debugger").out)


@scenario()
def containers_of_a_pod_share_processes_when_asked(case: Case) -> None:
    """Otherwise they do not."""
    sleeper = container("sleep", "4321", name="sleeper")
    for name, shared in (("shared", True), ("apart", False)):
        case.run(pod(name, container(), sleeper, shareProcessNamespace=shared))
        seen = case.exec(name, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert ("4321" in seen) is shared, seen


@scenario()
def missing_image_is_reported(case: Case) -> None:
    """As the reason why the container waits; the pod stays."""
    case.kubectl.apply(pod("p", {**container(), "image": "127.0.0.1:1/nothing:1"}))
    reasons = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
    eventually(lambda: case.status("p").get("state", {}).get("waiting", {}).get("reason") in reasons)


@scenario()
def missing_command_is_reported(case: Case) -> None:
    """As a container that could not run, with its exit code."""
    case.kubectl.apply(pod("p", container("/no/such/program")))

    def reported() -> bool:
        status = case.status("p")
        return "no such file" in json.dumps([status.get("state"), status.get("lastState")])

    eventually(reported, lambda: case.status("p"))


@scenario()
def pod_of_a_kept_directory_starts_again_from_it(case: Case) -> None:
    """A recreated pod finds the files of its predecessor on the node."""
    place: Path = case.cluster.home / case.namespace
    host = {"name": "shared", "hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
    add = container("sh", "-c", "echo here >>/shared/visits; cat /shared/visits", volumeMounts=[_SHARED])
    for visits in (1, 2):
        assert case.finish(pod("p", add, volumes=[host], restartPolicy="Never")) == "here\n" * visits
        case.kubectl("delete", "pod", "p")


@scenario()
def pod_outlives_the_removal_of_its_earlier_sandboxes(case: Case) -> None:
    """The kubelet's garbage collection removes the exited sandbox; the running sandbox stays alone."""
    name = case.run(pod("p"))
    api = case.cluster.served.engine.api
    first = _sandboxes(case, name)
    for _ in range(2):
        before = case.status(name)["containerID"]
        for sandbox in _sandboxes(case, name):
            api.kill(sandbox)
        eventually(
            lambda before=before: case.is_ready(name) and case.status(name)["containerID"] != before  # type: ignore[misc]
        )
    present = case.status(name)["containerID"]
    eventually(lambda: not first & _sandboxes(case, name, ended=True))
    until = time.monotonic() + _FORGOTTEN_SECONDS
    eventually(lambda: time.monotonic() > until)
    assert case.status(name)["containerID"] == present
    assert len(_sandboxes(case, name)) == 1


def _sandboxes(case: Case, name: str, *, ended: bool = False) -> set[str]:
    """Return the ids of a pod's running pause containers, with `ended` also of exited containers."""
    mark = f"k8s_POD_{name}_{case.namespace}_"
    found = case.cluster.served.engine.api.containers(all=ended, filters={"name": mark})
    return {item["Id"] for item in found}
