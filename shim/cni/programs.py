"""Where the programs of plugins are, found by the helper process: their directories may lie on a volume that hangs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shim.cni.executable import executables
from shim.hostfs.client import ANSWER_SECONDS, HostFs

FindPlugins = Callable[[Sequence[str], Sequence[Path]], dict[str, Path]]
"""Returns the programs of plugin types: of each the first of that name in the directories, in their order.

Without those that there are not. All at once, since each question to the helper process wakes three threads.
"""

Ask = Callable[[Path, Sequence[str]], list[str]]
"""Returns those of the names that are programs in a directory."""


def find_plugins(plugin_types: Sequence[str], bin_dirs: Sequence[Path]) -> dict[str, Path]:
    """Find plugins as `FindPlugins` does. May hang with the volume of a directory."""
    return _found(plugin_types, bin_dirs, ask=executables)


def finding_by(host_fs: HostFs, *, seconds: float = ANSWER_SECONDS) -> FindPlugins:
    """Return a `find_plugins` that is bounded: DeadlineExceeded for a directory that does not answer for `seconds`."""

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
