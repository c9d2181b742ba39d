"""Files that cri-dockerd keeps for a pod: a checkpoint, and the loopback interface in the CNI cache."""

from pathlib import Path

from shim.base.atomic_files import remove_file
from shim.cni.cache import cached_attachments, remove_cached
from shim.domain.ids import SandboxId
from shim.runtime import Runtime

ROOT = Path("/var/lib/cri-dockerd")
"""cri-dockerd's default directory. If its flag names another directory, `root_directory` has this value."""


def remove_cri_dockerd_files(rt: Runtime, sandbox_id: SandboxId) -> None:
    """Remove both files of a removed pod, because cri-dockerd lists pods by checkpoint. Raise ShimError."""
    for root in {ROOT, rt.config.root_directory}:
        remove_file(root / "sandbox" / sandbox_id)
    for attachment in cached_attachments(rt.config.cni_cache_dir, container_id=sandbox_id):
        # No DEL is needed, because the interface disappears with its namespace.
        if all(plugin["type"] == "loopback" for plugin in attachment.conflist["plugins"]):
            remove_cached(rt.config.cni_cache_dir, attachment)
