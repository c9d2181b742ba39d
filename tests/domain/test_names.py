"""Docker names of pods and containers."""

import re

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain import names
from shim.domain.errors import InvalidArgument

POD = pb.PodSandboxMetadata(name="web-0", namespace="shop", uid="1b4e-a", attempt=2)


def test_names_have_the_format_of_docker_backed_nodes() -> None:
    assert names.sandbox_name(POD) == "k8s_POD_web-0_shop_1b4e-a_2"
    container = pb.ContainerMetadata(name="nginx", attempt=7)
    assert names.container_name(container, pod=POD) == "k8s_nginx_web-0_shop_1b4e-a_7"


def test_a_random_suffix_is_eight_hexadecimal_digits_and_differs() -> None:
    found = {names.with_random_suffix("k8s_a") for _ in range(20)}
    assert len(found) == 20
    assert all(re.fullmatch(r"k8s_a_[0-9a-f]{8}", name) for name in found)


@pytest.mark.parametrize("value", ["a", "0", "web-0", "kube-system", "my.pod_x", "A" * 253])
def test_a_valid_name_part_passes(value: str) -> None:
    names.check_name_part(value, field="metadata.name")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is empty"),
        ("a" * 254, "has 254 characters, at most 253 are allowed"),
        ("a/b", "'a/b' may hold only"),
        ("-a", "'-a' may hold only"),
        ("_a", "'_a' may hold only"),
        ("..", "'..' may hold only"),
        ("a b", "'a b' may hold only"),
        ("a\n", r"'a\\n' may hold only"),
        ("pödd", "'pödd' may hold only"),
        ("a\0", r"'a\\x00' may hold only"),
    ],
)
def test_an_invalid_name_part_is_refused_with_its_field(value: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^metadata.uid {reason}"):
        names.check_name_part(value, field="metadata.uid")
