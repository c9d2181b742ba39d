"""Large images, written to a registry without an engine: `docker push` would spend long on compression."""

import gzip
import hashlib
import http.client
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from integration.node.images import architecture
from integration.node.registry import Registry

_MIB = 1024 * 1024
_DOCKER = "application/vnd.docker"


class _Noise:
    """A file object for tarfile with random bytes, which repeat beyond the window of any compression."""

    def __init__(self) -> None:
        self._bytes = os.urandom(_MIB)

    def read(self, size: int) -> bytes:
        return self._bytes[:size]


class _Hashed:
    """Writes to a file, and hashes the bytes."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Layer:
    path: Path
    diff_id: str
    digest: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def push_large_image(registry: Registry, *, name: str, size: int, directory: Path, layers: int = 1) -> str:
    """Push an image with `layers` layers of `size` random bytes each; return its reference.

    `name` is a repository with a tag; `directory` has room for the layers.
    """
    repository, _, tag = name.partition(":")
    made = [_write_layer(directory / f"layer-{number}", size=size) for number in range(layers)]
    diff_ids = [layer.diff_id for layer in made]
    config = msgspec.json.encode(
        {"architecture": architecture(), "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    )
    config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_DOCKER}.distribution.manifest.v2+json",
        "config": _part("container.image.v1+json", config_digest, size=len(config)),
        "layers": [_part("image.rootfs.diff.tar.gzip", layer.digest, size=layer.size) for layer in made],
    }
    connection = http.client.HTTPConnection(registry.address, timeout=60, blocksize=_MIB)
    for layer in made:
        with layer.path.open("rb") as content:
            _push_blob(connection, repository, layer.digest, content, size=layer.size)
    _push_blob(connection, repository, config_digest, config, size=len(config))
    headers = {"Content-Type": str(manifest["mediaType"])}
    _ask(connection, "PUT", f"/v2/{repository}/manifests/{tag}", msgspec.json.encode(manifest), headers)
    connection.close()
    for layer in made:
        layer.path.unlink()
    return f"{registry.address}/{name}"


def _part(kind: str, digest: str, *, size: int) -> dict[str, object]:
    return {"mediaType": f"{_DOCKER}.{kind}", "size": size, "digest": digest}


def _write_layer(path: Path, *, size: int) -> _Layer:
    """Write a layer; return the digests of its content and of the compressed file."""
    with path.open("wb") as file:
        outer = _Hashed(file)
        # Stored, not compressed: noise has nothing to compress.
        with gzip.GzipFile(fileobj=outer, mode="wb", compresslevel=0, mtime=0) as packed:  # type: ignore[call-overload]  # gzip only writes
            inner = _Hashed(packed)
            with tarfile.open(fileobj=inner, mode="w|", bufsize=_MIB) as archive:  # type: ignore[call-overload]  # likewise
                entry = tarfile.TarInfo("noise")
                entry.size = size
                archive.copybufsize = _MIB
                archive.addfile(entry, _Noise())
    return _Layer(path, inner.digest, outer.digest)


def _push_blob(
    connection: http.client.HTTPConnection, repository: str, digest: str, content: IO[bytes] | bytes, *, size: int
) -> None:
    upload = _ask(connection, "POST", f"/v2/{repository}/blobs/uploads/", b"", {"Content-Length": "0"})
    separator = "&" if "?" in upload else "?"
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    _ask(connection, "PUT", f"{upload}{separator}digest={digest}", content, headers)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: IO[bytes] | bytes, headers: dict[str, str]
) -> str:
    """Send a request; return the Location of the answer."""
    connection.request(method, path, body, headers)
    with connection.getresponse() as answer:
        said = answer.read()
        if answer.status not in {201, 202}:
            raise RuntimeError(f"{method} {path}: {answer.status} {said.decode(errors='replace')}")
        return answer.getheader("Location", "")
