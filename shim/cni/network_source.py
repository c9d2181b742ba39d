"""The source of the network for new pods (setting `network_plugin`)."""

from typing import Protocol

from shim.cni.conf import NetworkConfig
from shim.cni.programs import FindPlugins
from shim.cni.watch import ConfDirectory, NetworkStatus
from shim.config.model import Config
from shim.hostfs.client import HostFs


class NetworkSource(Protocol):
    """Knows the current network for new pods."""

    def start(self) -> None:
        """Start to follow the configuration."""

    def stop(self) -> None:
        """Stop following the configuration."""

    def chosen(self) -> NetworkConfig | None:
        """Return the network for new pods; None for loopback alone. Raise FailedPrecondition without a network."""

    def status(self) -> NetworkStatus:
        """Return the NetworkReady condition."""


class LoopbackOnly:
    """Pods get only loopback, without any configuration."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def chosen(self) -> None:
        """Return None: pods get only loopback."""

    def status(self) -> NetworkStatus:
        """Return that the network is ready."""
        return NetworkStatus(ready=True, reason="", message="pods have the loopback interface alone (network_plugin)")


def network_source(config: Config, *, find: FindPlugins, host_fs: HostFs) -> NetworkSource:
    """Return the source that the setting `network_plugin` selects."""
    if config.network_plugin == "none":
        return LoopbackOnly()
    return ConfDirectory(
        config.cni_conf_dir,
        bin_dirs=config.cni_bin_dir,
        find=find,
        call=host_fs.call_until_answered,
        probe=host_fs.call,
    )
