"""Layers of overlay mounts, as the mount tables of Docker's storage drivers show them."""

import pytest

from shim.base.proc import Mount, mounts
from shim.oci_runtime.layers import layers_of, read_only_options


def mount(options: str, *, point: str = "/var/lib/docker/overlay2/id/merged", kind: str = "overlay") -> Mount:
    line = f"1 2 0:3 / {point} rw,relatime - {kind} overlay {options}\n"
    return next(iter(mounts(line.encode())))


DOCKER = "/var/lib/docker/overlay2"
SNAPSHOTS = "/var/lib/docker/containerd/daemon/io.containerd.snapshotter.v1.overlayfs/snapshots"


@pytest.mark.parametrize(
    ("options", "directory"),
    [
        (f"rw,lowerdir={DOCKER}/l/A:{DOCKER}/l/B,upperdir={DOCKER}/id/diff,workdir={DOCKER}/id/work", DOCKER),
        ("rw,lowerdir=l/A:l/B,upperdir=id/diff,workdir=id/work,index=off", DOCKER),
        (f"rw,lowerdir=2/fs:1/fs,upperdir={SNAPSHOTS}/3/fs,workdir={SNAPSHOTS}/3/work", SNAPSHOTS),
        (f"rw,lowerdir+={SNAPSHOTS}/2/fs,upperdir={SNAPSHOTS}/3/fs,workdir={SNAPSHOTS}/3/work", SNAPSHOTS),
    ],
)
def test_directory_of_all_layers_is_found(options: str, directory: str) -> None:
    layers = layers_of(mount(options))

    assert layers.directory == directory
    assert layers.options.decode() == options.removeprefix("rw,")


def test_layers_are_uppermost_first_with_their_escapes() -> None:
    layers = layers_of(mount(r"ro,lowerdir=/l/a\134:b:/l/c\040d,upperdir=/l/u,workdir=/l/w"))

    assert layers.lower == (b"/l/u", rb"/l/a\:b", b"/l/c d")
    assert read_only_options(layers, empty="/e") == rb"lowerdir=/l/u:/l/a\:b:/l/c d"


def test_single_layer_gets_an_empty_layer_below() -> None:
    assert read_only_options(layers_of(mount("ro,lowerdir=/l/a")), empty="/e") == b"lowerdir=/l/a:/e"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (mount("rw", kind="btrfs"), "is on btrfs, not on an overlay"),
        (mount("rw,lowerdir=/a/l,upperdir=/b/u/x,workdir=/b/w"), "no directory in common"),
        (mount("rw,lowerdir=l/A:/other/B,upperdir=id/diff,workdir=id/work"), "no directory in common"),
    ],
)
def test_mount_without_a_common_layer_directory_is_refused(found: Mount, reason: str) -> None:
    with pytest.raises(OSError, match=reason):
        layers_of(found)
