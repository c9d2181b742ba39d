"""Where the programs of plugins are, found by the helper process: their directories may lie on a volume that hangs."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from shim.cni.executable import is_executable
from shim.hostfs.client import ANSWER_SECONDS, HostFs

FindPlugin = Callable[[str, Sequence[Path]], Path | None]
"""Returns the program of a plugin type: the first of that name in the directories, in their order."""


def find_plugin(plugin_type: str, bin_dirs: Sequence[Path]) -> Path | None:
    """Find a plugin as `FindPlugin` does. May hang with the volume of a directory."""
    return next((path for path in (directory / plugin_type for directory in bin_dirs) if is_executable(path)), None)


def finding_by(host_fs: HostFs, *, seconds: float = ANSWER_SECONDS) -> FindPlugin:
    """Return a `find_plugin` that is bounded: DeadlineExceeded for a directory that does not answer for `seconds`."""

    def find(plugin_type: str, bin_dirs: Sequence[Path]) -> Path | None:
        for directory in bin_dirs:
            path = directory / plugin_type
            what = f"find cni plugin {plugin_type}"
            if host_fs.call(partial(is_executable, path), path=str(directory), what=what, seconds=seconds):
                return path
        return None

    return find
