"""Where pods get their network from (setting `network_plugin`)."""

from typing import Protocol

from shim.cni.conf import NetworkConfig
from shim.cni.programs import FindPlugins
from shim.cni.watch import ConfDirectory, NetworkStatus
from shim.config.model import Config
from shim.hostfs.client import HostFs


class Networks(Protocol):
    """Knows the network for new pods at every moment."""

    def start(self) -> None:
        """Begin to follow what it depends on."""

    def stop(self) -> None:
        """End that."""

    def chosen(self) -> NetworkConfig | None:
        """Return the network for new pods, None if they get loopback alone. FailedPrecondition if there is none."""

    def status(self) -> NetworkStatus:
        """Return whether new pods can have their network, and why not."""


class LoopbackOnly:
    """No network at all: nothing is read, and the node is ready."""

    def start(self) -> None:
        """Follow nothing."""

    def stop(self) -> None:
        """Follow nothing."""

    def chosen(self) -> None:
        """Return no network."""

    def status(self) -> NetworkStatus:
        """Return that new pods can be made."""
        return NetworkStatus(ready=True, reason="", message="pods have the loopback interface alone (network_plugin)")


def networks_of(config: Config, *, find: FindPlugins, host_fs: HostFs) -> Networks:
    """Make what the setting asks for."""
    if config.network_plugin == "none":
        return LoopbackOnly()
    return ConfDirectory(
        config.cni_conf_dir,
        bin_dirs=config.cni_bin_dir,
        find=find,
        call=host_fs.call_until_answered,
        probe=host_fs.call,
    )
