"""Docker's logging drivers whose files the server can copy.

To add a driver, write a module with its `Format`, and add the driver to FORMATS and to
`shim.config.model.DockerLogDriver`.
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
    """Return the driver for `HostConfig.LogConfig.Type` of a container's inspect; json-file if it is empty.

    A container keeps its driver even if the setting changes later.
    """
    return next((driver for driver in FORMATS if driver == docker_type), "json-file")


def docker_log_path(driver: DockerLogDriver, *, root: str, container_id: str) -> str:
    """Return the path of Docker's log file. `root` is Docker's root directory (`DockerRootDir` of its info)."""
    return FORMATS[driver].path(posixpath.join(root, "containers", container_id))


def log_path(docker_type: str, *, reported: str, root: Callable[[], str], container_id: str) -> str:
    """Return the path of Docker's log file; empty if Docker does not report it yet.

    `reported` is `LogPath` of the inspect. `root` returns Docker's root directory; it is called only if needed.
    """
    driver = driver_of(docker_type)
    if reported or FORMATS[driver].path_is_reported:
        return reported
    return docker_log_path(driver, root=root(), container_id=container_id)
