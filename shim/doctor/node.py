"""Checks of the directories of the node: the pod network, and credentials for pulls."""

from collections.abc import Mapping

from shim.cni.conf import Listing, choose, read_directory
from shim.cni.watch import status_of
from shim.config.model import Config
from shim.credentials.keyring import keyring_of_node
from shim.doctor.findings import Finding
from shim.domain.errors import ShimError


def check_network(config: Config) -> Finding:
    """Return whether there is a network for pods, with its plugins."""
    if config.network_plugin == "none":
        return Finding("ok", "pod network", "pods have the loopback interface alone (network_plugin)")
    listing = read_directory(config.cni_conf_dir)
    status = status_of(listing, choose(listing, bin_dirs=config.cni_bin_dir))
    if status.ready:
        return Finding("ok", "pod network", status.message)
    return Finding("FAIL", "pod network", status.message, _advice(config, listing))


def _advice(config: Config, listing: Listing) -> str:
    if listing.is_empty:
        return "install a network add-on, or for a single node: pydockershim install --cni 10-bridge"
    if listing.problem:
        return f"let root read {config.cni_conf_dir}"
    programs = ", ".join(map(str, config.cni_bin_dir))
    return f"correct that file of {config.cni_conf_dir}, or put the plugins it names into {programs} (cni_bin_dir)"


def check_credentials(config: Config, environ: Mapping[str, str]) -> Finding:
    """Return whether the credential providers are as the server needs them."""
    try:
        keyring_of_node(config, environ=environ)
    except ShimError as error:
        return Finding(
            "FAIL", "credentials", str(error), "the server does not start with it: mend that file or setting"
        )
    providers = config.image_credential_provider_config or "none"
    return Finding("ok", "credentials", f"providers: {providers}; config.json first in {config.kubelet_root_dir}")
