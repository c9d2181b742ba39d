"""Images that nobody pulled: what Docker was given by hand is usable at once."""

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

POD = pod_config("local-images")


def test_a_tag_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    tags = [f"n{number}" for number in range(5)]
    names = [f"local/tagged:{tag}" for tag in tags]
    for tag, name in zip(tags, names, strict=True):
        served.engine.api.tag(images.busybox, "local/tagged", tag)
        served.cri.create(sandbox, container_config(tag, image=name), pod=POD)
    for name in names:
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=name))
        assert wait_until(lambda request=request: served.cri.images.ImageStatus(request).HasField("image"))  # type: ignore[misc]  # mypy: default of a lambda
    served.clear()
    for name in names:
        served.engine.api.remove_image(name)


def test_a_loaded_image_is_usable_at_once(served: Served, images: Images) -> None:
    sandbox = served.cri.run(POD)
    image_id = images.load("local/loaded:1", {"Labels": {"loaded": "just now"}})
    container = served.cri.create(sandbox, container_config("loaded", image="local/loaded:1"), pod=POD)
    assert served.cri.container_status(container).image_id == image_id
    served.clear()
    served.cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="local/loaded:1")))
