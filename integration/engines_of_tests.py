"""The engines that tests run on, unless the command line names engines."""

from collections.abc import Sequence
from pathlib import PurePath

_OLDEST_AND_NEWEST = ("20.10", "28-containerd")
_EACH_STORE = ("20.10", "28", "28-containerd")
ENGINES_OF = {
    "": ("20.10", "28"),
    # From 29 on Docker uses the containerd image store by default.
    "fields": _OLDEST_AND_NEWEST,
    "logs": _OLDEST_AND_NEWEST,
    "pods": _OLDEST_AND_NEWEST,
    "view": _OLDEST_AND_NEWEST,
    # Image configurations, layers and writable layers differ between the stores.
    "image": _EACH_STORE,
    "stats": _EACH_STORE,
    # These tests are long, and depend on the server more than on Docker.
    "by_hand": ("28",),
    "by_hand/test_user_namespace_containers.py": _EACH_STORE,
    "chaos": ("28-containerd",),
    "fields/test_daemon_json.py": ("28",),
    "image/test_credentials.py": ("28-containerd",),
    "logs/test_restart.py": ("28-containerd",),
    "logs/test_rotation.py": ("28-containerd",),
    "networking/test_leftovers.py": ("28",),
    "operating/test_install_docker.py": ("28",),
    "operating/test_migration.py": ("28",),
    "packages/test_pins.py": ("28",),
    "pods/test_cni_directory.py": ("28-containerd",),
    "pods/test_doctor.py": ("28",),
    "pods/test_exit_storms.py": ("28-containerd",),
    "pods/test_failures.py": ("28-containerd",),
    "pods/test_interruptions.py": ("28-containerd",),
    "pods/test_leaked_shims.py": ("28-containerd",),
    "pods/test_many_pods.py": ("28-containerd",),
    "streaming/test_ends.py": ("28",),
    "streaming/test_hostile.py": ("28",),
    "streaming/test_portforward.py": ("28",),
    "view/test_reads.py": ("28-containerd",),
}
"""Engines by folder or file; "" is for all others. `make test-engines` runs every test on each engine."""


def engines_of(path: PurePath) -> Sequence[str]:
    """Return the default engines for the tests of a file, whose path is relative to this folder."""
    return next(ENGINES_OF[place] for place in (str(path), path.parts[0], "") if place in ENGINES_OF)
