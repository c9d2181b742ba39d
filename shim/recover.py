"""What is put right once after a start, before the kubelet's questions matter.

Little is left to do here: unfinished sandboxes are listed as not ready, and so are checkpoints without a pause
container, so that the kubelet's own Stop and Remove clean up after a crash.
"""

import structlog

from shim.errors import ShimError
from shim.runtime import Runtime
from shim.sandbox.rebuild import checkpoint_of

log = structlog.get_logger(__name__)


def recover_checkpoints(rt: Runtime) -> None:
    """Give every pod with a network a checkpoint again, so that its addresses are known and can be released."""
    for record in rt.view.sandboxes():
        if rt.checkpoints.get(record.id) is not None:
            continue
        checkpoint = checkpoint_of(rt, record)
        if checkpoint is None:
            continue
        try:
            rt.checkpoints.put(checkpoint)
        except ShimError as error:
            log.error("cannot store the rebuilt checkpoint of a pod sandbox", sandbox=record.id, error=str(error))
        else:
            log.info("rebuilt the checkpoint of a pod sandbox from the CNI cache", sandbox=record.id)
