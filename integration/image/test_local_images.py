"""Images that nobody pulled: what Docker was given by hand is usable at once."""

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from shim.api.v1 import api_pb2 as pb

POD = pod_config("local-images")


def is_told(served: Served, name: str) -> bool:
    """Whether ImageStatus knows the image; the kubelet pulls it else."""
    return served.cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name))).HasField("image")


def test_a_tag_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    tags = [f"n{number}" for number in range(5)]
    names = [f"local/tagged:{tag}" for tag in tags]
    for tag, name in zip(tags, names, strict=True):
        served.engine.api.tag(images.busybox, "local/tagged", tag)
        assert is_told(served, name)
    for tag, name in zip(tags, names, strict=True):
        served.cri.create(sandbox, container_config(tag, image=name), pod=POD)
    served.clear()
    for name in names:
        served.engine.api.remove_image(name)


def test_a_loaded_image_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    image_id = images.load("local/loaded:1", {"Labels": {"loaded": "just now"}})
    assert is_told(served, "local/loaded:1")
    container = served.cri.create(sandbox, container_config("loaded", image="local/loaded:1"), pod=POD)
    assert served.cri.container_status(container).image_id == image_id
    served.clear()
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="local/loaded:1")))
