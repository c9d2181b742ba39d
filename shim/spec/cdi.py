"""CDI devices (Container Device Interface): a container names them, and a specification on the node describes them."""

from collections.abc import Iterable

from shim.api.v1 import api_pb2 as pb
from shim.dockerd.facts import EngineFacts
from shim.domain.errors import FailedPrecondition
from shim.engine.connection import ApiVersion
from shim.engine.interface import JsonObject
from shim.engine.versions import require_api

CDI_API = (1, 44)
"""First Engine API that takes CDI device names."""

DISCOVERED_API = (1, 50)
"""First Engine API that lists the devices; older Engines fail only at start for an unknown device."""

_DRIVER = "cdi"


def docker_device_requests(devices: Iterable[pb.CDIDevice]) -> list[JsonObject]:
    """Build DeviceRequests for CDI devices by their qualified names. Two plugins may name the same device."""
    names = list(dict.fromkeys(device.name for device in devices))
    return [{"Driver": _DRIVER, "DeviceIDs": names}] if names else []


def check_cdi_devices(devices: Iterable[pb.CDIDevice], *, facts: EngineFacts, api_version: ApiVersion) -> None:
    """Raise Unsupported if Docker has no CDI, FailedPrecondition if CDI is off or a device is unknown."""
    named = {device.name: index for index, device in reversed(list(enumerate(devices)))}
    if not named:
        return
    require_api(api_version, needs=CDI_API, what="config.CDI_devices")
    info = facts.info(max_age=0)  # specifications come and go with plugins
    if not info.cdi_spec_dirs:
        raise FailedPrecondition(
            "config.CDI_devices: CDI is switched off in Docker; `features.cdi` in daemon.json switches it on"
        )
    if api_version < DISCOVERED_API:
        return
    known = {device.id for device in info.discovered_devices or () if device.source == _DRIVER}
    for name, index in named.items():
        if name not in known:
            raise FailedPrecondition(
                f"config.CDI_devices[{index}].name: no specification in {', '.join(info.cdi_spec_dirs)} has {name!r}"
            )
