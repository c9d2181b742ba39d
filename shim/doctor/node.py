"""Checks of directories of the node: the pod network, and credentials for pulls."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shim.cni.conf import Choice, Listing, NetworkConfig, choose, read_directory
from shim.cni.programs import find_plugins
from shim.cni.watch import status_of
from shim.config.model import Config
from shim.credentials.keyring import keyring_of_node
from shim.doctor.findings import Finding
from shim.domain.errors import ShimError

_DEFAULTS = Config()
_RESTART = "systemctl restart pydockershim"
_PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
"""Where distributions and add-ons put CNI plugins."""
_DROP_IN = Path("/etc/pydockershim/conf.d/cni-bin-dir.toml")
_STANDARD_PLUGINS = frozenset(
    {"bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan"}
    | {"portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf"}
)
"""Plugins of the CNI project, which distributions have as a package."""


def check_network(config: Config) -> Iterator[Finding]:
    """Yield whether there is a network for pods with its plugins, and which configurations are never used."""
    if config.network_plugin == "none":
        yield Finding("ok", "pod network", "pods have the loopback interface alone (network_plugin)")
        return
    listing = read_directory(config.cni_conf_dir)
    choice = choose(listing, bin_dirs=config.cni_bin_dir)
    status = status_of(listing, choice)
    if choice.network is None:
        yield Finding("FAIL", "pod network", status.message, _advice(config, listing, choice))
        return
    yield Finding("ok", "pod network", status.message)
    networks = [entry for entry in listing.entries if isinstance(entry, NetworkConfig)]
    others = [
        each.file for each in networks if each.file > choice.network.file and set(each.plugin_types) != {"loopback"}
    ]
    if others:
        used = config.cni_conf_dir / choice.network.file
        text = f"{', '.join(others)} of {config.cni_conf_dir} is never used: the first file by name is, {used.name}"
        yield Finding("warn", "pod network", text, f"if pods need the other network: rm {used}")


def has_network(config: Config) -> bool:
    """Return whether a server with these settings has a network for pods."""
    return all(finding.level != "FAIL" for finding in check_network(config))


def _advice(config: Config, listing: Listing, choice: Choice) -> str:
    if listing.is_empty and config.cni_conf_dir != _DEFAULTS.cni_conf_dir:
        return f"put one there, or correct cni_conf_dir {_its_place('cni_conf_dir')}, then {_RESTART}"
    if listing.is_empty:
        return "install a network add-on, or for a single node: pydockershim install --cni 10-bridge"
    if listing.problem:
        return f"let root read it: ls -ld {config.cni_conf_dir}; chmod 755 {config.cni_conf_dir}"
    network = next((entry for entry in listing.entries if isinstance(entry, NetworkConfig)), None)
    if network is None:
        file = config.cni_conf_dir / choice.skipped[0].file
        return f"correct that file (python3 -m json.tool {file}), or remove it: pydockershim install --cni 10-bridge"
    return _advice_for_plugins(config, network.plugin_types)


def _advice_for_plugins(config: Config, types: Sequence[str]) -> str:
    """Return how the server finds plugins that are in none of its directories."""
    for directory in _PLUGIN_DIRECTORIES:
        if directory not in config.cni_bin_dir and len(find_plugins(types, [directory])) == len(set(types)):
            if config.cni_bin_dir != _DEFAULTS.cni_bin_dir:
                return f"they are in {directory}: add it to cni_bin_dir {_its_place('cni_bin_dir')}, then {_RESTART}"
            setting = f"cni_bin_dir = {json.dumps([str(each) for each in (*config.cni_bin_dir, directory)])}"
            return f"they are in {directory}: mkdir -p {_DROP_IN.parent} && echo '{setting}' > {_DROP_IN} && {_RESTART}"
    missing = set(types) - set(find_plugins(types, config.cni_bin_dir))
    programs = ", ".join(map(str, config.cni_bin_dir))
    if missing <= _STANDARD_PLUGINS:
        return f"apt-get install containernetworking-plugins (dnf: the same name), or put them into {programs}"
    return f"the network add-on brings {', '.join(sorted(missing))}: see whether its pod runs; {programs} is searched"


def _its_place(setting: str) -> str:
    """Return the words for the place of a setting, since another file may not win over it."""
    return f"where it is set (pydockershim config | grep {setting})"


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
