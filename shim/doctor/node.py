"""What the machine around Docker is like."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from shim.cni.conf import choose, read_directory
from shim.cni.watch import status_of
from shim.config.model import Config
from shim.credentials.keyring import keyring_of_node
from shim.doctor.findings import Finding
from shim.errors import ShimError, reason_of

_FORWARDING = "net/ipv4/ip_forward"


def check_node(config: Config, *, environ: Mapping[str, str], sysctls: Path = Path("/proc/sys")) -> Iterator[Finding]:
    """Root, the pod network, and credentials for pulls."""
    yield _root(os.geteuid())
    yield _network(config)
    yield _forwarding(sysctls)
    yield _credentials(config, environ)


def _root(uid: int) -> Finding:
    if uid == 0:
        return Finding("ok", "user", "root")
    return Finding("FAIL", "user", f"uid {uid} cannot make network namespaces or read Docker's files", "run as root")


def _network(config: Config) -> Finding:
    listing = read_directory(config.cni_conf_dir)
    status = status_of(listing, choose(listing, bin_dirs=config.cni_bin_dir))
    if status.ready:
        return Finding("ok", "pod network", status.message)
    advice = "install a network add-on, or begin with one of cni_conf_examples"
    return Finding("FAIL", "pod network", status.message, advice)


def _forwarding(sysctls: Path) -> Finding:
    try:
        forwards = (sysctls / _FORWARDING).read_text().strip() != "0"
    except OSError as error:
        return Finding("warn", "forwarding", f"{sysctls / _FORWARDING}: {reason_of(error)}")
    if forwards:
        return Finding("ok", "forwarding", "the kernel routes between pods and the world")
    advice = "sysctl -w net.ipv4.ip_forward=1, and keep it in /etc/sysctl.d"
    return Finding("warn", "forwarding", "net.ipv4.ip_forward is 0: most pod networks need it", advice)


def _credentials(config: Config, environ: Mapping[str, str]) -> Finding:
    try:
        keyring_of_node(config, environ=environ)
    except ShimError as error:
        return Finding(
            "FAIL", "credentials", str(error), "the server does not start with it: mend that file or setting"
        )
    providers = config.image_credential_provider_config or "none"
    return Finding("ok", "credentials", f"providers: {providers}; config.json first in {config.kubelet_root_dir}")
