"""A checkpoint of a pod is checked and copied whole, or refused with the reason and without leftovers."""

import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.criu.archive import ARCHIVE_LIMIT
from shim.criu.checkpoint import carry_out
from shim.criu.layout import CONTAINERS_LIMIT, FILES_LIMIT, MANIFEST, MANIFEST_LIMIT, manifest, needed_files
from shim.criu.order import TakeOrder
from shim.domain.errors import FailedPrecondition, ResourceExhausted, Unsupported
from shim.own_exec.own_exec import OwnExec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

Change = Callable[[Path], object]


@pytest.fixture
def own_exec() -> Iterator[OwnExec]:
    made = OwnExec(is_wanted=False)
    yield made
    made.stop()


@pytest.fixture
def order(tmp_path: Path) -> TakeOrder:
    """Write a checkpoint with a container."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/criu").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin/criu").chmod(0o755)
    images = tmp_path / "checkpoint/0/checkpoint"
    images.mkdir(mode=0o700, parents=True)
    (images / "inventory.img").write_bytes(b"inventory")
    (images / "pages-1.img").write_bytes(bytes(5 << 20))
    (tmp_path / "checkpoint/0/spec.dump").write_text("{}")
    layer(tmp_path / "checkpoint", tarfile.TarInfo("file"))
    describe(tmp_path / "checkpoint")
    return TakeOrder(
        directory=str(tmp_path / "checkpoint"),
        path=f"{tmp_path / 'bin'}:/usr/bin:/bin",
        target=str(tmp_path / "restoring/1"),
        refuse_connections=False,
    )


def layer(checkpoint: Path, *entries: tarfile.TarInfo) -> None:
    with tarfile.open(checkpoint / "0/rootfs-diff.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(entry)


def describe(checkpoint: Path) -> None:
    """Rewrite the manifest for the checkpoint's files."""
    entry = {"name": "c", "directory": "0", "files": needed_files(checkpoint / "0", check=lambda: None)}
    (checkpoint / MANIFEST).write_bytes(manifest([entry]))


