"""RuntimeConfig."""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime

_DRIVERS = {"systemd": pb.SYSTEMD, "cgroupfs": pb.CGROUPFS}


def runtime_config(rt: Runtime) -> pb.RuntimeConfigResponse:
    """Return Docker's cgroup driver, from its last answer if it does not answer now.

    Raise FailedPrecondition if Docker uses no cgroups, Unavailable if it has never answered.
    """
    driver = rt.facts.cgroup_driver()
    if driver not in _DRIVERS:
        raise FailedPrecondition(f"Docker uses the cgroup driver {driver!r}, pods need systemd or cgroupfs")
    return pb.RuntimeConfigResponse(linux=pb.LinuxRuntimeConfiguration(cgroup_driver=_DRIVERS[driver]))
