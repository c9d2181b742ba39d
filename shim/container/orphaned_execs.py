"""Ends execs of an earlier server that was stopped or killed before it could end them. Their clients are gone.

The mark of `shim.engine.detach_keys` identifies them; `docker exec` sets no mark. A restarted Docker forgets all execs,
and their processes run until their container ends.
"""

import structlog

from shim.base import deadline, deferred_checks
from shim.container.exec_process import end_later
from shim.domain.errors import NotFound
from shim.domain.ids import ContainerId
from shim.engine.detach_keys import server_of
from shim.runtime import Runtime

log = structlog.get_logger(__name__)


def end_orphaned_execs(rt: Runtime, container_id: ContainerId) -> None:
    """Let deferred checks end the execs that an earlier server left in a container, even if they have not begun.

    Raise Unavailable, or DeadlineExceeded if Docker does not answer in time.
    """
    with deadline.bound(deferred_checks.CHECK_SECONDS):
        try:
            execs = rt.engine.inspect_container(container_id).exec_ids or []
        except NotFound:
            return
        for exec_id in execs:
            if _is_orphaned(rt, exec_id):
                log.warning("ending exec left by an earlier server", exec_id=exec_id, container=container_id)
                end_later(rt, exec_id, container_id=container_id)


def _is_orphaned(rt: Runtime, exec_id: str) -> bool:
    try:
        found = rt.engine.inspect_exec(exec_id)
    except NotFound:  # the exec has ended
        return False
    server = server_of(found.detach_keys)
    return found.exit_code is None and server not in ("", rt.server.mark)
