"""A registry in place of the public registries that critest pulls from; nothing is downloaded.

In isolation the names of the public registries resolve to the loopback address, and the engine uses HTTP there. The
images are built on the spot: small images that behave as critest expects.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import docker

from integration.node.commands import run
from integration.node.images import File, Image, architecture, busybox_image, load
from integration.node.isolation import Node, new_home
from integration.node.packages import Bundle, Unpacked, ensure_unpacked
from integration.node.registry import Registry
from integration.waiting import wait_until

NAMES = ("gcr.io", "registry.k8s.io", "k8s.gcr.io")
SETTINGS: dict[str, object] = {"insecure-registries": list(NAMES)}
"""For the engine's daemon.json."""

SHELL = Bundle(name="busybox-shared", suites=("bookworm",), packages=("busybox", "libc6"))
"""A busybox whose shell looks for programs in the file system first, as critest's test of a masked /bin/ls requires.

The shell of `busybox-static` runs its applets even if their paths are masked.
"""

_ADDRESS = "127.0.0.1:80"
_HOSTS = Path("/etc/hosts")
_TOOLS = "k8s-staging-cri-tools"
_WEB_SERVER = """\
#!/bin/sh
mkdir -p /var/run
echo $$ >/var/run/nginx.pid
echo httpd listens on port {port}
httpd -f -p {port} -h /var/www &
trap 'kill $!; exit 0' TERM QUIT
wait
"""
_PGREP = """\
#!/bin/sh
for process in /proc/[0-9]*; do
    read name <$process/comm && [ "$name" = "$1" ] && echo "${process#/proc/}"
done 2>/dev/null
"""
_IPCS = """\
#!/bin/sh
exec cat /proc/sysvipc/shm
"""
"""Two programs that Debian's busybox lacks."""
_EFFECTIVE_USER = """\
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    printf("Effective uid: %d\\n", geteuid());
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Published:
    """An image and the names under which the registry serves it."""

    image: Image
    names: Sequence[str]


@contextmanager
def public_registries(node: Node, api: docker.APIClient) -> Iterator[None]:
    """Serve critest's images under the names of the public registries while the block runs."""
    with serving_images(node, api, _images(node, ensure_unpacked(SHELL))):
        yield


@contextmanager
def serving_images(node: Node, api: docker.APIClient, images: Iterable[Published]) -> Iterator[Sequence[str]]:
    """Serve images under the names of the public registries while the block runs, and yield their names.

    The engine itself has none of them.
    """
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=new_home("registries"), address=_ADDRESS)
    registry.start()
    hosts = _HOSTS.read_text()
    try:
        _HOSTS.write_text(f"{hosts}127.0.0.1 {' '.join(NAMES)}\n")
        names: list[str] = []
        for published in images:
            load(api, published.image)
            for name in published.names:
                registry.push(api, published.image.reference, name=name)
            api.remove_image(published.image.reference)
            names += published.names
        # Docker reads the file at most every 5 s.
        wait_until(lambda: _resolves(api, f"{NAMES[0]}/{names[0]}"))
        yield names
    finally:
        _HOSTS.write_text(hosts)
        registry.stop()


def _resolves(api: docker.APIClient, reference: str) -> bool:
    try:
        api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    except docker.errors.APIError:
        return False
    return True


