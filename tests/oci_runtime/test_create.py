"""Which mounts of a container get the ids of its pod."""

import pytest

from shim.oci_runtime.create import is_mapped
from shim.oci_runtime.order import Order, UserNamespace

DOCKER = "/var/lib/docker"
ORDER = Order(
    "c", UserNamespace(uid=1, uids=1, gid=1, gids=1, pause=""), DOCKER, ("/data", "/etc/resolv.conf"), ("/plain",)
)


@pytest.mark.parametrize(
    ("source", "destination", "mapped"),
    [
        ("/srv/data", "/data", True),
        ("/srv/plain", "/plain", False),
        ("/var/lib/pydockershim/resolv-conf/1", "/etc/resolv.conf", True),
        (f"{DOCKER}/containers/c/hosts", "/etc/hosts", True),
        (f"{DOCKER}/volumes/v/_data", "/var/cache", True),
        (f"{DOCKER}/containers/p/mounts/shm", "/dev/shm", False),
        (f"{DOCKER}/volumes/v/_data", "/plain", False),
        ("/usr/lib/libvendor.so.1", "/usr/lib/libvendor.so.1", False),
        ("/var/lib/docker-other/file", "/file", False),
    ],
)
def test_only_named_mounts_and_dockers_own_get_the_pods_ids(source: str, destination: str, mapped: bool) -> None:
    assert is_mapped({"source": source, "destination": destination}, ORDER) is mapped
