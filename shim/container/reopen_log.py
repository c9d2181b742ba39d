"""ReopenContainerLog."""

from shim.errors import FailedPrecondition
from shim.runtime import Runtime


def reopen_container_log(rt: Runtime, *, container_id: str) -> None:
    """Go on in a new log file of the same name, after the kubelet has renamed the old one.

    No line is lost, none is in both. FailedPrecondition when the container does not run, and for one whose log is not
    written by us. A container without a log has nothing to reopen.
    """
    record = rt.view.container(container_id)
    if not record.life.running:
        raise FailedPrecondition(f"reopen the log of container {record.id}: it does not run")
    if record.foreign:
        raise FailedPrecondition(f"reopen the log of container {record.id}: another shim made it, its log is docker's")
    if record.log_path:
        rt.logs.reopen(record.id)
