"""ReopenContainerLog."""

from shim.container.find import running_container
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime


def reopen_container_log(rt: Runtime, *, container_id: str) -> None:
    """Continue in a new log file of the same name, after the kubelet has renamed the old one.

    No line is lost, none is in both. Raise FailedPrecondition when the container is not running, and for one of a
    legacy pod, whose log is Docker's. A container without a log has nothing to reopen.
    """
    record = running_container(rt, container_id=container_id)
    if record.legacy:
        raise FailedPrecondition(f"reopen the log of container {record.id}: another shim made it; its log is docker's")
    if record.log_path:
        rt.logs.reopen(record.id)
