"""The pause image is present, is pulled, or is requested with a helpful error."""

import pytest

from shim.config.model import Config
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable
from shim.engine.errors import RegistryDenied, RegistryUnavailable
from shim.image.ensure import ensure_image
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine

PAUSE = Config().pod_infra_container_image
OTHER = "r.example/pause:9"


def test_present_image_is_returned(rt: Runtime, engine: FakeEngine) -> None:
    image = rt.view.images.find(PAUSE)
    assert image is not None
    assert ensure_image(rt, reference=PAUSE).id == image.id
    assert ensure_image(rt, reference=image.id).id == image.id
    assert engine.calls_of("pull_image") == []


def test_missing_image_is_pulled(rt: Runtime, engine: FakeEngine) -> None:
    image_id = engine.publish_image(OTHER)
    assert ensure_image(rt, reference=OTHER).id == image_id
    assert engine.calls_of("pull_image") == [OTHER]


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (RegistryUnavailable("dial tcp: connection refused"), "connection refused"),
        (RegistryDenied("authentication required"), "requires credentials"),
        (NotFound("manifest unknown"), "no such image"),
    ],
    ids=["down", "denied", "unknown"],
)
def test_failed_pull_names_the_remedies(rt: Runtime, engine: FakeEngine, failure: ShimError, cause: str) -> None:
    engine.fail_next("pull_image", failure)
    with pytest.raises(FailedPrecondition, match=cause) as caught:
        ensure_image(rt, reference=OTHER)
    for words in (
        f"pause image {OTHER} is not on this node",
        "docker pull",
        "docker load",
        "pod_infra_container_image",
    ):
        assert words in str(caught.value)


def test_unknown_id_is_refused(rt: Runtime) -> None:
    with pytest.raises(FailedPrecondition, match="image id"):
        ensure_image(rt, reference="sha256:" + "ab" * 32)


@pytest.mark.parametrize("failure", [Unavailable("no docker"), DeadlineExceeded("too late")], ids=str)
def test_other_failures_keep_their_class(rt: Runtime, engine: FakeEngine, failure: ShimError) -> None:
    engine.fail_next("pull_image", failure)
    with pytest.raises(type(failure)):
        ensure_image(rt, reference=OTHER)
