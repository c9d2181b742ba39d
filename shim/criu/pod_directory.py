"""Carry out a PodOrder: the checkpoints of several containers, all of one moment, in a directory.

`shim.criu.layout` describes the directory.
"""

import os
import shutil
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from shim.criu import order as answers
from shim.criu.archive import LOG_LIMIT, Budget, open_end
from shim.criu.dump import Failure, Paused, check_tree, check_wanted, dump, environment_for, write_diff
from shim.criu.layout import DIFF, IMAGES, MANIFEST, manifest, needed_files
from shim.criu.order import PodOrder, Source

_OTHERS_MAY_WRITE = 0o022


def checkpoint_pod(order: PodOrder) -> None:
    """Write the checkpoints. All containers go on, and the directory is empty when this raises.

    Failure, Refused or OSError.
    """
    directory, work = Path(order.directory), Path(order.work)
    _check_empty(directory)
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
    """Remove what is in a directory, as far as that can be done."""
    for name in os.listdir(directory):  # noqa: PTH208 - names alone
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_empty(directory: Path) -> None:
    """Check that a directory can take a checkpoint, which is as powerful as root: nobody else may change it."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Failure(answers.NOT_POSSIBLE, f"{directory} is not a directory")
    if found.st_uid != 0 or found.st_mode & _OTHERS_MAY_WRITE:
        raise Failure(answers.NOT_POSSIBLE, f"{directory} must belong to root, and nobody else may write to it")
    if any(os.scandir(directory)):
        raise Failure(answers.NOT_POSSIBLE, f"{directory} is not empty")


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
        with suppress(FileNotFoundError), open_end(Path(source.log), limit=LOG_LIMIT) as log:  # it is being rotated
            (place / "container.log").write_bytes(log.read(LOG_LIMIT))


def _write_manifest(order: PodOrder, directory: Path) -> None:
    entries = []
    for number, document in enumerate(order.documents):
        check_wanted()
        name = str(number)
        entries.append({**document, "directory": name, "files": needed_files(directory / name)})
    (directory / MANIFEST).write_bytes(manifest(entries))
