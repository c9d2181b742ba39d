"""ReopenContainerLog."""

from shim.container.find import running_container
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime


def reopen_container_log(rt: Runtime, *, container_id: str) -> None:
    """Continue the log in a new file of the same name, after the kubelet has renamed the old file.

    No line is lost or duplicated. Raise FailedPrecondition if the container is not running, or belongs to a cri-dockerd
    pod, whose log is Docker's. Do nothing for a container without a log.
    """
    record = running_container(rt, container_id=container_id)
    if record.legacy:
        raise FailedPrecondition(f"reopen the log of container {record.id}: another shim made it; its log is Docker's")
    if record.log_path:
        rt.logs.reopen(record.id)
