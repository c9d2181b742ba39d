"""Search for the programs of plugins, in the helper process for host paths, because a directory's volume may hang."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shim.cni.host_files import executables
from shim.hostfs.client import ANSWER_SECONDS, HostFs

FindPlugins = Callable[[Sequence[str], Sequence[Path]], dict[str, Path]]
"""Maps each plugin type to the first executable of that name in the directories; missing types are left out.

It takes all types at once, because each call of the helper process wakes three threads.
"""

Ask = Callable[[Path, Sequence[str]], list[str]]
"""Returns the names that are executables in a directory."""


def find_plugins(plugin_types: Sequence[str], bin_dirs: Sequence[Path]) -> dict[str, Path]:
    """Find plugins as `FindPlugins`, in this process. This may hang with the volume of a directory."""
    return _found(plugin_types, bin_dirs, ask=executables)


def find_plugins_via(host_fs: HostFs, *, seconds: float = ANSWER_SECONDS) -> FindPlugins:
    """Return a `FindPlugins` that raises DeadlineExceeded for a directory that does not answer for `seconds`."""

    def find(plugin_types: Sequence[str], bin_dirs: Sequence[Path]) -> dict[str, Path]:
        what = f"find cni plugin {', '.join(plugin_types)}"

        def ask(directory: Path, names: Sequence[str]) -> list[str]:
            return host_fs.call(executables, directory, names, path=str(directory), what=what, seconds=seconds)

        return _found(plugin_types, bin_dirs, ask=ask)

    return find


def _found(plugin_types: Sequence[str], bin_dirs: Sequence[Path], *, ask: Ask) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for directory in bin_dirs:
        missing = [name for name in dict.fromkeys(plugin_types) if name not in found]
        if not missing:
            break
        found |= {name: directory / name for name in ask(directory, missing)}
    return found
