"""Carries out a PodOrder: writes a consistent checkpoint of several containers to a directory.

`shim.criu.layout` describes the directory.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shim.criu import order as answers
from shim.criu.archive import LOG_LIMIT, Budget, open_end
from shim.criu.dump import Failure, Paused, check_tree, check_wanted, dump, environment_for, write_diff
from shim.criu.layout import MANIFEST, manifest, needed_files
from shim.criu.order import PodOrder, Source
from shim.oci_runtime.restore import DIFF, IMAGES

_OTHERS_MAY_WRITE = 0o022


def checkpoint_pod(order: PodOrder) -> None:
    """Write the checkpoint. The containers keep running.

    Raise Failure, Refused or OSError, and leave the directory as it was.
    """
    work = Path(order.work)
    with opened_output(order.directory) as directory:
        if any(os.scandir(directory)):
            raise Failure(answers.NOT_POSSIBLE, f"{order.directory} is not empty")
        _write(order, directory, work)


def _write(order: PodOrder, directory: Path, work: Path) -> None:
    try:
        work.mkdir(mode=0o700, parents=True)
        _dump_all(order, directory, environment_for(order.path, work))
        for number, source in enumerate(order.sources):
            _write_documents(source, directory / str(number))
        _write_manifest(order, directory)
        check_wanted()
    except BaseException:
        empty(directory)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def empty(directory: Path) -> None:
    """Remove the content of a directory. Subdirectories that cannot be removed stay."""
    for name in os.listdir(directory):  # noqa: PTH208 - names alone
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def opened_output(path: str) -> Iterator[Path]:
    """Open the directory of a checkpoint, and yield a path that refers to this directory even if it is renamed.

    Raise Failure if anybody but root may write to it, because a checkpoint is as powerful as root. Raise OSError.
    """
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
        if found.st_uid != 0 or found.st_mode & _OTHERS_MAY_WRITE:
            raise Failure(answers.NOT_POSSIBLE, f"{path} must belong to root, and nobody else may write to it")
        # Not /proc/self, because runc and criu use the path too.
        yield Path(f"/proc/{os.getpid()}/fd/{opened}")
    finally:
        os.close(opened)


def _dump_all(order: PodOrder, directory: Path, environment: dict[str, str]) -> None:
    budget = Budget()
    with ExitStack() as paused:
        for source in order.sources:
            paused.enter_context(Paused(source, environment))
        for number, source in enumerate(order.sources):
            place = directory / str(number)
            place.mkdir(mode=0o700)
            check_tree(source)
            dump(source, images=place / IMAGES, logs=place, environment=environment)
            for image in (place / IMAGES).iterdir():
                budget.take(image.stat().st_size)
            write_diff(source, place / DIFF, budget=budget)


def _write_documents(source: Source, place: Path) -> None:
    for name, content in source.documents.items():
        (place / name).write_text(content)
    if source.log:
        with suppress(FileNotFoundError), open_end(Path(source.log), limit=LOG_LIMIT) as log:  # during a rotation
            (place / "container.log").write_bytes(log.read(LOG_LIMIT))


def _write_manifest(order: PodOrder, directory: Path) -> None:
    entries = []
    for number, document in enumerate(order.documents):
        check_wanted()
        name = str(number)
        entries.append({**document, "directory": name, "files": needed_files(directory / name, check=check_wanted)})
    (directory / MANIFEST).write_bytes(manifest(entries))
