"""ImageStatus: one image, or an empty answer."""

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import ImageSettings
from shim.errors import InvalidArgument, NotFound
from shim.image.list import list_images
from shim.image.status import image_status
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine


def status(rt: Runtime, name: str, *, verbose: bool = False) -> pb.ImageStatusResponse:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=verbose)


def test_is_what_the_list_tells(rt: Runtime) -> None:
    for image in list_images(rt, filter=pb.ImageFilter()):
        for name in (image.id, image.id.removeprefix("sha256:"), *image.repo_tags, *image.repo_digests):
            assert status(rt, name).image == image
    assert status(rt, "busybox") == status(rt, BUSYBOX)


@pytest.mark.parametrize("name", ["nobody/made-this", "ab" * 32, "r.example/a@sha256:" + "ab" * 32])
@pytest.mark.parametrize("verbose", [False, True])
def test_what_is_not_here_is_an_empty_answer(rt: Runtime, name: str, *, verbose: bool) -> None:
    assert status(rt, name, verbose=verbose) == pb.ImageStatusResponse()


@pytest.mark.parametrize(("name", "words"), [("", "image.image is empty"), ("BusyBox", "capitals")])
def test_bad_names(rt: Runtime, name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        status(rt, name)


def test_no_docker_call_unless_verbose(rt: Runtime, engine: FakeEngine) -> None:
    engine.calls.clear()
    assert status(rt, BUSYBOX).info == {}
    assert engine.calls == []


def test_verbose(rt: Runtime, engine: FakeEngine) -> None:
    settings = ImageSettings(
        user="www",
        labels={"a": "b"},
        entrypoint=["/x"],
        cmd=["-c"],
        stop_signal="SIGINT",
        env=["A=b"],
        exposed_ports={"80/tcp": {}},
        volumes={"/data": {}},
        working_dir="/srv",
    )
    image_id = engine.add_image("r.example/app:1", settings)
    rt.view.refresh_images()
    info = msgspec.json.decode(status(rt, "r.example/app:1", verbose=True).info["info"])
    assert info["id"] == image_id
    assert info["imageSpec"]["config"] == {
        "User": "www",
        "Labels": {"a": "b"},
        "Entrypoint": ["/x"],
        "Cmd": ["-c"],
        "StopSignal": "SIGINT",
        "Env": ["A=b"],
        "ExposedPorts": {"80/tcp": {}},
        "Volumes": {"/data": {}},
        "WorkingDir": "/srv",
    }


def test_removed_while_it_is_described(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("inspect_image", NotFound("inspect image: no such image"))
    assert status(rt, BUSYBOX, verbose=True) == pb.ImageStatusResponse()
