"""What a run takes place on, by what is asked and not by what is known."""

import platform

import docker

from integration.conformance.results import Machine
from integration.node import images


def machine_of(api: docker.APIClient, *, python: str = platform.python_version()) -> Machine:
    """Describe where a Docker Engine is, and a server that `python` runs, by its version."""
    info = api.info()
    return Machine(
        cgroup=f"v{info.get('CgroupVersion', '1')}",
        driver=info["CgroupDriver"],
        python=".".join(python.split(".")[:2]),
        architecture=images.architecture(),
    )
