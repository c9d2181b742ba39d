"""Files that cri-dockerd keeps for a pod: a checkpoint, and the loopback interface in the CNI cache."""

from pathlib import Path

from shim.base.atomic_files import remove_file
from shim.cni.cache import cached_attachments, remove_cached
from shim.domain.ids import SandboxId
from shim.runtime import Runtime

ROOT = Path("/var/lib/cri-dockerd")
"""cri-dockerd's default directory. `root_directory` takes the value of the flag by which users change it."""


def remove_cri_dockerd_files(rt: Runtime, sandbox_id: SandboxId) -> None:
    """Remove both files of a removed pod: cri-dockerd would still list it by its checkpoint. Raise ShimError."""
    for root in {ROOT, rt.config.root_directory}:
        remove_file(root / "sandbox" / sandbox_id)
    for attachment in cached_attachments(rt.config.cni_cache_dir, container_id=sandbox_id):
        # Needs no DEL: the interface disappears with its namespace.
        if all(plugin["type"] == "loopback" for plugin in attachment.conflist["plugins"]):
            remove_cached(rt.config.cni_cache_dir, attachment)
