"""Updated limits of containers that Docker has no field for: a small file per container.

The limits at creation are in a label, which cannot change later. These files override it. They are rare, because the
kubelet updates CPU and memory, which Docker stores. A copy is kept in memory, so readers never wait for the disk.
"""

import re
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec
import structlog
from google.protobuf import json_format

from shim.api.v1 import api_pb2 as pb
from shim.base import atomic_files
from shim.checkpoint.envelope import Untrusted, parsed, seal, unseal
from shim.checkpoint.model import ContainerLimits
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError, reason_of

SUFFIX = ".json"
FILE_LIMIT = 1 << 20
"""Maximum bytes of a file."""
_ID = re.compile(r"[a-z0-9]{1,128}\Z")
_json = msgspec.json.Encoder(order="sorted")
_limits = msgspec.json.Decoder(ContainerLimits)

log = structlog.get_logger(__name__)


class LimitStore:
    """The files, and their content in memory. Thread-safe; the caller serializes writes for a container."""

    def __init__(self, directory: Path) -> None:
        """Load `directory`, created if missing. Raise ShimError only if it cannot be created or listed."""
        self._directory = directory
        self._lock = threading.Lock()
        self._known: dict[str, pb.LinuxContainerResources] = {}
        self._damaged: dict[str, str] = {}
        atomic_files.ensure_private_directory(directory)
        atomic_files.remove_temporaries(directory)
        with atomic_files.failing_as(f"list the limits in {directory}"):
            paths = sorted(directory.glob(f"[!.]*{SUFFIX}"))
        for path in paths:
            self._load(path)

    def get(self, container_id: str) -> pb.LinuxContainerResources | None:
        """Return the stored limits of a container, by its full id. The caller must not modify them."""
        with self._lock:
            return self._known.get(container_id)

    def check(self, container_id: str) -> None:
        """Raise FailedPrecondition, which names the file, if a container's file cannot be trusted.

        Without its limits the container might run with less than promised. Removing the container removes the file.
        """
        with self._lock:
            reason = self._damaged.get(container_id)
        if reason is not None:
            raise FailedPrecondition(
                f"the limits of container {container_id} are lost: {self._path(container_id)}: {reason}; remove it"
            )

    def put(self, container_id: str, resources: pb.LinuxContainerResources | None) -> None:
        """Store limits, or None to delete them. On an error the old limits stay.

        Raise ResourceExhausted if the disk is full.
        """
        if resources is None:
            self.delete(container_id)
            return
        atomic_files.ensure_private_directory(self._directory)
        # No container outlives a power loss.
        atomic_files.write_atomically(self._path(container_id), encode(container_id, resources), sync="content")
        with self._lock:
            self._known[container_id] = resources

    def delete(self, container_id: str) -> None:
        """Delete a container's limits, if any."""
        with self._lock:
            unknown = container_id not in self._known and container_id not in self._damaged
        if unknown:
            return
        atomic_files.remove_file(self._path(container_id))
        with self._lock:
            self._known.pop(container_id, None)
            self._damaged.pop(container_id, None)

    def keep_only(self, container_ids: Collection[str]) -> None:
        """Delete the limits of all other containers, which were removed externally. Log failures."""
        with self._lock:
            gone = {*self._known, *self._damaged}.difference(container_ids)
        for container_id in gone:
            try:
                self.delete(container_id)
            except ShimError as error:
                log.error("failed to remove limits of removed container", error=error)

    def _path(self, container_id: str) -> Path:
        if not _ID.match(container_id):
            raise InvalidArgument(f"container id {container_id[:140]!r} cannot name a file of limits")
        return self._directory / f"{container_id}{SUFFIX}"

    def _load(self, path: Path) -> None:
        container_id = path.name.removesuffix(SUFFIX)
        try:
            self._known[container_id] = decode(
                atomic_files.read_regular(path, most=FILE_LIMIT), container_id=container_id
            )
        except (OSError, Untrusted) as error:
            reason = str(error) if isinstance(error, Untrusted) else reason_of(error)
            self._damaged[container_id] = reason
            log.error("unusable limits file of container", container=container_id, file=str(path), reason=reason)


def encode(container_id: str, resources: pb.LinuxContainerResources) -> bytes:
    """Return the content of a container's file. Raise InvalidArgument if it is too large."""
    plain = json_format.MessageToDict(resources, preserving_proto_field_name=True)
    content = seal(_json.encode(ContainerLimits(container_id=container_id, resources=plain)))
    if len(content) > FILE_LIMIT:
        raise InvalidArgument(
            f"keep the limits of container {container_id}: {len(content)} bytes, the limit is {FILE_LIMIT}"
        )
    return content


def decode(content: bytes, *, container_id: str) -> pb.LinuxContainerResources:
    """Parse the content of a container's file. Raise Untrusted with the reason."""
    limits = parsed(_limits, unseal(content))
    if limits.container_id != container_id:
        raise Untrusted(f"it is of container {limits.container_id!r}")
    try:
        return json_format.ParseDict(limits.resources, pb.LinuxContainerResources(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise Untrusted(str(error)) from error
