"""Orders for the server's OCI runtime: files named by container id, in the directory that the runtime reads.

Like containers, orders survive the server and a reboot: a container that a user restarts by hand needs its order.
"""

from collections.abc import Collection
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, ShimError
from shim.oci_runtime.order import FILE_LIMIT, Order, encode

log = structlog.get_logger(__name__)


def put(directory: Path, order: Order) -> None:
    """Write the order of a container, creating the directory if it is missing. Raise ShimError."""
    content = encode(order)
    if len(content) > FILE_LIMIT:
        raise InvalidArgument(f"order of container {order.container}: {len(content)} bytes, at most {FILE_LIMIT}")
    atomic_files.ensure_private_directory(directory)
    atomic_files.write_atomically(directory / order.container, content)


def delete(directory: Path, container_id: str) -> None:
    """Remove the order of a container, if it has an order."""
    atomic_files.remove_file(directory / container_id)


def keep_only(directory: Path, container_ids: Collection[str], *, before: float) -> None:
    """Remove the orders older than `before` (seconds since the epoch) of containers that were removed externally.

    `container_ids` are the existing containers. Orders that cannot be removed are logged.
    """
    if not directory.is_dir():
        return
    atomic_files.remove_temporaries(directory)
    for path in directory.iterdir():
        try:
            if path.name not in container_ids and path.stat().st_mtime < before:
                delete(directory, path.name)
        except FileNotFoundError:
            continue  # the container has been removed meanwhile
        except ShimError as error:
            log.error("failed to remove order of removed container", container=path.name, error=error)