def changed(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    plain = json.loads((checkpoint / MANIFEST).read_bytes())
    change(plain)
    (checkpoint / MANIFEST).write_text(json.dumps(plain))


def test_the_files_of_a_restore_are_copied(own_exec: OwnExec, order: TakeOrder) -> None:
    (Path(order.directory) / "0/container.log").write_text("not needed")
    before = {path: path.stat() for path in Path(order.directory).rglob("*")}
    carry_out(own_exec, order, what="restore")
    target = Path(order.target)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == [
        "0/checkpoint/inventory.img",
        "0/checkpoint/pages-1.img",
        "0/rootfs-diff.tar",
        "0/spec.dump",
        MANIFEST,
    ]
    assert (target / "0/checkpoint/pages-1.img").read_bytes() == bytes(5 << 20)
    assert target.stat().st_mode & 0o777 == 0o700
    for path, found in before.items():
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == (found.st_mtime_ns, found.st_ino)


def renamed(checkpoint: Path, name: str) -> None:
    """Rename an image in the manifest."""

    def change(plain: dict[str, Any]) -> None:
        files = plain["containers"][0]["files"]
        files[name] = files.pop("checkpoint/inventory.img")

    changed(checkpoint, change)


def entry_of(name: str, **fields: Any) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


def layered(*entries: tarfile.TarInfo) -> Change:
    def change(checkpoint: Path) -> None:
        layer(checkpoint, *entries)
        describe(checkpoint)

    return change


def replaced(name: str, make: Callable[[Path], object]) -> Change:
    """Replace a file of the checkpoint."""

    def change(checkpoint: Path) -> None:
        (checkpoint / name).rename(checkpoint.parent / "elsewhere")
        make(checkpoint / name)

    return change


def resized_header(checkpoint: Path) -> None:
    """Claim a tar header of 256 MiB in the layer."""
    path = checkpoint / "0/rootfs-diff.tar"
    header = tarfile.TarInfo("PaxHeaders/x")
    header.type, header.size = tarfile.XHDTYPE, 256 << 20
    with path.open("wb") as file:
        file.write(header.tobuf())
        file.truncate((256 << 20) + 2048)
    # Computing the checksum of 256 MiB of zeros would take long.
    changed(
        checkpoint,
        lambda plain: plain["containers"][0]["files"].update(
            {"rootfs-diff.tar": [path.stat().st_size, crc_with_zeros(header.tobuf(), path.stat().st_size)]}
        ),
    )


def crc_with_zeros(start: bytes, size: int) -> int:
    checksum, left = zlib.crc32(start), size - len(start)
    zeros = bytes(16 << 20)
    while left:
        piece = zeros[: min(left, len(zeros))]
        checksum, left = zlib.crc32(piece, checksum), left - len(piece)
    return checksum


HOSTILE: dict[str, tuple[Change, str]] = {
    "missing": (lambda at: (at / MANIFEST).unlink(), "pod.json"),
    "no-json": (lambda at: (at / MANIFEST).write_text("{"), "pod.json is not a manifest"),
    "deep-json": (lambda at: (at / MANIFEST).write_text("[" * 100_000), "pod.json is not a manifest"),
    "no-object": (lambda at: (at / MANIFEST).write_text("[]"), "pod.json is not a manifest"),
    "huge-manifest": (lambda at: os.truncate(at / MANIFEST, MANIFEST_LIMIT + 1), "pod.json has more than"),
    "newer": (lambda at: changed(at, lambda plain: plain.update(version=2)), "version 2, and this server reads"),
    "no-container": (lambda at: changed(at, lambda plain: plain.update(containers=[])), "it has 0 containers"),
    "many-containers": (
        lambda at: changed(at, lambda plain: plain.update(containers=plain["containers"] * (CONTAINERS_LIMIT + 1))),
        f"it has {CONTAINERS_LIMIT + 1} containers",
    ),
    "many-files": (
        lambda at: changed(
            at,
            lambda plain: plain["containers"][0].update(files={str(each): [0, 0] for each in range(FILES_LIMIT + 1)}),
        ),
        "files, at most",
    ),
    "another-directory": (
        lambda at: changed(at, lambda plain: plain["containers"][0].update(directory="../0")),
        r"in directory '../0'",
    ),
    "path-out": (lambda at: renamed(at, "checkpoint/../../x"), "is not the name of a file"),
    "path-absolute": (lambda at: renamed(at, "/etc/shadow"), "is not the name of a file"),
    "path-dots": (lambda at: renamed(at, "checkpoint/.."), "is not the name of a file"),
    "path-nul": (lambda at: renamed(at, "checkpoint/a\0b"), "is not the name of a file"),
    "no-layer": (
        lambda at: changed(at, lambda plain: plain["containers"][0]["files"].pop("rootfs-diff.tar")),
        "rootfs-diff.tar is missing",
    ),
    "flipped": (lambda at: (at / "0/checkpoint/inventory.img").write_bytes(b"inventorz"), "another checksum"),
    "cut": (lambda at: os.truncate(at / "0/checkpoint/pages-1.img", 5), "pages-1.img has another size"),
    "image-gone": (lambda at: (at / "0/checkpoint/inventory.img").unlink(), "inventory.img"),
    "other-owner": (lambda at: os.chown(at, 1000, 1000), "must belong to root"),
    "open-to-others": (lambda at: at.chmod(0o777), "nobody else may write"),
    "image-of-another": (lambda at: os.chown(at / "0/checkpoint/inventory.img", 1000, 0), "must belong to root"),
    "image-open-to-others": (lambda at: (at / "0/checkpoint/inventory.img").chmod(0o666), "nobody else may write"),
    "directory-of-another": (lambda at: os.chown(at / "0/checkpoint", 1000, 0), "must belong to root"),
    "link": (replaced("0/checkpoint/inventory.img", lambda at: at.symlink_to("/etc/passwd")), "inventory.img"),
    "directory-is-link": (replaced("0/checkpoint", lambda at: at.symlink_to("/etc")), "checkpoint"),
    "fifo": (replaced("0/checkpoint/inventory.img", os.mkfifo), "is not a regular file"),
    "device": (
        replaced("0/checkpoint/inventory.img", lambda at: os.mknod(at, 0o20600, os.makedev(1, 5))),
        "is not a regular file",
    ),
    "manifest-is-link": (replaced(MANIFEST, lambda at: at.symlink_to("/dev/zero")), "pod.json"),
    "layer-climbs": (layered(entry_of("a/../../x")), "not a path inside of a layer"),
    "layer-absolute": (layered(entry_of("/etc/shadow")), "not a path inside of a layer"),
    "layer-device": (layered(entry_of("d", type=tarfile.BLKTYPE)), "is a device"),
    "layer-hard-link-out": (
        layered(entry_of("l", type=tarfile.LNKTYPE, linkname="../../etc/shadow")),
        "not a path inside of a layer",
    ),
    "layer-overlay": (
        layered(entry_of("r", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/etc"})),
        "attribute of overlayfs",
    ),
    "layer-huge-header": (resized_header, "a header of a file is too large"),
    "kernel": (lambda at: changed(at, lambda plain: plain.update(kernel="2.6.32")), "made with Linux 2.6.32"),
    "machine": (lambda at: changed(at, lambda plain: plain.update(machine="riscv64")), "processors riscv64"),
    "cpu": (lambda at: changed(at, lambda plain: plain["cpu"].append("avx9000")), "do not have avx9000"),
    "no-cpu": (lambda at: changed(at, lambda plain: plain.update(cpu=None)), "which features"),
}


@pytest.mark.parametrize(("change", "text"), HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_or_hostile_checkpoint_is_refused(
    own_exec: OwnExec, order: TakeOrder, change: Change, text: str
) -> None:
    change(Path(order.directory))
    with pytest.raises(FailedPrecondition, match=text):
        carry_out(own_exec, order, what="restore")
    assert not Path(order.target).exists()


def test_a_checkpoint_that_is_too_large_is_refused(own_exec: OwnExec, order: TakeOrder) -> None:
    changed(
        Path(order.directory),
        lambda plain: plain["containers"][0]["files"].update({"checkpoint/a.img": [ARCHIVE_LIMIT + 1, 0]}),
    )
    with pytest.raises(ResourceExhausted, match=f"more than {ARCHIVE_LIMIT} bytes"):
        carry_out(own_exec, order, what="restore")
    assert not Path(order.target).exists()


def test_connections_are_refused_if_the_order_says_so(own_exec: OwnExec, order: TakeOrder) -> None:
    (Path(order.directory) / "0/checkpoint/tcp-stream-5.img").write_bytes(b"x")
    describe(Path(order.directory))
    carry_out(own_exec, order, what="restore")
    refusing = TakeOrder(directory=order.directory, path=order.path, target=f"{order.target}2", refuse_connections=True)
    with pytest.raises(FailedPrecondition, match="'c' had 1 established TCP connections"):
        carry_out(own_exec, refusing, what="restore")
    assert not Path(refusing.target).exists()


def test_without_criu_nothing_is_copied(own_exec: OwnExec, order: TakeOrder, tmp_path: Path) -> None:
    (tmp_path / "bin/criu").unlink()
    without = TakeOrder(
        directory=order.directory, path=str(tmp_path / "bin"), target=order.target, refuse_connections=False
    )
    with pytest.raises(Unsupported, match="no program criu"):
        carry_out(own_exec, without, what="restore")
    assert not Path(order.target).exists()
