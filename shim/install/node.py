"""The file system of a node, at `/` or below the directory of an image being built."""

import stat
from dataclasses import dataclass
from pathlib import Path

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, reason_of

_BYTES = 1 << 20
"""Maximum size of a configuration file that is replaced or merged."""
_MODE = 0o644
_PROGRAM_MODE = 0o755
_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Node:
    """A node whose `/` is `root`. Its methods take absolute paths as the node sees them."""

    root: Path

    @property
    def is_this_machine(self) -> bool:
        """Return whether this is the running system."""
        return self.root == Path("/")

    def at(self, path: Path) -> Path:
        """Return the path as this process sees it."""
        return self.root / path.relative_to("/")

    def exists(self, path: Path) -> bool:
        """Return whether the path exists, even as a dangling link."""
        place = self.at(path)
        return place.is_symlink() or place.exists()

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, None if it is missing. Raise InvalidArgument if it is not a regular file."""
        try:
            return atomic_files.read_regular(self.at(path), most=_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidArgument(f"read {path}: {reason_of(error)}") from error

    def read_text(self, path: Path) -> str | None:
        """Return the content of a file as text, None if it is missing. Raise InvalidArgument."""
        content = self.read(path)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error

    def missing_directories(self, path: Path) -> list[Path]:
        """Return the missing directories above a path, outermost first."""
        return [above for above in reversed(path.parents) if not self.at(above).is_dir()]

    def write(self, path: Path, content: bytes, *, is_program: bool = False) -> None:
        """Replace a file.

        A new file is readable by all, an existing one keeps its mode; a program is executable by all.
        """
        place = self.at(path)
        self.make_directories(path)
        with atomic_files.failing_as(f"write {path}"):
            mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else _MODE
            mode |= _PROGRAM_MODE if is_program else 0
        # Keep an administrator's link, and replace its target.
        target = place.resolve() if place.is_symlink() else place
        atomic_files.write_atomically(target, content)
        with atomic_files.failing_as(f"change the mode of {path}"):
            target.chmod(mode)

    def make_directories(self, path: Path) -> None:
        """Create the missing directories above a path, with mode 0755 whatever the umask."""
        for above in self.missing_directories(path):
            with atomic_files.failing_as(f"create the directory {above}"):
                self.at(above).mkdir()
                self.at(above).chmod(_DIRECTORY_MODE)

    def link(self, path: Path, target: str) -> None:
        """Create a symbolic link."""
        self.make_directories(path)
        with atomic_files.failing_as(f"link {path}"):
            self.at(path).symlink_to(target)

    def remove(self, path: Path) -> None:
        """Remove a file or link, if it exists."""
        atomic_files.remove_file(self.at(path))

    def remove_directory_if_empty(self, path: Path) -> None:
        """Remove an empty directory."""
        place = self.at(path)
        with atomic_files.failing_as(f"remove the directory {path}"):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
