"""The processes of a checkpoint have no more rights than a new container."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from shim.oci_runtime.order import OrderError
from shim.oci_runtime.rights import check

CONFIG: dict[str, Any] = {
    "process": {
        "capabilities": {"bounding": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"]},
        "noNewPrivileges": True,
        "apparmorProfile": "docker-default",
        "selinuxLabel": "system_u:system_r:container_t:s0:c1,c2",
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}],
    },
    "linux": {
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
        "maskedPaths": ["/proc/kcore"],
        "readonlyPaths": ["/proc/sys"],
    },
}


def changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    config = deepcopy(CONFIG)
    change(config["process"], config["linux"])
    return config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda process, _: process["capabilities"]["bounding"].append("CAP_SYS_ADMIN"),
            "bounding capabilities CAP_SYS",
        ),
        (lambda process, _: process.pop("noNewPrivileges"), "gain privileges"),
        (lambda process, _: process.pop("apparmorProfile"), "AppArmor profile '', not 'docker-default'"),
        (lambda process, _: process.pop("selinuxLabel"), "SELinux"),
        (lambda process, _: process["rlimits"][0].update(hard=21), "RLIMIT_NOFILE 21, not 20"),
        (lambda process, _: process.pop("rlimits"), "RLIMIT_NOFILE without a limit"),
        (lambda _, linux: linux.pop("seccomp"), "no seccomp filter"),
        (lambda _, linux: linux.pop("maskedPaths"), "no maskedPaths"),
        (lambda _, linux: linux.update(readonlyPaths=[]), "no readonlyPaths"),
    ],
)
def test_more_rights_are_refused(change: Callable[[dict[str, Any], dict[str, Any]], object], named: str) -> None:
    with pytest.raises(OrderError, match=named):
        check(changed(change), CONFIG)


def test_equal_and_fewer_rights_are_taken() -> None:
    check(CONFIG, CONFIG)
    check(
        changed(lambda process, _: process.update(capabilities={}, rlimits=[{"type": "RLIMIT_NOFILE", "hard": 1}])),
        CONFIG,
    )
    check(
        CONFIG,
        {
            "process": {"capabilities": CONFIG["process"]["capabilities"], "apparmorProfile": "docker-default"},
            "linux": {},
        },
    )
