import pytest

from shim.dockerd.runc import exec_root
from shim.engine.answers import NetworkSettings


@pytest.mark.parametrize(
    ("key", "root"),
    [
        ("/var/run/docker/netns/4f1b2c3d4e5f", "/var/run/docker"),
        ("/run/user/1000/docker/netns/default", "/run/user/1000/docker"),
        ("/srv/netns/exec/netns/4f1b2c3d4e5f", "/srv/netns/exec"),
        ("", ""),
        ("4f1b2c3d4e5f", ""),
    ],
)
def test_exec_root_is_found_from_the_sandbox_key(key: str, root: str) -> None:
    assert exec_root(NetworkSettings(sandbox_key=key)) == root
    assert exec_root(None) == ""
