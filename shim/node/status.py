"""Status."""

import msgspec

import shim
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.dockerd.runc import ORDERED_RUNTIME, has_runc_shim
from shim.domain.errors import ShimError
from shim.engine.answers import EngineInfo
from shim.oci.user_namespaces import orders_directory
from shim.runtime import Runtime
from shim.spec.read_only import recursive_read_only_supported

RUNTIME_READY = "RuntimeReady"
NETWORK_READY = "NetworkReady"
STREAMING_ADDRESS_READY = "StreamingAddressReady"
METRICS_READY = "MetricsReady"
"""StreamingAddressReady and MetricsReady are reported only while they are false; the kubelet ignores them."""

OUTAGE_SECONDS = 30.0
"""How long the view may be out of sync before Docker counts as hung although it answers pings. Listing all containers
after a restart of Docker takes a few seconds, more on a slow machine with hundreds of containers."""


def status(rt: Runtime, *, verbose: bool) -> pb.StatusResponse:
    """Return within 5 s whether Docker and the pod network are ready, and why not. Not being ready is no error."""
    network = rt.cni.networks.status()
    runtime = _runtime_condition(rt)
    engine = rt.facts.info() if runtime.status else EngineInfo()
    no_user_namespaces = rt.user_namespaces.known_problem() if runtime.status else "Docker is not ready"
    conditions = [
        runtime,
        pb.RuntimeCondition(type=NETWORK_READY, status=network.ready, reason=network.reason, message=network.message),
        *(
            pb.RuntimeCondition(type=name, status=False, reason="AddressNotAvailable", message=why)
            for name, why in rt.taken_addresses.items()
        ),
    ]
    return pb.StatusResponse(
        status=pb.RuntimeStatus(conditions=conditions),
        runtime_handlers=_runtime_handlers(engine, user_namespaces=not no_user_namespaces),
        features=pb.RuntimeFeatures(
            supplemental_groups_policy=True,
            user_namespaces_host_network=not no_user_namespaces,
            mount_options=orders_directory(engine) is not None,
        ),
        info={"config": _verbose(rt, engine, no_user_namespaces=no_user_namespaces)} if verbose else {},
    )


def _runtime_condition(rt: Runtime) -> pb.RuntimeCondition:
    try:
        rt.facts.check_answers()
    except ShimError as error:
        deadline.current().check("ask Docker whether it is ready")  # raises if the client has left
        return _not_ready(str(error))
    if outage := rt.view.long_outage(seconds=OUTAGE_SECONDS):
        return _not_ready(f"Docker answers pings, but its containers have been unknown for long: {outage}")
    return pb.RuntimeCondition(type=RUNTIME_READY, status=True)


def _not_ready(message: str) -> pb.RuntimeCondition:
    return pb.RuntimeCondition(type=RUNTIME_READY, status=False, reason="DockerDaemonNotReady", message=message)


def _runtime_handlers(engine: EngineInfo, *, user_namespaces: bool) -> list[pb.RuntimeHandler]:
    """Return Docker's default runtime under the empty name, and all of its runtimes."""
    runtimes = engine.runtimes or {}
    named = {name: runtime for name, runtime in sorted(runtimes.items()) if name != ORDERED_RUNTIME}
    if engine.default_runtime in runtimes:
        named = {"": runtimes[engine.default_runtime], **named}
    return [
        pb.RuntimeHandler(
            name=name,
            features=pb.RuntimeHandlerFeatures(
                recursive_read_only_mounts=recursive_read_only_supported(runtime.status),
                user_namespaces=user_namespaces and has_runc_shim(engine, name),
            ),
        )
        for name, runtime in named.items()
    ]


def _verbose(rt: Runtime, engine: EngineInfo, *, no_user_namespaces: str) -> str:
    shown = {
        "sandboxImage": rt.config.pod_infra_container_image,  # kubeadm compares it with its own pause image
        # critest tests whether the parent directory, which holds the roots of containers, can map ids.
        "stateDir": engine.docker_root_dir and f"{engine.docker_root_dir}/containers",
        "version": shim.__version__,
        "config": msgspec.to_builtins(rt.config, enc_hook=str),
        "view": rt.view.stats(),
        "logs": rt.logs.stats(),
        "userNamespaces": no_user_namespaces or "supported",
        "nri": _nri(rt),
        "ownExec": rt.own_exec.state(),
        "criu": rt.criu.describe(),
        "corruptCheckpoints": [str(corrupt) for corrupt in rt.checkpoints.corrupt()],
    }
    return msgspec.json.encode(shown, enc_hook=str).decode()


def _nri(rt: Runtime) -> dict[str, object]:
    """Return the NRI plugins in the order of their calls, and why other plugins cannot connect."""
    return {"enabled": rt.config.nri, "plugins": rt.nri.rows(), "problem": rt.nri.problem}
