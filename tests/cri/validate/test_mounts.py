from functools import partial

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate.mounts import MAX_DEVICES, MAX_MOUNTS
from shim.domain.errors import InvalidArgument
from tests.cri.validate.containers import Change, check

GOOD: dict[str, Change] = {
    "container-path-relative": lambda r: r.config.mounts.add(container_path="etc/x", host_path="/x"),
    "device-under-its-own-name": lambda r: r.config.devices.add(host_path="/dev/fuse"),
    # The kubelet's form of a subPath, in a pod that also has an image volume.
    "sub-path-of-a-host-path": lambda r: r.config.mounts.add(
        container_path="/etc/app.conf",
        host_path="/var/lib/kubelet/pods/6e5bd4a2-1/volume-subpaths/conf/app/0",
        image_sub_path="app.conf",
        readonly=True,
    ),
    "mount-options": lambda r: r.config.mounts[0].mount_options.extend(["noexec", "nodev", "nosuid"]),
    # A device plugin and a volume of the pod may both use this path.
    "mount-twice": lambda r: r.config.mounts.add(host_path="/x", container_path="data/"),
    # Kubelet 1.31 does not set it.
    "image-volume-without-readonly": lambda r: setattr(r.config.mounts[2], "readonly", False),
    "image-volume-labelled": lambda r: setattr(r.config.mounts[2], "selinux_relabel", True),
    "mounts-many": lambda r: r.config.mounts.extend(
        pb.Mount(container_path=f"/m/{number}", host_path="/x") for number in range(MAX_MOUNTS - 3)
    ),
    "device-twice": lambda r: r.config.devices.add(host_path="/dev/null", container_path="/dev//n", permissions="m"),
    "cdi-twice": lambda r: r.config.CDI_devices.add(name="nvidia.com/gpu=0"),
    "cdi-short": lambda r: r.config.CDI_devices.add(name="v/c=0"),
    "cdi-long": lambda r: r.config.CDI_devices.add(name="my-vendor.example/a.b_c-1=GPU-1:2.3_4"),
}


@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
def test_valid_mounts_and_devices_pass(change: Change) -> None:
    check(change)


