"""Files of a pod's checkpoint: its manifest, and the layers of changed files that are applied to a root."""

import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shim.criu.dump import Failure
from shim.criu.layout import MANIFEST, manifest
from shim.criu.take import parsed_manifest
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.oci_runtime.diff import apply
from shim.oci_runtime.order import OrderError
from shim.sandbox.manifest import check_same, entries_by_name, read_manifest
from tests.fuzz.target import NESTED, Run, Target
from tests.pods import container_config

ENTRY: dict[str, Any] = {
    "name": "app",
    "directory": "0",
    "layers": ["sha256:1"],
    "config": {"metadata": {"name": "app"}, "mounts": [{"container_path": "/data", "host_path": "/x"}]},
    "files": {"checkpoint/core-1.img": [5, 7], "rootfs-diff.tar": [10240, 9], "spec.dump": [2, 3]},
}


@contextmanager
def _manifests() -> Iterator[Run]:
    """Read a manifest with the worker's code, and then with the server's."""
    config = container_config("app")
    with tempfile.TemporaryDirectory() as directory:

        def run(data: bytes) -> None:
            parsed_manifest(data)
            (Path(directory) / MANIFEST).write_bytes(data)
            entries = entries_by_name(read_manifest(Path(directory)), [config])
            check_same(entries["app"], config, layers=["sha256:1"], field="container_configs[0]")

        yield run


@contextmanager
def _layers() -> Iterator[Run]:
    """Apply a layer to a root, and check that files outside of the root stay unchanged."""
    with tempfile.TemporaryDirectory() as directory:
        root, outside = Path(directory, "root"), Path(directory, "outside")
        outside.write_text("untouched")

        def run(data: bytes) -> None:
            root.mkdir(exist_ok=True)
            if not (root / "out").is_symlink():
                (root / "out").symlink_to("..")
            layer = Path(directory, "layer")
            layer.write_bytes(data)
            try:
                apply(str(layer), str(root))
            finally:
                assert outside.read_text() == "untouched"
                assert {path.name for path in Path(directory).iterdir()} <= {"root", "outside", "layer"}

        yield run


def _layer(*entries: tuple[str, dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in entries:
            entry = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    return file.getvalue()


TARGETS = (
    Target(
        name="checkpoint-manifest",
        corpus=(manifest([ENTRY]), json.dumps({"version": 1, "containers": [ENTRY, ENTRY]}).encode()),
        declared=(Failure, FailedPrecondition, InvalidArgument),
        open=_manifests,
        words=(b'"files"', b'"containers"', b'"config"', b'"../x"', b'"checkpoint/.."', b"-1", b"null", b"[]"),
        enormous=NESTED,
        memory=64 << 20,  # a file is read into a buffer of the bound's size
    ),
    Target(
        name="checkpoint-layer",
        corpus=(
            _layer(("d", {"type": tarfile.DIRTYPE, "mode": 0o755}), ("d/f", {"size": 700, "mtime": 5.5})),
            _layer((".wh.out", {}), ("l", {"type": tarfile.SYMTYPE, "linkname": "/x"}), ("d/.wh..wh..opq", {})),
            _layer(("f", {"pax_headers": {"SCHILY.xattr.user.a": "b", "mtime": "1e300"}}), ("out/outside", {})),
            _layer(("h", {"type": tarfile.LNKTYPE, "linkname": "out/outside"})),
        ),
        declared=(OrderError, OSError, tarfile.TarError),
        open=_layers,
        words=(b"../outside", b"out/outside", b"ustar\x00", b"27 mtime=", b"GNU.sparse.size=", b"path=", b"/"),
    ),
)
