"""Images built on the spot without a registry; the same input gives the same image id everywhere.

They are written as `docker save` archives. Both image stores of every engine load that format. `docker import` cannot
set an entrypoint, and `docker build` uses another builder in each version.
"""

import hashlib
import io
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import docker
import msgspec

from integration.node.commands import NodeError, run

PAUSE = "registry.k8s.io/pause:3.10.2"
BUSYBOX = "docker.io/library/busybox:latest"

_AT_A_TIME = 500
"""Images in one archive."""
_EPOCH = "1970-01-01T00:00:00Z"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIRECTORIES = ("bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "var", "var/www")
_PASSWD = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/:/bin/false
www:x:1000:1000:www:/home:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
"""
_GROUP = """\
root:x:0:
daemon:x:1:
staff:x:50:www
www:x:1000:
video:x:44:www
nobody:x:65534:
"""
# The shell waits for its job with the trap set; `wait` also reaps adopted children.
PAUSE_SCRIPT = "test \"$0\" != -v || exit 0; trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"


@dataclass(frozen=True, slots=True)
class File:
    """An entry of a layer: a file with content, a symbolic link if `link` is set, a directory or a FIFO."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    directory: bool = False
    fifo: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image to build: its reference, the files of its first layer, and Docker's container configuration.

    `config` has the keys of an image's `config` object: Entrypoint, Cmd, Env, User, Labels, Volumes, StopSignal,
    Healthcheck, ...
    """

    reference: str
    files: tuple[File, ...]
    config: Mapping[str, object] = field(default_factory=dict)
    above: tuple[tuple[File, ...], ...] = ()
    """The files of further layers, lowest first."""


def architecture() -> str:
    """Return this machine's architecture as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def load(api: docker.APIClient, image: Image) -> str:
    """Load the image into the engine; return its id there."""
    for line in api.load_image(archive(image)):  # type: ignore[no-untyped-call]  # absent from types-docker
        if "error" in line:
            raise NodeError(f"load {image.reference}: {line['error']}")
    found = image_id(api, image.reference)
    if found is None:
        raise NodeError(f"load {image.reference}: the engine accepted the image but does not list it")
    return found


def load_many(api: docker.APIClient, references: Sequence[str]) -> None:
    """Load images with one small layer that differ in a label, in batches."""
    for start in range(0, len(references), _AT_A_TIME):
        made = [
            Image(reference, (File("content", b"of all"),), {"Labels": {"reference": reference}})
            for reference in references[start : start + _AT_A_TIME]
        ]
        for line in api.load_image(archives(made)):  # type: ignore[no-untyped-call]  # absent from types-docker
            if "error" in line:
                raise NodeError(f"load {len(made)} images: {line['error']}")


def image_id(api: docker.APIClient, reference: str) -> str | None:
    """Return the id of an image of the engine, None if it does not have the image."""
    try:
        found = api.inspect_image(reference)  # type: ignore[no-untyped-call]  # absent from types-docker
    except docker.errors.ImageNotFound:
        return None
    return str(found["Id"])


def archive(image: Image) -> bytes:
    """Return the image in the format of `docker save`."""
    return archives([image])


def archives(made: Iterable[Image]) -> bytes:
    """Return images as one archive in the format of `docker save`."""
    files: dict[str, File] = {}
    manifest = []
    for image in made:
        layers = {_digest(layer): layer for layer in map(tar_of, (image.files, *image.above))}
        config = msgspec.json.encode(
            {
                "architecture": architecture(),
                "os": "linux",
                "created": _EPOCH,
                "config": dict(image.config),
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
                "history": [{"created": _EPOCH, "created_by": "pydockershim integration"} for _ in layers],
            }
        )
        config_name = f"{_digest(config)}.json"
        names = {f"{digest}/layer.tar": layer for digest, layer in layers.items()}
        # Docker's archives use the short form; the containerd store expands it.
        tag = image.reference.removeprefix("docker.io/library/")
        manifest.append({"Config": config_name, "RepoTags": [tag], "Layers": [*names]})
        files |= {name: File(name, content) for name, content in {config_name: config, **names}.items()}
    return tar_of([*files.values(), File("manifest.json", msgspec.json.encode(manifest))])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar_of(files: Iterable[File]) -> bytes:
    """Return files as an archive: the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            tar.addfile(_entry(file), io.BytesIO(file.content))
    return buffer.getvalue()


def _entry(file: File) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(file.path)  # times and owners stay 0: the same input gives the same bytes
    entry.mode, entry.size, entry.linkname = file.mode, len(file.content), file.link
    if file.directory:
        entry.type = tarfile.DIRTYPE
    elif file.link:
        entry.type = tarfile.SYMTYPE
    elif file.fifo:
        entry.type = tarfile.FIFOTYPE
    return entry


def pause_image(busybox: Path, *, compiler: str | None = "gcc") -> Image:
    """Return the pause image: compiled if a C compiler exists, otherwise a shell script with the same behaviour."""
    if compiler is not None and shutil.which(compiler):
        files: tuple[File, ...] = (File("pause", _compiled(compiler), mode=0o755),)
        entrypoint = ["/pause"]
    else:
        files = (File("busybox", busybox.read_bytes(), mode=0o755),)
        entrypoint = ["/busybox", "sh", "-c", PAUSE_SCRIPT]
    return Image(PAUSE, files, {"Entrypoint": entrypoint, "User": "65535:65535", "WorkingDir": "/"})


def _compiled(compiler: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "pause")
        source = Path(__file__).with_name("pause.c")
        run([compiler, "-static", "-Os", "-s", "-Wall", "-Werror", "-o", output, source], timeout=60)
        return output.read_bytes()


@cache
def _applets(busybox: Path) -> list[str]:
    return run([busybox, "--list"], timeout=10).split()


def busybox_image(busybox: Path, *, reference: str = BUSYBOX, config: Mapping[str, object] | None = None) -> Image:
    """Return a small Linux for tests: busybox under all its names, a few users and a web page.

    `config` is added to the configuration, for a user, labels, a health check and so on.
    """
    files = (
        *(File(path, mode=0o755, directory=True) for path in _DIRECTORIES),
        File("tmp", mode=0o1777, directory=True),
        File("bin/busybox", busybox.read_bytes(), mode=0o755),
        *(File(f"bin/{applet}", link="busybox") for applet in _applets(busybox) if applet != "busybox"),
        File("etc/passwd", _PASSWD.encode()),
        File("etc/group", _GROUP.encode()),
        File("var/www/index.html", b"it works\n"),
    )
    return Image(reference, files, {"Cmd": ["sh"], "Env": ["PATH=/bin"], **(config or {})})
