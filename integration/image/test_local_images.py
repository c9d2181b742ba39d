"""Images that were tagged, loaded or built on the node can be used at once."""

import io
import tarfile
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.image.conftest import Publish
from integration.node.registry import Registry
from integration.node.registry_proxy import Proxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

POD = pod_config("local-images")


def is_listed(served: Served, name: str) -> bool:
    """Return whether ImageStatus knows the image; otherwise the kubelet pulls it."""
    return bool(image_id(served, name))


def image_id(served: Served, name: str) -> str:
    """Return the id of the image with this name; empty without such an image."""
    return served.cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name))).image.id


def test_a_tag_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    tags = [f"n{number}" for number in range(5)]
    names = [f"local/tagged:{tag}" for tag in tags]
    for tag, name in zip(tags, names, strict=True):
        served.engine.api.tag(images.busybox, "local/tagged", tag)
        assert is_listed(served, name)
    for tag, name in zip(tags, names, strict=True):
        served.cri.create(sandbox, container_config(tag, image=name), pod=POD)
    served.clear()
    for name in names:
        served.engine.api.remove_image(name)


def test_a_loaded_image_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    loaded = images.load("local/loaded:1", {"Labels": {"loaded": "just now"}})
    assert is_listed(served, "local/loaded:1")
    container = served.cri.create(sandbox, container_config("loaded", image="local/loaded:1"), pod=POD)
    assert served.cri.container_status(container).image_id == loaded
    served.clear()
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="local/loaded:1")))


def test_a_built_image_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    build(served, f"FROM {images.busybox}\nLABEL built=now\n", tag="local/built:1")
    assert is_listed(served, "local/built:1")
    served.cri.create(sandbox, container_config("built", image="local/built:1"), pod=POD)
    served.clear()
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="local/built:1")))


def build(served: Served, dockerfile: str, *, tag: str) -> None:
    """Build an image with the classic builder, which every engine has."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(dockerfile)
        archive.addfile(entry, io.BytesIO(dockerfile.encode()))
    context.seek(0)
    said: list[dict[str, Any]] = list(
        served.engine.api.build(fileobj=context, custom_context=True, tag=tag, rm=True, decode=True)
    )
    assert not [line for line in said if "error" in line]


def test_an_image_that_lost_its_name_stays_usable_by_id(served: Served, images: Images) -> None:
    lost = images.load("local/lost:1", {"Labels": {"lost": "yes"}})
    served.engine.api.tag(images.busybox, "local/lost", "1")
    wait_until(lambda: image_id(served, "local/lost:1") == image_id(served, images.busybox))
    listed = served.cri.images.ListImages(pb.ListImagesRequest()).images
    assert len({image.id for image in listed}) == len(listed)
    assert [image.id for image in listed] == sorted(image.id for image in listed)
    assert all(image.size for image in listed)
    assert not [name for image in listed for name in (*image.repo_tags, *image.repo_digests) if "<none>" in name]
    found = [image for image in listed if image.id == lost]
    # The containerd store removes an image without a name.
    assert [list(image.repo_tags) for image in found] in ([[]], [])
    served.engine.api.remove_image("local/lost:1")
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=lost)))


def test_the_error_for_an_image_in_use_names_the_containers(served: Served, images: Images) -> None:
    used = images.load("local/used:1", {"Labels": {"used": "yes"}})
    sandbox = served.cri.run(POD)
    container = served.cri.create(sandbox, container_config("user", image="local/used:1"), pod=POD)
    with pytest.raises(
        grpc.RpcError, match=rf"in use by created container k8s_user_\S+ \({container[:12]}\)"
    ) as refused:
        served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=used)))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert is_listed(served, "local/used:1")
    served.clear()
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=used)))
    assert not is_listed(served, "local/used:1")


def test_a_disconnecting_client_ends_the_pull(
    served: Served, publish: Publish, proxy: Proxy, registry: Registry
) -> None:
    reference = publish("left:1", size=4 << 20).replace(registry.address, proxy.address)
    proxy.allow(300_000)
    call = served.cri.images.PullImage.future(pb.PullImageRequest(image=pb.ImageSpec(image=reference)))
    proxy.wait_blocked(timeout=30)
    call.cancel()
    proxy.wait_given_up()
    assert not is_listed(served, reference)


def test_image_fs_info_is_answered_by_the_server(served: Served) -> None:
    response = served.cri.images.ImageFsInfo(pb.ImageFsInfoRequest())
    (usage,), (written,) = response.image_filesystems, response.container_filesystems
    assert usage.fs_id == written.fs_id
    assert usage.used_bytes.value > 0
    assert usage.inodes_used.value > 0
