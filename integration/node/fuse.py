"""A volume whose file server can stop answering: a FUSE file system with one file, served by a thread.

While it hangs, each process that uses it waits in the kernel, and mostly cannot be killed. So this process must not use
it. The layouts are from linux/fuse.h, protocol 7.31.
"""

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from integration.node.commands import NodeError
from integration.node.mounts import unmount_all

FILE = "file"
"""Name of the only file of a volume."""


class _Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_UNANSWERED = (_Op.FORGET, _Op.BATCH_FORGET, _Op.INTERRUPT)

_ROOT_NODE, _FILE_NODE = 1, 2
_MODES = {_ROOT_NODE: 0o40755, _FILE_NODE: 0o100644}
_SIZE = 4096
_REGULAR = 8
"""Type of a file in a directory entry, DT_REG."""
_LARGEST_REQUEST = 1 << 17

_libc = ctypes.CDLL(None, use_errno=True)


class HangingVolume:
    """A mounted file system that answers until it hangs. Thread-safe."""

    def __init__(self, path: Path, *, name: str = FILE, content: bytes = bytes(_SIZE)) -> None:
        """Create the directory `path`, and mount the file system with one file there."""
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file = path / name
        self._answers = _Answers(name.encode(), content)
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._hangs: Callable[[int], bool] | None = None
        self._kept: list[tuple[int, int, int, bytes]] = []
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"volume", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
            raise NodeError(f"mount a FUSE volume on {path}: {os.strerror(ctypes.get_errno())}")
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)
        self._thread.start()

    @contextmanager
    def hanging(self, *, writes_only: bool = False) -> Iterator[None]:
        """While the block runs answer no request, or no write; afterwards answer the pending requests."""
        with self._lock:
            self._hangs = (lambda operation: operation == _Op.WRITE) if writes_only else (lambda _: True)
        try:
            yield
        finally:
            with self._lock:
                self._hangs = None
                kept, self._kept = self._kept, []
                for request in kept:
                    self._answer(*request)

    def close(self) -> None:
        """Unmount the file system; pending requests fail."""
        unmount_all(self.path, abandon=True)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _LARGEST_REQUEST)
            except InterruptedError:
                continue
            except OSError:  # unmounted
                return
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in _UNANSWERED:
                continue
            with self._lock:
                if self._hangs is not None and self._hangs(operation):
                    self._kept.append((operation, unique, node, request[40:]))
                else:
                    self._answer(operation, unique, node, request[40:])

    def _answer(self, operation: int, unique: int, node: int, body: bytes) -> None:
        answer = self._answers.to(operation, node, body)
        error, payload = (-answer, b"") if isinstance(answer, int) else (0, answer)
        with suppress(OSError):  # the requesting process has gone
            os.write(self._device, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of a working volume. Data written to its file is discarded."""

    name: bytes
    content: bytes

    def to(self, operation: int, node: int, body: bytes) -> bytes | int:
        """Return the payload of an answer, or an errno."""
        match operation:
            case _Op.INIT:
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 12, 65536, 1, 16, 0, 0)
            case _Op.LOOKUP:
                if node == _ROOT_NODE and body == self.name + b"\0":
                    return struct.pack("<QQQQII", _FILE_NODE, 0, 0, 0, 0, 0) + self._attributes(_FILE_NODE)
                return errno.ENOENT
            case _Op.GETATTR | _Op.SETATTR:
                return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
            case _Op.OPEN | _Op.OPENDIR:
                return struct.pack("<QII", 1, 0, 0)
            case _Op.READ:
                offset, size = struct.unpack_from("<QI", body, 8)
                return self.content[offset : offset + size]
            case _Op.READDIR:
                return self._entry() if struct.unpack_from("<Q", body, 8)[0] == 0 else b""
            case _Op.WRITE:
                return struct.pack("<II", struct.unpack_from("<I", body, 16)[0], 0)
            case _Op.STATFS:
                return struct.pack("<QQQQQIIII24x", 1000, 1000, 1000, 1000, 1000, 4096, 255, 4096, 0)
            case _Op.RELEASE | _Op.FSYNC | _Op.FLUSH | _Op.RELEASEDIR | _Op.DESTROY:
                return b""
        return errno.ENOSYS

    def _entry(self) -> bytes:
        entry = struct.pack("<QQII", _FILE_NODE, 1, len(self.name), _REGULAR) + self.name
        return entry + bytes(-len(entry) % 8)

    def _attributes(self, node: int) -> bytes:
        links, size = (2, _SIZE) if node == _ROOT_NODE else (1, len(self.content))
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, 8, *[0] * 6, _MODES[node], links, 0, 0, 0, _SIZE, 0)
