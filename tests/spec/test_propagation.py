from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.hostfs.host_paths import HostSource, inspect_host_path
from shim.spec.propagation import check_propagation
from tests.container.propagating import propagating_mounts


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A directory on a mount of each kind."""
    with propagating_mounts(tmp_path) as mounts:
        yield mounts


def inspected(path: Path) -> HostSource:
    return inspect_host_path(str(path), field="config.mounts[0]", with_mount=True)


PRIVATE, IN, BOTH = pb.PROPAGATION_PRIVATE, pb.PROPAGATION_HOST_TO_CONTAINER, pb.PROPAGATION_BIDIRECTIONAL


@pytest.mark.parametrize(
    ("kind", "propagation"),
    [("shared", IN), ("shared", BOTH), ("slave", IN), ("shared", PRIVATE), ("slave", PRIVATE), ("private", PRIVATE)],
)
def test_propagation_that_the_mount_allows_passes(
    mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation
) -> None:
    check_propagation(inspected(mounts[kind]), propagation=propagation, field="config.mounts[0]")
    check_propagation(inspected(mounts[kind] / "not/there"), propagation=propagation, field="config.mounts[0]")


@pytest.mark.parametrize(
    ("kind", "propagation", "wanted"),
    [("private", IN, "shared or slave"), ("private", BOTH, "shared"), ("slave", BOTH, "shared")],
)
def test_propagation_that_the_mount_forbids_is_refused_with_advice(
    mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation, wanted: str
) -> None:
    point = mounts[kind].parent
    with pytest.raises(FailedPrecondition) as refusal:
        check_propagation(inspected(mounts[kind]), propagation=propagation, field="config.mounts[2]")
    assert str(refusal.value) == (
        f"config.mounts[2].propagation {pb.MountPropagation.Name(propagation)}: {mounts[kind]} is on the mount {point},"
        f" which is not {wanted}; `mount --make-rshared {point}` on the node makes it so"
    )
