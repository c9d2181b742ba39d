"""The file system of a node, at `/` or below a directory that an image is made in."""

import stat
from dataclasses import dataclass
from pathlib import Path

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, reason_of

_BYTES = 1 << 20
"""Of a configuration file that is read before it is replaced or merged."""
_MODE = 0o644
_PROGRAM_MODE = 0o755
_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Node:
    """A node whose `/` is `root`. Paths of its methods are absolute, as the node itself names them."""

    root: Path

    @property
    def is_this_machine(self) -> bool:
        """Return whether it is the running system."""
        return self.root == Path("/")

    def at(self, path: Path) -> Path:
        """Return where the path is for this process."""
        return self.root / path.relative_to("/")

    def exists(self, path: Path) -> bool:
        """Return whether there is anything, also a dangling link."""
        place = self.at(path)
        return place.is_symlink() or place.exists()

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, None where there is none. Raise InvalidArgument for what is no file."""
        try:
            return atomic_files.read_regular(self.at(path), most=_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidArgument(f"read {path}: {reason_of(error)}") from error

    def read_text(self, path: Path) -> str | None:
        """Return the content of a file as text, None where there is none. Raise InvalidArgument."""
        content = self.read(path)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error

    def missing_directories(self, path: Path) -> list[Path]:
        """Return the directories above a path that are not there, outermost first."""
        return [above for above in reversed(path.parents) if not self.at(above).is_dir()]

    def write(self, path: Path, content: bytes, *, is_program: bool = False) -> None:
        """Replace a file; a new one can be read by all, one that is there keeps its mode. All can run a program."""
        place = self.at(path)
        self.make_directories(path)
        with atomic_files.failing_as(f"write {path}"):
            mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else _MODE
            mode |= _PROGRAM_MODE if is_program else 0
        # A link to the file of an administrator stays one.
        target = place.resolve() if place.is_symlink() else place
        atomic_files.write_atomically(target, content)
        with atomic_files.failing_as(f"change the mode of {path}"):
            target.chmod(mode)

    def make_directories(self, path: Path) -> None:
        """Make what is missing above a path, open to all whatever the umask."""
        for above in self.missing_directories(path):
            with atomic_files.failing_as(f"create the directory {above}"):
                self.at(above).mkdir()
                self.at(above).chmod(_DIRECTORY_MODE)

    def link(self, path: Path, target: str) -> None:
        """Make a symbolic link where nothing is."""
        self.make_directories(path)
        with atomic_files.failing_as(f"link {path}"):
            self.at(path).symlink_to(target)

    def remove(self, path: Path) -> None:
        """Remove a file or a link; nothing there is fine."""
        atomic_files.remove_file(self.at(path))

    def remove_directory_if_empty(self, path: Path) -> None:
        """Remove a directory that holds nothing."""
        place = self.at(path)
        with atomic_files.failing_as(f"remove the directory {path}"):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
