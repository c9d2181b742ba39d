"""ListContainers."""

from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime
from shim.view.queries import filter_containers


def list_containers(rt: Runtime, *, filter: pb.ContainerFilter) -> list[pb.Container]:  # noqa: A002 - the CRI's word
    """List the containers that match every part of the filter.

    Ids may be unique prefixes. Raise InvalidArgument for an ambiguous prefix. An unknown id matches nothing. The
    messages belong to the view: the caller must not modify them.
    """
    records = filter_containers(
        rt.unseen.seen(rt.view.containers()),
        container_id=filter.id,
        sandbox_id=filter.pod_sandbox_id,
        selector=filter.label_selector,
    )
    if filter.HasField("state"):
        records = [record for record in records if record.state.phase == filter.state.state]
    return [record.listed for record in records]
