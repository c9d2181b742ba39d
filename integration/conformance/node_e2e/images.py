"""Substitutes of the images of Kubernetes' node suite, of busybox and of programs from Kubernetes' tree."""

import gzip
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from integration.conformance.binaries import Binaries
from integration.conformance.registries import Published, effective_user, web_server
from integration.node.commands import run
from integration.node.images import File, Image, architecture, busybox_image, pause_image, tar_of
from integration.node.isolation import Node, new_home
from integration.node.packages import Bundle, Unpacked, ensure_unpacked
from integration.node.registry import make_certificate

NETCAT = Bundle(name="netcat", suites=("bookworm",), packages=("netcat-openbsd", "libbsd0", "libmd0"))

_OF_PROGRAMS = {
    "sampledeviceplugin": "sample-device-plugin:1.7",
    "regression-issue-74839": "regression-issue-74839:1.5",
}
_PASSWD = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
"""
_GROUP = """\
root:x:0:
daemon:x:1:
nobody:x:65534:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
"""
_NMETER = """\
#!/usr/bin/bash
# Debian's busybox lacks this program. Prints the time of day, as busybox's does for '%3t'.
now=$EPOCHREALTIME
seconds=${now%.*} fraction=${now#*.}
printf '%(%T)T.%s\\n' "$seconds" "${fraction:0:3}"
"""
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PORTS = (80, 5000, 8080, 8081, 9376)
_PROGRAM_SECONDS = 30


def images(node: Node, found: Binaries) -> Iterator[Published]:
    """Yield the images with the tags that the suite of 1.36 asks for."""
    plain = _files(node)
    for tag in ("1.37.0-1", "1.36.1-1"):
        yield _published(f"busybox:{tag}", plain, Cmd=["sh"])
    yield _published("nonroot:1.5", plain, Cmd=["sh"], User="1234")
    yield _published("ipc-utils:1.4", [*plain, *_programs("ipcs", "ipcmk")], Cmd=["sh"])
    yield _published("glibc-dns-testing:2.0.0", _files(node, *_resolver()), Cmd=["sh"])
    agnhost = list(_agnhost(node, found["agnhost"]))
    for tag in ("2.63.0", "2.55"):
        ports: dict[str, object] = {f"{port}/tcp": {} for port in _PORTS}
        yield _published(f"agnhost:{tag}", agnhost, Entrypoint=["/agnhost"], Cmd=["pause"], ExposedPorts=ports)
    for name in ("kitten", "nautilus"):
        pet = [*agnhost, File("data.json", msgspec.json.encode({"image": f"{name}.jpg"}))]
        pet.append(File("etc/os-release", b'NAME="Alpine Linux"\nID=alpine\n'))
        yield _published(f"{name}:1.8", pet, Entrypoint=["/agnhost"], Cmd=["test-webserver"])
    for tag in ("1.15-4", "1.27-0"):
        yield Published(web_server(node, 80), [f"e2e-test-images/nginx:{tag}"])
    (own,) = effective_user().files
    yield _published("nonewprivs:1.4", _files(node, own), Cmd=["/nnp"])
    for name, image in _OF_PROGRAMS.items():
        program = File(name, found[name].read_bytes(), mode=0o755)
        yield _published(image, _files(node, program), Entrypoint=[f"/{name}"])
    yield Published(_renamed_pause(node), [pause_image(node.busybox).reference.partition("/")[2]])


def _renamed_pause(node: Node) -> Image:
    made = pause_image(node.busybox)
    return Image("made/pause:latest", made.files, made.config)


def _published(name: str, files: Sequence[File], **config: object) -> Published:
    # A label keeps images of the same files apart.
    whole = {"Env": [_PATH], "Labels": {"made": name}, **config}
    unique = {file.path: file for file in files}  # programs share libraries
    return Published(Image(f"made/{name}", (*unique.values(),), whole), [f"e2e-test-images/{name}"])


def _files(node: Node, *more: File) -> list[File]:
    """Return the files of a small Linux, with others that may replace some."""
    made = {file.path: file for file in busybox_image(node.busybox).files}
    own = [File("etc/passwd", _PASSWD.encode()), File("etc/group", _GROUP.encode())]
    own += [File("bin/nmeter", _NMETER.encode(), mode=0o755)]
    # The shell of busybox drops variables whose names are no identifiers.
    shell = [*_programs("bash"), *(File(f"bin/{name}", link="/usr/bin/bash") for name in ("sh", "bash"))]
    return [*(made | {file.path: file for file in (*own, *shell, *more)}).values()]


def _agnhost(node: Node, program: Path) -> Iterator[File]:
    yield from _files(node, *_programs("curl", "ss"), *_netcat(ensure_unpacked(NETCAT)))
    home = new_home("certificate")
    home.mkdir(parents=True)
    for name, path in zip(("localhost.crt", "localhost.key"), make_certificate(home), strict=True):
        yield File(name, path.read_bytes())
    yield File("agnhost", program.read_bytes(), mode=0o755)
    yield File("agnhost-2", link="agnhost")
    yield File("uploads", mode=0o755, directory=True)
    yield from _served_by_agnhost(pause_image(node.busybox))


def _resolver() -> Iterator[File]:
    """Yield a host name program and a resolver of glibc."""
    yield from _programs("hostname", "getent")
    yield File("bin/hostname", link="/usr/bin/hostname")
    yield File("etc/nsswitch.conf", b"hosts: files dns\n")


def _programs(*names: str) -> list[File]:
    """Return programs of this machine below /usr/bin with their libraries where the loader looks for them."""
    found: list[File] = []
    for name in names:
        program = Path(run(["which", name], timeout=_PROGRAM_SECONDS).strip())
        found += [File(f"usr/bin/{name}", program.read_bytes(), mode=0o755), *_libraries(program, Path("/"))]
    return found


def _netcat(unpacked: Unpacked) -> Iterator[File]:
    """Yield the program that takes UDP, unlike busybox's."""
    program = unpacked.root / "bin/nc.openbsd"
    yield File("bin/nc", program.read_bytes(), mode=0o755)
    yield from _libraries(program, unpacked.root)


def _libraries(program: Path, root: Path) -> Iterator[File]:
    """Yield the libraries of a program, from the directory `root` in the role of / or else from this machine."""
    search = ":".join(map(str, root.glob("usr/lib/*-linux-gnu")))
    for line in run(["ldd", program], timeout=_PROGRAM_SECONDS, env={"LD_LIBRARY_PATH": search}).splitlines():
        for word in line.split():
            if word.startswith("/"):
                path = Path(word)
                where = path.relative_to(root if path.is_relative_to(root) else "/")
                yield File(str(where), path.read_bytes(), mode=0o755)


def _served_by_agnhost(image: Image) -> Iterator[File]:
    """Yield an image as the files from which agnhost's registry serves it as `pause:testing`."""
    layer = tar_of(image.files)
    zipped = gzip.compress(layer, mtime=0)
    platform = {"architecture": architecture(), "os": "linux"}
    config = msgspec.json.encode(
        {**platform, "config": image.config, "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]}}
    )
    prefix = "application/vnd.docker"
    manifest = _manifest(
        f"{prefix}.distribution.manifest.v2+json",
        config=_described(f"{prefix}.container.image.v1+json", config),
        layers=[_described(f"{prefix}.image.rootfs.diff.tar.gzip", zipped)],
    )
    described = {**_described(f"{prefix}.distribution.manifest.v2+json", manifest), "platform": platform}
    listing = _manifest(f"{prefix}.distribution.manifest.list.v2+json", manifests=[described])
    for kind, content in (("manifests", listing), ("manifests", manifest), ("blobs", config), ("blobs", zipped)):
        hexadecimal = _digest(content).partition(":")[2]
        yield File(f"var/registry/pause/{kind}/sha256/{hexadecimal[:2]}/{hexadecimal}/data", content)
    yield File("var/registry/pause/manifests/testing", _digest(listing).encode())


def _manifest(media_type: str, **parts: object) -> bytes:
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": media_type, **parts})


def _described(media_type: str, content: bytes) -> Mapping[str, object]:
    return {"mediaType": media_type, "size": len(content), "digest": _digest(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


if __name__ == "__main__":
    ensure_unpacked(NETCAT)  # before isolation, which has no network
