"""A manifest is remembered with the image it brought."""

from shim.ids import ImageId
from shim.manifests import KEPT, Manifests


def test_what_was_learnt_is_known() -> None:
    manifests = Manifests()
    manifests.learn("sha256:a", ImageId("sha256:1"))
    assert manifests.image_of("sha256:a") == "sha256:1"
    assert manifests.image_of("sha256:b") is None
    assert manifests.image_of("") is None


def test_the_oldest_is_forgotten() -> None:
    manifests = Manifests()
    for number in range(KEPT):
        manifests.learn(f"sha256:{number}", ImageId("sha256:1"))
    manifests.learn("sha256:0", ImageId("sha256:1"))
    manifests.learn("sha256:new", ImageId("sha256:1"))
    assert manifests.image_of("sha256:0") == manifests.image_of("sha256:new") == "sha256:1"
    assert manifests.image_of("sha256:1") is None
