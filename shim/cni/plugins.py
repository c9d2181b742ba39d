"""ADD, CHECK, DEL and GC of a whole plugin list.

Source: CNI specification 1.1.0, section 3 (execution of network configurations).
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from shim.base.rw_lock import RwLock
from shim.cni.cache import Attachment, cached_result, remove_cached, write_cached
from shim.cni.conf import SUPPORTED_VERSIONS, declares, has_flag
from shim.cni.plugin import UNKNOWN_VERB, Call, JsonObject, PluginError, Verb, run_add, run_plugin
from shim.cni.programs import FindPlugins, find_plugins
from shim.cni.result import ResultError, result_from_json
from shim.domain.errors import FailedPrecondition, ShimError

__all__ = ["Attachment", "Plugins"]

log = structlog.get_logger(__name__)

VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")
"""Configuration keys with the attachments that GC must keep: the key of the specification, and the key of the first
releases of the reference library. Without the second key, a plugin that reads only that key would take every pod for
dead."""

GC_WAIT_SECONDS = 10.0
"""How long a GC waits until no ADD or DEL runs. After that it is left to the next round."""

_FIRST_WITH_RESULT_ON_DEL = SUPPORTED_VERSIONS.index("0.4.0")
_FIRST_WITH_GC = SUPPORTED_VERSIONS.index("1.1.0")


class Plugins:
    """The plugins of this node and the cache of their results. Calls for the same pod must not overlap."""

    def __init__(
        self, *, bin_dirs: Sequence[Path], cache_dir: Path, timeout: float, find: FindPlugins = find_plugins
    ) -> None:
        self._find = find
        self._bin_dirs = tuple(bin_dirs)
        self._cache_dir = cache_dir
        self._timeout = timeout
        self._lock = RwLock()

    def intend(self, attachment: Attachment) -> None:
        """Record in the cache that ADD is about to run; `delete` or `forget` removes the record.

        Raise ShimError or ResourceExhausted if the file cannot be written.
        """
        write_cached(self._cache_dir, attachment, result=None)

    def forget(self, attachment: Attachment) -> None:
        """Remove the record of an attachment, if it exists. Raise ShimError."""
        remove_cached(self._cache_dir, attachment)

    def add(self, attachment: Attachment) -> JsonObject:
        """Run ADD of each plugin in order, with the result of the previous plugin; return the last result.

        Raise FailedPrecondition, before any plugin runs, if a binary is missing. Raise PluginError if a plugin fails;
        then the caller must run `delete` with the same attachment, because plugins may have done part of their work.
        """
        calls = self._calls(attachment, verb="ADD", netns=attachment.netns)
        result: JsonObject | None = None
        with self._lock.shared(what=f"run cni ADD for sandbox {attachment.container_id}"):
            for call, plugin in calls:
                config = _config(attachment, plugin, previous=result)
                result = _check_result(call, run_add(call, config=config, timeout=self._timeout))
                result.setdefault("cniVersion", attachment.conflist["cniVersion"])
        assert result is not None  # noqa: S101 - a list has at least one plugin
        write_cached(self._cache_dir, attachment, result=result)
        return result

    def delete(self, attachment: Attachment, *, forget: bool = True) -> None:
        """Run DEL of each plugin in reverse order, with the final result of the ADD. May be repeated.

        Remove the record in the cache too, unless `forget` is False and the caller does that later. If the namespace is
        gone, CNI_NETNS is empty, and plugins release the resources outside it. The first error stops the run, as
        section 3 demands; the caller must repeat it to reach the remaining plugins.
        """
        netns = attachment.netns if _is_namespace(attachment.netns) else ""
        result = attachment.result or cached_result(self._cache_dir, attachment)
        previous = result if _takes_result_on_del(attachment.conflist) else None
        with self._lock.shared(what=f"run cni DEL for sandbox {attachment.container_id}"):
            for call, plugin in reversed(self._calls(attachment, verb="DEL", netns=netns)):
                run_plugin(call, config=_config(attachment, plugin, previous=previous), timeout=self._timeout)
        if not forget:
            return
        try:
            self.forget(attachment)
        except ShimError as error:
            # Only this file leaks, and a read-only disk must not prevent the removal of a pod.
            log.warning("failed to remove CNI cache entry", sandbox=attachment.container_id, error=error)

    def run_gc(self, conflist: JsonObject, valid: Callable[[], Collection[tuple[str, str]]]) -> bool:
        """Run GC of each plugin: it releases everything except for the container ids and interfaces of `valid`.

        As the specification demands, no ADD or DEL runs during GC; `valid` is called within that time. Return False if
        ADD or DEL run for all of GC_WAIT_SECONDS. Skip plugins that do not know GC. Raise PluginError if a plugin
        fails, and FailedPrecondition if a binary is missing. The list must support GC.
        """
        with self._lock.exclusive(seconds=GC_WAIT_SECONDS) as is_alone:
            if not is_alone:
                return False
            stay = [{"containerID": container, "ifname": ifname} for container, ifname in sorted(valid())]
            failures = [failure for plugin in conflist["plugins"] if (failure := self._gc(plugin, conflist, stay))]
        if failures:
            raise failures[0]
        return True

    def _gc(self, plugin: JsonObject, conflist: JsonObject, stay: list[dict[str, str]]) -> ShimError | None:
        """Run GC of a plugin. Return its error instead of raising it, so that the next plugins run too."""
        name = conflist["name"]
        config = {
            **plugin,
            "name": name,
            "cniVersion": conflist["cniVersion"],
            **dict.fromkeys(VALID_ATTACHMENTS, stay),
        }
        config.pop("capabilities", None)
        try:
            found = self._find([plugin["type"]], self._bin_dirs)
            binary = self._binary(found, plugin["type"], what=f"cni GC on network {name}")
            run_plugin(Call(binary=binary, verb="GC", bin_dirs=self._bin_dirs), config=config, timeout=self._timeout)
        except PluginError as error:
            if error.code != UNKNOWN_VERB:
                return error
            log.debug("CNI plugin does not support GC", plugin=plugin["type"], network=name)
        except FailedPrecondition as error:
            return error
        return None

    def _calls(self, attachment: Attachment, *, verb: Verb, netns: str) -> list[tuple[Call, JsonObject]]:
        what = f"cni {verb} on network {attachment.network} for sandbox {attachment.container_id}"
        plugins = attachment.conflist["plugins"]
        found = self._find([plugin["type"] for plugin in plugins], self._bin_dirs)
        return [
            (
                Call(
                    binary=self._binary(found, plugin["type"], what=what),
                    verb=verb,
                    container_id=attachment.container_id,
                    netns=netns,
                    ifname=attachment.ifname,
                    args=attachment.args,
                    bin_dirs=self._bin_dirs,
                ),
                plugin,
            )
            for plugin in plugins
        ]

    def _binary(self, found: Mapping[str, Path], plugin_type: str, *, what: str) -> Path:
        if plugin_type not in found:
            searched = ", ".join(map(str, self._bin_dirs))
            raise FailedPrecondition(f"{what}: plugin binary {plugin_type} not found in {searched}")
        return found[plugin_type]


def _check_result(call: Call, raw: JsonObject) -> JsonObject:
    """Check that the server can parse a result, so that reading the stored result cannot fail later."""
    try:
        result_from_json(raw)
    except ResultError as error:
        raise PluginError(call, msg=f"printed a malformed result: {error}") from error
    return raw


def _config(attachment: Attachment, plugin: JsonObject, *, previous: JsonObject | None) -> JsonObject:
    """Return the configuration that a plugin reads (section 3, deriving request configuration)."""
    config = {
        **plugin,
        "name": attachment.network,
        "cniVersion": attachment.conflist["cniVersion"],
    }
    config.pop("capabilities", None)
    given = {key: value for key, value in attachment.capabilities.items() if declares(plugin, key)}
    if given:
        config["runtimeConfig"] = given
    if previous is not None:
        config["prevResult"] = previous
    return config


def knows_gc(conflist: JsonObject) -> bool:
    """Return whether the list has a version with GC (1.1.0) and does not disable it."""
    return not has_flag(conflist, "disableGC") and SUPPORTED_VERSIONS.index(conflist["cniVersion"]) >= _FIRST_WITH_GC


def _takes_result_on_del(conflist: JsonObject) -> bool:
    """Return whether the list has a version with `prevResult` in a DEL (0.4.0)."""
    return SUPPORTED_VERSIONS.index(conflist["cniVersion"]) >= _FIRST_WITH_RESULT_ON_DEL


def _is_namespace(path: str) -> bool:
    """Return whether `path` is a namespace. An unmounted pin is an empty file, which plugins would refuse."""
    if not path:
        return False
    try:
        return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev  # noqa: PTH116 - all are on nsfs
    except FileNotFoundError:
        return False