def _images(node: Node, shell: Unpacked) -> Iterator[Published]:
    yield Published(_shell_image(node, shell), ["e2e-test-images/busybox:1.29-2"])
    yield Published(web_server(node, 80), ["e2e-test-images/nginx:1.14-2", "e2e-test-images/httpd:2.4.39-4"])
    yield Published(web_server(node, 12003), [f"{_TOOLS}/hostnet-nginx-{architecture()}"])
    yield Published(effective_user(), ["e2e-test-images/nonewprivs:1.3"])
    yield Published(_grouped(node), [f"{_TOOLS}/test-image-predefined-group"])
    for name, user in {"uid": "1002", "username": "www-data", "uid-group": "1003:users"}.items():
        yield Published(_labelled(node, name, User=user), [f"{_TOOLS}/test-image-user-{name}"])
    user_and_group = _labelled(node, "username-group", User="www-data:100")
    yield Published(user_and_group, [f"{_TOOLS}/test-image-user-username-group"])
    yield Published(_labelled(node, "latest"), [f"{_TOOLS}/test-image-latest"])
    yield Published(_labelled(node, "tag"), [f"{_TOOLS}/test-image-tag:test"])
    yield Published(_labelled(node, "all"), [f"{_TOOLS}/test-image-tag:all"])
    yield Published(_labelled(node, "tags"), [f"{_TOOLS}/test-image-tags:{tag}" for tag in (1, 2, 3)])
    for number in (1, 2, 3):
        yield Published(_labelled(node, f"number-{number}"), [f"{_TOOLS}/test-image-{number}"])
    yield Published(_labelled(node, "pause"), ["pause:3.9"])


def _labelled(node: Node, name: str, **config: object) -> Image:
    return busybox_image(node.busybox, reference=f"made/{name}:latest", config={"Labels": {"made": name}, **config})


def _shell_image(node: Node, shell: Unpacked) -> Image:
    """Return a busybox whose shell runs programs from PATH, with /bin/ls as a separate file that can be masked."""
    plain = busybox_image(node.busybox, reference="made/shell:latest")
    own = {
        "bin/sh": (shell.root / "bin/busybox").read_bytes(),
        "bin/ls": node.busybox.read_bytes(),
        "bin/pgrep": _PGREP.encode(),
        "bin/ipcs": _IPCS.encode(),
    }
    kept = [file for file in plain.files if file.path not in own]
    files = [File(path, content, mode=0o755) for path, content in own.items()]
    return Image(plain.reference, (*kept, *files, *_libraries(shell)), plain.config)


def _libraries(shell: Unpacked) -> Iterator[File]:
    """Yield the shared libraries of the shell, at the paths where the loader and the programs look for them."""
    names = ("libc.so.6", "libresolv.so.2")
    for directory in sorted({path.parent for path in shell.root.glob("lib/*/libc.so.6")}):
        for name in names:
            yield File(f"lib/{directory.name}/{name}", (directory / name).read_bytes(), mode=0o755)
        for loader in directory.glob("ld-linux-*.so.*"):
            for place in (f"lib/{directory.name}", "lib", "lib64"):
                yield File(f"{place}/{loader.name}", loader.read_bytes(), mode=0o755)


def web_server(node: Node, port: int) -> Image:
    """Return a web server that looks like nginx and httpd: by name, pid file, process title and output."""
    plain = busybox_image(node.busybox, reference=f"made/web-{port}:latest")
    script = File("bin/nginx", _WEB_SERVER.format(port=port).encode(), mode=0o755)
    return Image(plain.reference, (*plain.files, script), {"Entrypoint": ["/bin/nginx", "master process"]})


def _grouped(node: Node) -> Image:
    plain = busybox_image(node.busybox, reference="made/grouped:latest")
    replaced = {
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n",
        "etc/group": b"root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n",
    }
    files = [file for file in plain.files if file.path not in replaced]
    files += [File(path, content) for path, content in replaced.items()]
    return Image(plain.reference, tuple(files), {**plain.config, "User": "1000"})


def effective_user() -> Image:
    """Return a program owned by root with the set-user-ID bit that prints its effective user; needs gcc."""
    with TemporaryDirectory() as scratch:
        source, program = Path(scratch, "main.c"), Path(scratch, "main")
        source.write_text(_EFFECTIVE_USER)
        run(["gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-o", program, source], timeout=60)
        file = File("nnp", program.read_bytes(), mode=0o4755)
    return Image("made/effective-user:latest", (file,), {"Entrypoint": ["/nnp"]})


if __name__ == "__main__":
    ensure_unpacked(SHELL)  # before isolation, which has no network
