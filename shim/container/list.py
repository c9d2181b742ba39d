"""ListContainers."""

from shim.api.v1 import api_pb2 as pb
from shim.ids import only_id
from shim.runtime import Runtime


def list_containers(rt: Runtime, *, filter: pb.ContainerFilter) -> list[pb.Container]:  # noqa: A002 - the CRI's word
    """List containers that fit every part of the filter; ids in it may be unique prefixes.

    InvalidArgument for an ambiguous one, as in every other RPC; an unknown one fits nothing. The messages are the
    view's own: copy before a change.
    """
    records = rt.view.containers()
    if filter.id:
        only = only_id(filter.id, [record.id for record in records], field="filter.id")
        records = tuple(record for record in records if record.id == only)
    if filter.pod_sandbox_id:
        pods = {record.sandbox_id for record in records}
        only = only_id(filter.pod_sandbox_id, pods, field="filter.pod_sandbox_id")
        records = tuple(record for record in records if record.sandbox_id == only)
    if filter.HasField("state"):
        records = tuple(record for record in records if record.life.state == filter.state.state)
    if wanted := filter.label_selector.items():
        records = tuple(record for record in records if wanted <= record.config.labels.items())
    return [record.listed for record in records]
