"""The checks that may wait for a disk, a process or a network, in the order of their findings.

A check imports its modules when it runs: gRPC and the Docker SDK take half a second to load, and the first finding is
to be on the screen before that.
"""
# ruff: noqa: PLC0415 - see above

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from shim.config.model import Config
from shim.doctor.findings import Finding

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check, and the text for its timeout."""

    subject: str
    run: Callable[[Config, Environ], Iterator[Finding]]
    modules: tuple[str, ...]
    """Imported before the check begins; on a busy machine that may take longer than the check."""
    seconds: float
    """Until it times out. Longer than the bounds inside it, whose errors say more."""
    waits_for: Callable[[Config], str]
    """Names the peer that a check waits for, if it does not end."""


def _pod_network(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.node import check_network

    yield from check_network(config)


def _pod_addresses(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.pod_ranges import check_pod_ranges

    yield from check_pod_ranges(config)


def _forwarding(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.forwarding import check_forwarding

    yield from check_forwarding(config)


def _loopback(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.loopback import check_loopback

    yield from check_loopback(config)


def _credentials(config: Config, environ: Environ) -> Iterator[Finding]:
    from shim.doctor.node import check_credentials

    yield check_credentials(config, environ)


def _docker(config: Config, environ: Environ) -> Iterator[Finding]:
    from shim.doctor.docker import check_engine_at

    yield from check_engine_at(config, environ)


def _kubelet(config: Config, environ: Environ) -> Iterator[Finding]:
    from shim.doctor.kubelet import check_kubelet
    from shim.doctor.kubelet_settings import read_kubelet

    yield from check_kubelet(config, read_kubelet(config.kubelet_root_dir), environ)


def _own_exec(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.own_exec import check_own_exec

    yield from check_own_exec(config)


def _criu(_config: Config, environ: Environ) -> Iterator[Finding]:
    from shim.doctor.criu import check_criu

    yield from check_criu(environ)


def _nri(config: Config, _environ: Environ) -> Iterator[Finding]:
    from shim.doctor.nri import check_nri

    yield from check_nri(config)


def _server(config: Config, environ: Environ) -> Iterator[Finding]:
    from shim.doctor.clients import check_clients
    from shim.doctor.kubelet_settings import read_kubelet
    from shim.doctor.node import has_network
    from shim.doctor.units import units_of_systemd

    yield from check_clients(
        config.container_runtime_endpoint,
        units=units_of_systemd(environ),
        kubelet=read_kubelet(config.kubelet_root_dir),
        has_network=partial(has_network, config),
    )


def _directories(config: Config) -> str:
    return ", ".join(str(path) for path in (config.cni_conf_dir, *config.cni_bin_dir))


CHECKS = (
    Check(subject="pod network", run=_pod_network, modules=("shim.doctor.node",), seconds=5.0, waits_for=_directories),
    Check(
        subject="pod addresses",
        run=_pod_addresses,
        modules=("shim.doctor.pod_ranges", "pyroute2"),
        seconds=5.0,
        waits_for=_directories,
    ),
    Check(
        subject="forward chain",
        run=_forwarding,
        modules=("shim.doctor.forwarding",),
        seconds=12.0,
        waits_for=lambda config: f"iptables, nft, {_directories(config)}",
    ),
    Check(
        subject="loopback",
        run=_loopback,
        modules=("shim.doctor.loopback",),
        seconds=5.0,
        waits_for=lambda _config: "nftables or iptables",
    ),
    Check(
        subject="credentials",
        run=_credentials,
        modules=("shim.doctor.node",),
        seconds=5.0,
        waits_for=lambda config: str(config.image_credential_provider_config or config.kubelet_root_dir),
    ),
    Check(
        subject="docker",
        run=_docker,
        modules=("shim.doctor.docker",),
        seconds=10.0,
        waits_for=lambda config: config.docker_endpoint,
    ),
    Check(
        subject="kubelet",
        run=_kubelet,
        modules=("shim.doctor.kubelet",),
        seconds=10.0,
        waits_for=lambda config: f"kubelet --version, {config.kubelet_root_dir}, {_directories(config)}",
    ),
    Check(
        subject="server",
        run=_server,
        modules=("shim.doctor.clients", "shim.doctor.node", "shim.doctor.units"),
        seconds=13.0,
        waits_for=lambda config: config.container_runtime_endpoint,
    ),
    Check(
        subject="exec",
        run=_own_exec,
        modules=("shim.doctor.own_exec",),
        seconds=15.0,
        waits_for=lambda _: "the exec program",
    ),
    Check(
        subject="checkpoints",
        run=_criu,
        modules=("shim.doctor.criu",),
        seconds=20.0,
        waits_for=lambda _: "criu check",
    ),
    Check(
        subject="NRI",
        run=_nri,
        modules=("shim.doctor.nri",),
        seconds=5.0,
        waits_for=lambda config: str(config.nri_socket_path),
    ),
)
