"""Checks of the Docker Engine of this node."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shim.base import deadline
from shim.base.atomic_files import read_regular
from shim.checkpoint import root as state
from shim.config.model import Config
from shim.dockerd.facts import ROOTLESS, EngineFacts, is_rootless
from shim.dockerd.image_store import has_writable_layers
from shim.dockerd.leaked_shims import LeakedShim, Maker, leaked_shims
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.doctor.findings import Finding
from shim.doctor.kubelet import check_driver
from shim.doctor.kubelet_settings import Kubelet, accepts_cgroup_v1, read_kubelet
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable, reason_of
from shim.engine.answers import EngineInfo
from shim.engine.client import DockerEngine
from shim.engine.interface import Engine
from shim.oci.user_namespaces import INSTALL, UserNamespaces
from shim.spec.sandbox import OOM_SCORE_ADJ

_FORWARDING = "IPv4 forwarding is disabled"
_USERNS = "name=userns"
"""Reported by a daemon whose containers have a user namespace, unless they opt out as pods do."""

_SUBJECT = "user namespace"

_CALL_SECONDS = 5.0
"""Seconds for an answer; an idle Docker needs milliseconds."""
_SECONDS = 9.0
"""Seconds for all answers."""

_SETTINGS = Path("/etc/docker/daemon.json")
_SETTINGS_BYTES = 1 << 20
_DEFAULTS = Config()


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of some releases of Docker that pods feel."""

    fixed_in: Mapping[tuple[int, int], int]
    """The releases that have it, and the patch of each that fixed it."""
    text: str
    advice: str

    def is_in(self, release: tuple[int, int, int]) -> bool:
        major, minor, patch = release
        return patch < self.fixed_in.get((major, minor), 0)


_FAULTS = (
    _Fault(
        # Pull 45738, by the tags that have it (pulls 45775 and 45774).
        {(23, 0): 7, (24, 0): 3},
        "kills a container in its grace period when the kubelet or pydockershim restarts (moby#45731)",
        "upgrade Docker to 23.0.7, 24.0.3 or anything newer",
    ),
    _Fault(
        # Pull 46693. Stops of pods avoid it (sandbox/pause_exit.py).
        {(20, 10): 27},
        "can hang for ever when two containers leave one of its networks at the same time (moby#46661)",
        "upgrade Docker to 20.10.27 or anything newer; if it hangs, restart it",
    ),
)


