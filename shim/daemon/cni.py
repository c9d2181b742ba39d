"""CNI in the server: its own configuration file, and the runner of plugins."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from shim.base import deadline
from shim.checkpoint.pod_cidr import PodCidr
from shim.cni import environment, host_files
from shim.cni.network_source import network_source
from shim.cni.plugins import Plugins
from shim.cni.programs import find_plugins_via
from shim.config.model import Config
from shim.domain.errors import DeadlineExceeded, Unavailable
from shim.hostfs.client import HostFs
from shim.node.cni_conf import prepare_cni_conf
from shim.runtime import Cni, Runtime

_CNI_CONF_SECONDS = 2.0
"""Seconds to write the server's CNI configuration at the start; after that it is retried in the background."""

HELPER_MODULES = tuple(module.__name__ for module in (environment, host_files))
"""Modules of CNI's functions that run in the helper process for host paths."""

log = structlog.get_logger(__name__)


def write_cni_conf(config: Config, host_fs: HostFs, pod_cidr: PodCidr) -> bool:
    """Write the server's own CNI configuration, if set; return False if its directory does not answer."""
    try:
        with deadline.bound(_CNI_CONF_SECONDS):
            prepare_cni_conf(config, ranges=pod_cidr.ranges, call=host_fs.call)
    except (DeadlineExceeded, Unavailable) as error:
        log.warning("cannot write CNI configuration now", directory=str(config.cni_conf_dir), error=error)
        return False
    return True


def write_cni_conf_later(rt: Runtime) -> None:
    """Retry to write the server's own CNI configuration in the background until it succeeds."""
    rt.deferred_checks.add(partial(_write, rt), what="the CNI configuration", seconds=math.inf, asks_docker=False)


def _write(rt: Runtime) -> bool:
    with deadline.bound(_CNI_CONF_SECONDS), rt.locks.cni_conf():
        prepare_cni_conf(rt.config, ranges=rt.cni.pod_cidr.ranges, call=rt.host_fs.call)
    return True


@contextmanager
def running_cni(config: Config, host_fs: HostFs, pod_cidr: PodCidr) -> Iterator[Cni]:
    """Create the runner of CNI plugins; watch the configuration directory inside the block."""
    find = find_plugins_via(host_fs)
    networks = network_source(config, find=find, host_fs=host_fs)
    networks.start()
    plugins = Plugins(
        bin_dirs=config.cni_bin_dir,
        cache_dir=config.cni_cache_dir,
        timeout=config.cni_plugin_timeout,
        find=find,
    )
    try:
        yield Cni(networks=networks, plugins=plugins, pod_cidr=pod_cidr)
    finally:
        networks.stop()
