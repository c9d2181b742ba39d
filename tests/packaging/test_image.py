"""The `docker run` command in the Dockerfile's header."""

import re
from pathlib import Path, PurePosixPath

import pytest

from shim.config.model import Config

TEXT = (Path(__file__).parents[2] / "Dockerfile").read_text().split("\nFROM")[0]
MOUNTS = {PurePosixPath(mount.split(":")[0]): mount for mount in re.findall(r"-v (\S+)", TEXT)}
BELOW_RUN = {"/var/run": "/run"}
"""Links that every Linux has."""


def real(path: object) -> PurePosixPath:
    text = str(path).removeprefix("unix://")
    for link, target in BELOW_RUN.items():
        text = re.sub(f"^{link}/", f"{target}/", text)
    return PurePosixPath(text)


def test_no_mount_is_inside_a_shared_directory_of_the_node() -> None:
    """Such a mount would appear on the node and stay there: dockerd cannot replace a socket that is a mount point."""
    shared = [path for path, mount in MOUNTS.items() if mount.endswith(":rshared")]

    assert shared
    assert not [path for path in MOUNTS if any(above in real(path).parents for above in shared)]


def test_a_stop_has_more_time_than_the_grace_period() -> None:
    found = re.search(r"--stop-timeout (\d+)", TEXT)

    assert found
    assert int(found[1]) > Config().shutdown_grace


def test_each_path_is_the_same_inside_the_container() -> None:
    assert all(mount.split(":")[0] == mount.split(":")[1] for mount in MOUNTS.values())


@pytest.mark.parametrize(
    "setting",
    [
        "container_runtime_endpoint",
        "docker_endpoint",
        "root_directory",
        "netns_directory",
        "kubelet_root_dir",
        "cni_conf_dir",
        "cni_bin_dir",
        "cni_cache_dir",
    ],
)
def test_paths_of_settings_are_mounted_from_the_node(setting: str) -> None:
    value = getattr(Config(), setting)

    for path in value if isinstance(value, tuple) else [value]:
        assert any(place == real(path) or place in real(path).parents for place in MOUNTS), path
