"""The logging drivers of Docker whose files can be copied."""

import posixpath
from collections.abc import Mapping
from types import MappingProxyType

from shim.config.model import DockerLogDriver
from shim.logs.format import Format
from shim.logs.json_file import JSON_FILE
from shim.logs.local_file import LOCAL

FORMATS: Mapping[DockerLogDriver, Format] = MappingProxyType({"json-file": JSON_FILE, "local": LOCAL})


def docker_log_path(driver: DockerLogDriver, *, root: str, container_id: str) -> str:
    """Where Docker writes a container's output; `root` is its own directory (`DockerRootDir` of its info)."""
    return FORMATS[driver].path(posixpath.join(root, "containers", container_id))
