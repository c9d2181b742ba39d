"""Scenarios, and the helpers they use."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from integration.conformance.cluster import Cluster
from integration.conformance.kubectl import Kubectl
from integration.node import images

T = TypeVar("T")

LIMIT_SECONDS = 180.0
"""How long a scenario waits for a condition."""
_TICK_SECONDS = 0.2


class Skipped(Exception):
    """A scenario cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A behaviour of the node that a user of the cluster relies on."""

    run: Callable[["Case"], None]
    alone: bool = False
    needs: Sequence[str] = ()
    since: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The behaviour, in words."""
        return self.run.__name__.replace("_", " ")


SCENARIOS: list[Scenario] = []
"""Filled by the modules of `integration.conformance.scenarios` on import."""


def scenario(
    *, alone: bool = False, needs: Sequence[str] = (), since: tuple[int, int] = (0, 0)
) -> Callable[[Callable[["Case"], None]], None]:
    """Register a function as a scenario; its name describes the behaviour.

    `alone` is for scenarios that disturb others. A scenario is skipped if one of the programs it `needs` is missing,
    and with kubelets older than `since`.
    """

    def add(run: Callable[["Case"], None]) -> None:
        SCENARIOS.append(Scenario(run, alone, needs, since))

    return add


@dataclass(frozen=True, slots=True)
class Case:
    """The context of a running scenario: a separate namespace in the cluster."""

    cluster: Cluster
    kubectl: Kubectl

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.kubectl.namespace

    def get(self, kind: str, name: str = "") -> Any:
        """Return an object of the core group, or the list of all objects in the namespace.

        None if it does not exist.
        """
        return self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/{kind}/{name}".rstrip("/"))

    def pod(self, name: str) -> dict[str, Any]:
        """Return a pod, empty if it does not exist."""
        return dict(self.get("pods", name) or {})

    def phase(self, name: str) -> str:
        """Return a pod's phase, empty if it does not exist."""
        return str(self.pod(name).get("status", {}).get("phase", ""))

    def status(self, name: str, container: str = "main", *, kind: str = "containerStatuses") -> dict[str, Any]:
        """Return the status of a container of a pod, empty if it does not exist."""
        statuses = self.pod(name).get("status", {}).get(kind, ())
        return next((dict(status) for status in statuses if status["name"] == container), {})

    def restarts(self, name: str, container: str = "main") -> int:
        """Return how often a container was restarted."""
        return int(self.status(name, container).get("restartCount", 0))

    def run(self, manifest: dict[str, Any]) -> str:
        """Create a pod, wait until all its containers are ready, and return its name."""
        self.kubectl.apply(manifest)
        name = str(manifest["metadata"]["name"])
        self.wait_ready(name)
        return name

    def finish(self, manifest: dict[str, Any]) -> str:
        """Create a pod that runs to completion, wait for its success, and return its output."""
        self.kubectl.apply(manifest)
        name = str(manifest["metadata"]["name"])
        eventually(lambda: self.phase(name) in ("Succeeded", "Failed"), lambda: self.pod(name).get("status"))
        text = self.logs(name)
        assert self.phase(name) == "Succeeded", f"the pod failed: {self.pod(name)['status']}\n{text}"
        return text

    def wait_ready(self, name: str) -> None:
        """Wait until all containers of a pod are ready."""
        eventually(lambda: self.is_ready(name), lambda: self.pod(name).get("status"))

    def is_ready(self, name: str) -> bool:
        """Return whether a pod is ready."""
        conditions = self.pod(name).get("status", {}).get("conditions", ())
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def exec(self, name: str, *command: str, container: str = "main") -> str:
        """Run a command in a container through kubectl and return its output."""
        return self.kubectl("exec", name, "-c", container, "--", *command)

    def logs(self, name: str, *flags: str) -> str:
        """Return the log of a pod's container."""
        return self.kubectl("logs", name, *flags)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of an object of the namespace."""
        return [item for item in self.get("events")["items"] if item["involvedObject"]["name"] == name]


def eventually(
    condition: Callable[[], T], show: Callable[[], object] | None = None, *, seconds: float = LIMIT_SECONDS
) -> T:
    """Return the first true value of `condition`; raise AssertionError after `seconds`, with the result of `show`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; last: {show() if show else value!r}")
        time.sleep(_TICK_SECONDS)
    return value


# --- manifests --------------------------------------------------------------------------------------------


def container(*command: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a busybox container; without a command it sleeps until it is stopped."""
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command) or ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
        **fields,
    }


def pod(name: str, *containers: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod with a short grace period; without `containers` its only container sleeps."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers) or [container()], **spec},
    }


def job_pod(name: str, *command: str, container_fields: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a command once."""
    return pod(name, container(*command, **(container_fields or {})), restartPolicy="Never", **spec)


def chosen(only: str) -> list[Scenario]:
    """Return the scenarios whose names match a regular expression."""
    return [each for each in SCENARIOS if re.search(only, each.name)]
