"""Parts of Kubernetes' node suite that are run together: each has its run, and its row in docs/compatibility.md."""

from dataclasses import dataclass

_STATS = "PodAndContainerStatsFromCRI=true"
"""Without this gate a kubelet takes the stats of containers from cAdvisor, which does not know Docker's."""
_LONG = "(Serial || Slow || Disruptive)"
_PLAIN = "!Flaky && !(Feature: containsAny {OffByDefault, StandaloneMode, NodeProblemDetector, LockContention})"
"""Features that are off by default, and tests that upstream runs with a further program or on their own."""


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the suite.

    `labels` is ginkgo's filter of labels; `focus` and `skip` are regular expressions of names. `at_once` is the number
    of processes: tests that change the kubelet run alone.
    """

    name: str
    labels: str
    minutes: int
    focus: str = ""
    skip: str = ""
    at_once: int = 1
    gates: str = _STATS
    flags: tuple[str, ...] = ()


def _features(*names: str) -> str:
    return f"(Feature: containsAny {{{', '.join(names)}}})"


_OWN = {
    "resize": f"({_features('InPlacePodVerticalScaling')} || "
    "(FeatureGate: containsAny InPlacePodLevelResourcesVerticalScaling))",
    "managers": _features("CPUManager", "MemoryManager", "TopologyManager", "PodLevelResourceManagers"),
    "eviction": _features(
        "Eviction", "LocalStorageCapacityIsolationQuota", "LSCIQuotaMonitoring", "SystemNodeCriticalPod"
    ),
    "shutdown": _features("GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority"),
    "huge-pages": _features("HugePages", "DownwardAPIHugePages"),
    "devices": _features("DevicePlugin", "DeviceManager", "PodResourcesAPI"),
    "resource-claims": _features("DynamicResourceAllocation"),
    "swap": _features("NodeSwap"),
    "user-namespaces": _features("UserNamespacesSupport", "ProcMountType"),
    "checkpoint": _features("CheckpointContainer"),
    "cri-proxy": _features("CriProxy"),
    "pressure": "(FeatureGate: containsAny KubeletPSI)",
}
_NO_OWN = f"!({' || '.join(_OWN.values())})"
_BY_NAME = {"garbage-collect": "GarbageCollect", "log-rotation": "ContainerLogRotation"}

GROUPS = (
    Group("conformance", f"NodeConformance && !{_LONG} && {_NO_OWN} && {_PLAIN}", minutes=60, at_once=8),
    Group("features", f"!NodeConformance && !{_LONG} && {_NO_OWN} && {_PLAIN}", minutes=60, at_once=8),
    Group(
        "conformance-serial",
        f"NodeConformance && {_LONG} && {_NO_OWN} && {_PLAIN}",
        minutes=120,
        skip="|".join(_BY_NAME.values()),
    ),
    Group(
        "serial",
        f"!NodeConformance && {_LONG} && {_NO_OWN} && {_PLAIN}",
        minutes=240,
        skip="|".join([*_BY_NAME.values(), "Density", "Resource-usage", "Node Performance"]),
    ),
    *(Group(name, f"{_LONG} && {_PLAIN}", minutes=60, focus=focus) for name, focus in _BY_NAME.items()),
    *(
        Group(
            name,
            f"{labels} && {_PLAIN}",
            minutes=120,
            at_once=8 if name == "resize" else 1,
            flags=("--cri-proxy-enabled",) if name == "cri-proxy" else (),
        )
        for name, labels in _OWN.items()
    ),
)