BAD: dict[str, tuple[Change, str]] = {
    "mount-option-unknown": (
        lambda r: r.config.mounts[0].mount_options.extend(["noexec", "uid=0"]),
        "config.mounts[0].mount_options: 'uid=0' is not known; these are: nodev, noexec, nosuid",
    ),
    "mount-relative-host-path": (
        lambda r: r.config.mounts.add(container_path="/x", host_path="x"),
        "config.mounts[3].host_path 'x' is not an absolute path",
    ),
    "mount-no-host-path": (
        lambda r: r.config.mounts.add(container_path="/x"),
        "config.mounts[3].host_path '' is not an absolute path",
    ),
    "mount-no-container-path": (
        lambda r: r.config.mounts.add(host_path="/x"),
        "config.mounts[3].container_path is empty",
    ),
    "mount-root": (
        lambda r: r.config.mounts.add(host_path="/x", container_path="/a/.."),
        "config.mounts[3].container_path '/a/..' is the root of the container",
    ),
    "mount-slashes": (
        lambda r: r.config.mounts.add(host_path="/x", container_path="//"),
        "config.mounts[3].container_path '//' is the root of the container",
    ),
    "mount-propagation": (
        lambda r: r.config.mounts.add(
            host_path="/x", container_path="/x", propagation=pb.MountPropagation.ValueType(3)
        ),
        "config.mounts[3].propagation has the unknown value 3",
    ),
    "mounts-too-many": (
        lambda r: r.config.mounts.extend(pb.Mount(container_path="/x") for _ in range(MAX_MOUNTS)),
        "config.mounts has 1003 entries, at most 1000 are allowed",
    ),
    "mount-host-path-nul": (
        lambda r: setattr(r.config.mounts[1], "host_path", "/etc\0/x"),
        "config.mounts[1].host_path holds a NUL",
    ),
    "mount-container-path-nul": (
        lambda r: setattr(r.config.mounts[1], "container_path", "/\0"),
        "config.mounts[1].container_path holds a NUL",
    ),
    "mount-with-an-empty-image": (
        lambda r: r.config.mounts.add(container_path="/x", host_path="/x", image=pb.ImageSpec()),
        "config.mounts[3].image.image is empty",
    ),
    "mount-with-an-empty-image-alone": (
        lambda r: r.config.mounts.add(container_path="/x", image=pb.ImageSpec()),
        "config.mounts[3].host_path '' is not an absolute path",
    ),
    "image-volume-and-host-path": (
        lambda r: setattr(r.config.mounts[2], "host_path", "/x"),
        "config.mounts[2].host_path and image must not both be given",
    ),
    "image-volume-propagation": (
        lambda r: setattr(r.config.mounts[2], "propagation", pb.PROPAGATION_BIDIRECTIONAL),
        "config.mounts[2].propagation: mounts inside an image volume cannot propagate to the host",
    ),
    "image-volume-sub-path-absolute": (
        lambda r: setattr(r.config.mounts[2], "image_sub_path", "/a"),
        "config.mounts[2].image_sub_path '/a' is not relative to the image's root",
    ),
    "image-volume-sub-path-up": (
        lambda r: setattr(r.config.mounts[2], "image_sub_path", "a/../../b"),
        "config.mounts[2].image_sub_path 'a/../../b' must not hold '..'",
    ),
    "image-volume-sub-path-nul": (
        lambda r: setattr(r.config.mounts[2], "image_sub_path", "a\0"),
        "config.mounts[2].image_sub_path holds a NUL",
    ),
    "devices-too-many": (
        lambda r: r.config.devices.extend(pb.Device(host_path="/dev/x") for _ in range(MAX_DEVICES)),
        "config.devices has 1001 entries, at most 1000 are allowed",
    ),
    "device-root": (
        lambda r: r.config.devices.add(host_path="//"),
        "config.devices[1].host_path '//' is the root of the host, not a device",
    ),
    "device-nul": (
        lambda r: r.config.devices.add(host_path="/dev/\0"),
        "config.devices[1].host_path holds a NUL",
    ),
    "device-in-the-place-of-the-root": (
        lambda r: r.config.devices.add(host_path="/dev/x", container_path="/dev/.."),
        "config.devices[1].container_path '/dev/..' is the root of the container",
    ),
    "device-in-the-place-of-another": (
        lambda r: r.config.devices.add(host_path="/dev/x", container_path="/dev/n/"),
        "config.devices[1].container_path /dev/n is already the container_path of config.devices[0]",
    ),
    **{
        f"cdi-name-{number}": (
            partial(lambda name, r: r.config.CDI_devices.add(name=name), name),
            f"config.CDI_devices[1].name {name!r} is not of the form vendor.com/class=device",
        )
        for number, name in enumerate(
            (
                "gpu",
                "v.com/gpu",
                "v.com=0",
                "/gpu=0",
                "v.com/gpu=",
                "v.com/g/pu=0",
                "9v/gpu=0",
                "v./gpu=0",
                "v/c=-",
                "v/c=é",
            )
        )
    },
    "device-relative": (
        lambda r: r.config.devices.add(host_path="dev/x"),
        "config.devices[1].host_path 'dev/x' is not an absolute path",
    ),
    "device-permissions": (
        lambda r: r.config.devices.add(host_path="/dev/x", permissions="rx"),
        "config.devices[1].permissions 'rx' may hold only r, w and m",
    ),
    "cdi-no-name": (lambda r: r.config.CDI_devices.add(), "config.CDI_devices[1].name is empty"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_invalid_mounts_and_devices_are_refused(change: Change, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(change)

    assert str(caught.value).startswith(message)
