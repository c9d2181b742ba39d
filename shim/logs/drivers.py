"""The logging drivers of Docker whose files can be copied. Everything the rest of the server knows of one is here.

A further driver is a module with a `Format`, a row in FORMATS and its name in `shim.config.model.DockerLogDriver`.
"""

import posixpath
from collections.abc import Callable, Mapping
from types import MappingProxyType

from shim.config.model import DockerLogDriver
from shim.logs.format import Format
from shim.logs.json_file import JSON_FILE
from shim.logs.local_file import LOCAL

FORMATS: Mapping[DockerLogDriver, Format] = MappingProxyType({"json-file": JSON_FILE, "local": LOCAL})


def driver_of(docker_type: str) -> DockerLogDriver:
    """Return the driver of a container by `HostConfig.LogConfig.Type` of its inspect; json-file where that is empty.

    A container keeps the driver it was created with, whatever the setting is now. Ours have one of FORMATS.
    """
    return next((driver for driver in FORMATS if driver == docker_type), "json-file")


def docker_log_path(driver: DockerLogDriver, *, root: str, container_id: str) -> str:
    """Return where Docker writes a container's output; `root` is its own directory (`DockerRootDir` of its info)."""
    return FORMATS[driver].path(posixpath.join(root, "containers", container_id))


def log_path(docker_type: str, *, reported: str, root: Callable[[], str], container_id: str) -> str:
    """Return where Docker writes a container's output, as an inspect shows it; empty if it will show that later.

    `reported` is `LogPath` of the inspect. `root` returns Docker's own directory, and is called where that is needed.
    """
    driver = driver_of(docker_type)
    if reported or FORMATS[driver].path_is_reported:
        return reported
    return docker_log_path(driver, root=root(), container_id=container_id)
