"""Carries out a ContainerOrder: checkpoints one container to an archive (`shim.criu.archive`)."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from shim.criu import order as answers
from shim.criu.archive import LOG_LIMIT, Budget, Writer
from shim.criu.dump import Failure, Paused, check_wanted, dump, environment_for, write_diff
from shim.criu.order import ContainerOrder
from shim.oci_runtime.restore import DIFF, IMAGES


def checkpoint_container(order: ContainerOrder) -> None:
    """Write the archive. Raise Failure, Refused or OSError, and leave no file. The container keeps running."""
    work, location = Path(order.work), Path(order.location)
    if os.path.lexists(location):
        raise Failure(answers.EXISTS, f"{location} already exists")
    archive = _unnamed_file(location.parent)
    try:
        work.mkdir(mode=0o700, parents=True)
        environment = environment_for(order.path, work)
        with Paused(order.source, environment):
            dump(order.source, images=work / IMAGES, logs=work / "logs", environment=environment)
            write_diff(order.source, work / DIFF, budget=Budget())
        with os.fdopen(archive, "wb", closefd=False) as file:
            _write_archive(order, work, Writer(file, budget=Budget(), check=check_wanted))
        os.fsync(archive)
        _name(archive, location)
    finally:
        os.close(archive)
        shutil.rmtree(work, ignore_errors=True)


def _unnamed_file(directory: Path) -> int:
    """Return a descriptor of an unnamed file, which vanishes unless `_name` is called. Raise Failure or OSError."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            text = f"the file system of {directory} does not support O_TMPFILE"
            raise Failure(answers.NOT_POSSIBLE, text) from error
        raise


def _name(archive: int, location: Path) -> None:
    """Give the complete archive its name. Raise Failure if the server has cancelled, or if the name is taken."""
    check_wanted()
    try:
        # Python follows the link only if `src_dir_fd` is given. The absolute path makes its value irrelevant.
        os.link(f"/proc/self/fd/{archive}", location, src_dir_fd=archive, follow_symlinks=True)
    except FileExistsError as error:
        raise Failure(answers.EXISTS, f"{location} already exists") from error
    try:
        check_wanted()
    except Failure:
        location.unlink()
        raise


def _write_archive(order: ContainerOrder, work: Path, writer: Writer) -> None:
    for name, content in sorted(order.source.documents.items()):
        writer.add_content(name, content.encode())
    writer.add_directory(IMAGES, work / IMAGES)
    writer.add_file(DIFF, work / DIFF)
    if order.source.log:
        with suppress(FileNotFoundError):  # during a rotation
            writer.add_end("container.log", Path(order.source.log), limit=LOG_LIMIT)
    for name in ("dump.log", "stats-dump"):
        writer.add_file(name, work / "logs" / name)
    writer.close()
