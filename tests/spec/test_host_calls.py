import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, FailedPrecondition
from shim.hostfs import file_parts
from shim.hostfs.file_parts import PART
from shim.runtime import Runtime
from shim.spec import host_calls as module
from shim.spec.host_calls import device_sources, ensure_host_paths, host_sources, relabel_mounts, seccomp_profile
from shim.spec.mounts import bind
from shim.spec.seccomp import MAX_PROFILE

OWN = bind("/own", "/etc/resolv.conf")


def host_path(path: object, **fields: Any) -> pb.Mount:
    return pb.Mount(host_path=str(path), container_path="/x", **fields)


def test_host_paths_of_a_container_are_inspected(rt: Runtime, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "new").mkdir()
    image = pb.Mount(container_path="/i", image=pb.ImageSpec(image="x"))

    sources = host_sources(
        rt.host_fs, [host_path(tmp_path / "link"), image, host_path("/", propagation=pb.PROPAGATION_HOST_TO_CONTAINER)]
    )

    assert {index: source.path for index, source in sources.items()} == {0: str(tmp_path / "new"), 2: "/"}
    assert (sources[0].mount is None, sources[2].mount is None) == (True, False)
    assert device_sources(rt.host_fs, [pb.Device(host_path="/dev/null")]) == ["/dev/null"]


def test_an_unusable_host_path_is_named_by_its_field(rt: Runtime, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(FailedPrecondition, match=r"config\.mounts\[1\]\.host_path .*/dangling: the link"):
        host_sources(rt.host_fs, [host_path("/"), host_path(tmp_path / "dangling")])
    with pytest.raises(FailedPrecondition, match=r"config\.devices\[0\]\.host_path .*/nothing: no such file"):
        device_sources(rt.host_fs, [pb.Device(host_path=str(tmp_path / "nothing"))])


def localhost(path: object) -> pb.LinuxContainerSecurityContext:
    profile = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=str(path))
    return pb.LinuxContainerSecurityContext(seccomp=profile)


@pytest.mark.parametrize("size", [0, 5, PART - 1, PART, PART + 1, MAX_PROFILE])
def test_a_profile_is_read_whole(rt: Runtime, tmp_path: Path, size: int) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(os.urandom(size))
    assert seccomp_profile(rt.host_fs, localhost(path)) == path.read_bytes()


def test_a_profile_in_the_deprecated_field_is_read(rt: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"{}")
    deprecated = pb.LinuxSandboxSecurityContext(seccomp_profile_path=f"localhost/{path}")
    assert seccomp_profile(rt.host_fs, deprecated) == b"{}"
    assert seccomp_profile(rt.host_fs, pb.LinuxSandboxSecurityContext(seccomp_profile_path="runtime/default")) == b""


def test_a_profile_that_is_too_large_is_refused(rt: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(bytes(MAX_PROFILE + 1))
    with pytest.raises(FailedPrecondition, match=rf"\.seccomp: seccomp profile {path}: more than {MAX_PROFILE} bytes"):
        seccomp_profile(rt.host_fs, localhost(path))


def test_a_profile_that_changes_while_it_is_read_is_refused(
    rt: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(bytes(2 * PART))
    call = rt.host_fs.call

    def call_and_append(*arguments: Any, **options: Any) -> object:
        answer = call(*arguments, **options)
        with path.open("ab") as file:
            file.write(b" ")
        return answer

    monkeypatch.setattr(rt.host_fs, "call", call_and_append)
    with pytest.raises(FailedPrecondition, match=rf"\.seccomp: seccomp profile {path}: changed while it was read"):
        seccomp_profile(rt.host_fs, localhost(path))


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "no such file"),
    "FIFO": (os.mkfifo, "not a regular file"),
    "directory": (lambda path: path.mkdir(), "not a regular file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic link"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(60)
def test_a_profile_that_is_not_a_file_is_refused_at_once(rt: Runtime, kind: str, tmp_path: Path) -> None:
    make, reason = NO_FILES[kind]
    path = tmp_path / "profile.json"
    make(path)
    with pytest.raises(FailedPrecondition, match=rf"security_context\.seccomp: seccomp profile {path}: .*{reason}"):
        seccomp_profile(rt.host_fs, localhost(path))


@contextmanager
def hanging(calls: pytest.MonkeyPatch, tmp_path: Path, name: str) -> Iterator[None]:
    """Make the function of this name hang inside the block, like on a dead volume."""
    fifo = tmp_path / f"{name}.fifo"
    os.mkfifo(fifo)
    with calls.context() as hung:
        hung.setattr(file_parts if name == "read_part" else module, name, partial(read, str(fifo)))
        yield
    with fifo.open("wb"):
        pass


def read(path: str, *_: object, **__: object) -> None:
    Path(path).read_bytes()


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("inspect_host_path", lambda rt, path: host_sources(rt.host_fs, [host_path(path)])),
        ("inspect_device", lambda rt, path: device_sources(rt.host_fs, [pb.Device(host_path=path)])),
        ("read_part", lambda rt, path: seccomp_profile(rt.host_fs, localhost(path))),
        ("ensure_directory", lambda rt, path: ensure_host_paths(rt.host_fs, [host_path(path)], [bind(path, "/x")])),
    ],
)
def test_a_path_that_hangs_is_named_and_bounded(
    rt: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    call: Callable[[Runtime, str], object],
) -> None:
    with (
        hanging(monkeypatch, tmp_path, function),
        pytest.raises(DeadlineExceeded, match=f"wait for {tmp_path}/volume"),
        deadline.bound(0.1),
    ):
        call(rt, f"{tmp_path}/volume")


def ensure(rt: Runtime, mount: pb.Mount, docker: dict[str, Any]) -> None:
    ensure_host_paths(rt.host_fs, [mount], [docker, OWN])


def test_a_missing_host_path_is_created_after_all_checks(rt: Runtime, tmp_path: Path) -> None:
    ensure(rt, host_path(tmp_path / "below/it"), bind(str(tmp_path / "below/it"), "/x"))
    assert (tmp_path / "below/it").is_dir()


def test_the_reason_why_a_host_path_cannot_be_created_is_named(rt: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "new/below"
    (tmp_path / "new").touch()
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.host_path {path}: not a dir"):
        ensure(rt, host_path(path), bind(str(path), "/x"))


def test_an_image_volume_has_no_host_path(rt: Runtime, tmp_path: Path) -> None:
    image = pb.Mount(container_path="/x", image=pb.ImageSpec(image="x"))
    ensure(rt, image, {"Type": "image", "Source": str(tmp_path / "new")})
    assert not (tmp_path / "new").exists()


def note_label(file: str, path: Path, **given: object) -> None:
    """Stand in for the walk of `relabel`, which needs a file system with SELinux labels."""
    with Path(file).open("a") as lines:
        lines.write(f"{path} {given}\n")


def test_exactly_the_mounted_path_is_labelled(rt: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "noted"
    monkeypatch.setattr(module, "relabel", partial(note_label, str(noted)))
    asked = [
        host_path("/a"),
        host_path("/link", selinux_relabel=True),
        pb.Mount(container_path="/c", image=pb.ImageSpec(image="x"), selinux_relabel=True),
    ]
    docker = [bind("/a", "/a"), bind("/one", "/b"), {"Type": "image", "Source": "sha256:1"}, OWN]
    relabel_mounts(rt.host_fs, asked, docker, label="l")
    assert noted.read_text().splitlines() == ["/one {'label': 'l', 'field': 'config.mounts[1]'}"]