def check_engine_at(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about the Engine at `docker_endpoint`, within some seconds."""
    yield from check_settings()
    seconds = min(config.runtime_request_timeout, _CALL_SECONDS)
    engine = DockerEngine(config.docker_endpoint, request_timeout=seconds)
    try:
        with deadline.bound(_SECONDS):
            yield from check_docker(engine, config, kubelet=read_kubelet(config.kubelet_root_dir), environ=environ)
            yield from _leaked_shims(engine, config)
    finally:
        engine.close()


def check_settings(file: Path = _SETTINGS) -> Iterator[Finding]:
    """Yield a warning if Docker's settings are not JSON: a Docker that runs has read them before."""
    try:
        json.loads(read_regular(file, most=_SETTINGS_BYTES).strip() or b"{}")
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        why = reason_of(error) if isinstance(error, OSError) else f"is not JSON: {error}"
        advice = f"correct it (python3 -m json.tool {file}), then systemctl restart docker"
        yield Finding("warn", "docker", f"{file} {why}: Docker does not start with it", advice)


def _leaked_shims(engine: Engine, config: Config) -> Iterator[Finding]:
    """Name what containerd keeps of containers that Docker has removed."""
    try:
        root, made_by = engine.info().docker_root_dir, config.root_directory / state.RESOLV_CONF
        maker = Maker(docker_root=Path(root), resolv_conf=made_by)
        leaks = leaked_shims(lambda: {each.id for each in engine.list_containers()}, maker=maker)
    except ShimError:
        return  # the findings before say so
    for leak in leaks:
        text = f"process {leak.pid} is left of removed containers: {', '.join(each[:12] for each in leak.containers)}"
        yield Finding("warn", "shims", text, _advice_for(leak))


def _advice_for(leak: LeakedShim) -> str:
    if leak.serves_others:
        return "it also has containers that Docker knows: it ends when they have been removed"
    if leak.ours:
        return "if it is still there in a while, look for it in the server's log; it ends what it has made itself"
    return f"no pod of this server: if nobody misses it, kill -9 {leak.pid}, and containerd removes the rest"


def check_docker(engine: Engine, config: Config, *, kubelet: Kubelet, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield all findings about Docker, or a single finding if it does not answer."""
    try:
        info = engine.info()
    except ShimError as error:
        yield Finding("FAIL", "docker", str(error), _advice(error, config))
        return
    if is_rootless(info):
        yield Finding("FAIL", "docker", ROOTLESS, "docker context ls; the socket of root is /var/run/docker.sock")
        return
    major, minor = engine.api_version
    yield Finding(
        "ok", "docker", f"{info.server_version}, API {major}.{minor}, {info.driver} in {info.docker_root_dir}"
    )
    yield _cgroups(info, accepted=accepts_cgroup_v1(kubelet))
    if (driver := check_driver(kubelet, info.cgroup_driver, environ)) is not None:
        yield driver
    yield from _faults(info.server_version)
    yield from _storage(info)
    yield _live_restore(info)
    facts = EngineFacts(engine, restrict_oom_score_adj=config.restrict_oom_score_adj)
    yield _oom_scores(facts)
    yield _pause_image(engine, config.pod_infra_container_image)
    if _USERNS in (info.security_options or ()):
        text = "userns-remap is on: files of images have other owners in pods, so set-uid programs and homes fail"
        yield Finding("warn", _SUBJECT, text, 'take "userns-remap" out of /etc/docker/daemon.json')
    else:
        yield _user_namespaces(facts, info, files=config.root_directory)
    for warning in info.warnings or []:
        if _FORWARDING in warning:
            continue  # as it was when Docker started; the check of this node says how it is
        yield Finding("warn", "docker info", warning.removeprefix("WARNING: "))


def _advice(error: ShimError, config: Config) -> str:
    """Return the advice for an Engine that does not answer."""
    if _is_denied(error):
        return "run as root"
    match error:
        case FailedPrecondition():
            return "install a Docker Engine of 20.10 or newer, or a pydockershim that knows the one there is"
        case Unavailable() if config.docker_endpoint != _DEFAULTS.docker_endpoint:
            return (
                "start Docker (systemctl start docker), or correct docker_endpoint where it is set "
                "(pydockershim config | grep docker_endpoint), then systemctl restart pydockershim"
            )
        case Unavailable():
            return "start Docker (systemctl start docker), or name its socket (hosts of dockerd) in docker_endpoint"
        case DeadlineExceeded():
            return "Docker runs and does not answer: journalctl --unit docker, systemctl restart docker"
        case _:
            return "see why Docker answers so: journalctl --unit docker"


def _is_denied(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PermissionError):
        cause = cause.__cause__
    return cause is not None


def _faults(version: str) -> Iterator[Finding]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return
    major, minor, patch = (int(number) for number in found.groups())
    for fault in _FAULTS:
        if fault.is_in((major, minor, patch)):
            yield Finding("warn", "docker release", f"{version} {fault.text}", fault.advice)


def _cgroups(info: EngineInfo, *, accepted: str) -> Finding:
    text = f"version {info.cgroup_version}, driver {info.cgroup_driver}"
    if info.cgroup_driver == "none":
        return Finding(
            "FAIL", "cgroups", f"{text}: Docker sets no limits", "run Docker as root, or delegate controllers"
        )
    if info.cgroup_version == "1" and accepted:
        return Finding("ok", "cgroups", f"{text}, which the kubelet accepts ({accepted})")
    if info.cgroup_version == "1":
        # https://kep.k8s.io/5573
        advice = (
            "set failCgroupV1: false in the kubelet's configuration, with kubeadm also "
            "--ignore-preflight-errors=SystemVerification, or boot with version 2"
        )
        return Finding("warn", "cgroups", f"{text}: a kubelet of 1.35 or newer does not start by default", advice)
    return Finding("ok", "cgroups", text)


def _storage(info: EngineInfo) -> Iterator[Finding]:
    if not has_writable_layers(info):
        text = f"{info.driver} does not show what a container writes: no limit on ephemeral storage acts on it"
        advice = '"storage-driver": "overlay2" in /etc/docker/daemon.json, with which images are pulled again'
        yield Finding("warn", "storage driver", text, advice)


def _live_restore(info: EngineInfo) -> Finding:
    if info.live_restore_enabled:
        return Finding("ok", "live-restore", "pods outlive a restart of Docker")
    advice = 'pydockershim install --docker, which sets "live-restore" in /etc/docker/daemon.json and reloads Docker'
    if info.swarm is not None and info.swarm.local_node_state != "inactive":
        advice = (
            f"take this node out of its swarm (docker swarm leave): dockerd does not start with both; then {advice}"
        )
    return Finding("warn", "live-restore", "off: a restart of Docker ends every pod of this node", advice)


def _oom_scores(facts: EngineFacts) -> Finding:
    lowest = facts.possible_oom_score_adj(OOM_SCORE_ADJ)
    if lowest <= OOM_SCORE_ADJ:
        return Finding("ok", "oom scores", "as Kubernetes asks for them")
    text = f"Docker cannot go below {lowest} here, so critical pods are not spared when memory runs out"
    advice = "dockerd needs CAP_SYS_RESOURCE, and no user namespace around it; pods run all the same"
    return Finding("warn", "oom scores", text, advice)


def _user_namespaces(facts: EngineFacts, info: EngineInfo, *, files: Path) -> Finding:
    """Return whether pods can have user namespaces; a node without the OCI runtime has not asked for them."""
    runtime = (info.runtimes or {}).get(ORDERED_RUNTIME)
    if runtime is None:
        return Finding("ok", _SUBJECT, f"pods have the node's; for pods with one of their own: {INSTALL}")
    if not os.access(runtime.path, os.X_OK):
        text = f"pods with one of their own do not start: {runtime.path} is no program"
        return Finding("warn", _SUBJECT, text, INSTALL)
    try:
        problem = UserNamespaces(facts, files=files).problem()
    except ShimError as error:
        problem = str(error)
    if not problem:
        return Finding("ok", _SUBJECT, "pods can have their own")
    advice = f"Linux 6.3 or newer with overlay2 can; {INSTALL} sets the runtime; pods without one run all the same"
    return Finding("warn", _SUBJECT, f"pods cannot have their own: {problem}", advice)


def _pause_image(engine: Engine, reference: str) -> Finding:
    try:
        engine.inspect_image(reference)
    except NotFound:
        return Finding("ok", "pause image", f"{reference} is pulled with the first pod")
    except ShimError as error:
        advice = "name an image in pod_infra_container_image"
        return Finding("FAIL", "pause image", str(error), advice)
    return Finding("ok", "pause image", f"{reference} is here")
