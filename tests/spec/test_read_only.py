import ctypes
import errno
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.spec.read_only import (
    kernel_sets_attributes_recursively,
    read_only_options,
    recursive_read_only_supported,
)


def options(mount: pb.Mount, *, api: tuple[int, int] = (1, 44), recursive: bool = False) -> dict[str, Any]:
    return read_only_options(mount, field="config.mounts[0]", api_version=api, recursive_read_only=recursive)


def test_read_only_is_not_recursive_by_default() -> None:
    assert options(pb.Mount(readonly=True)) == {"ReadOnlyNonRecursive": True}
    assert options(pb.Mount(readonly=True), api=(1, 43)) == {}  # older Engines lack the field and are never recursive
    assert options(pb.Mount()) == {}


def test_recursive_read_only_is_passed_to_docker() -> None:
    mount = pb.Mount(readonly=True, recursive_read_only=True)
    assert options(mount, recursive=True) == {"ReadOnlyForceRecursive": True}
    with pytest.raises(FailedPrecondition, match=r"^RROUnsupported: config\.mounts\[0\]\.recursive_read_only: the OCI"):
        options(mount, recursive=False)
    with pytest.raises(
        FailedPrecondition, match=r"^RROUnsupported: .*: needs Docker Engine 25\.0 \(API 1\.44\); this one"
    ):
        options(mount, api=(1, 43), recursive=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"readonly": False},
        {"readonly": True, "propagation": pb.PROPAGATION_HOST_TO_CONTAINER},
        {"readonly": True, "propagation": pb.PROPAGATION_BIDIRECTIONAL},
    ],
    ids=["writable", "slave", "shared"],
)
def test_recursive_read_only_needs_a_private_read_only_mount(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.mounts\[0\]\.recursive_read_only"):
        options(pb.Mount(recursive_read_only=True, **fields), recursive=True)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Clear the cached support of the kernel before and after."""
    kernel_sets_attributes_recursively.cache_clear()
    yield
    kernel_sets_attributes_recursively.cache_clear()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ('{"mountOptions": ["ro", "rro"]}', True),
        ('{"mountOptions": ["ro"], "annotations": {"x": "\\"rro\\""}}', False),
        ('{"mountOptions": null}', False),
        ("[]", False),
        ("rro", False),
        ("", False),
    ],
    ids=["yes", "elsewhere", "null", "no object", "no JSON", "empty"],
)
def test_runtime_support_is_read_from_its_features(features: str, expected: bool) -> None:
    assert recursive_read_only_supported({"org.opencontainers.runtime-spec.features": features}) is expected


def test_a_runtime_without_features_has_no_support() -> None:
    assert not recursive_read_only_supported(None)
    assert not recursive_read_only_supported({})


@pytest.mark.parametrize(("answer", "expected"), [(errno.ENOSYS, False), (errno.EINVAL, True), (errno.EPERM, True)])
def test_the_kernel_must_support_it_too(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, answer: int, expected: bool
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=lambda *_: -1))
    monkeypatch.setattr(ctypes, "get_errno", lambda: answer)
    features = {"org.opencontainers.runtime-spec.features": '{"mountOptions": ["rro"]}'}
    assert recursive_read_only_supported(features) is expected


def test_probing_this_kernel_is_harmless(forgotten: None) -> None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert kernel_sets_attributes_recursively() is (release >= (5, 12))
