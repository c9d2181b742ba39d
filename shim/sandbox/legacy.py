"""What cri-dockerd keeps of a pod beside Docker: a checkpoint, and the loopback interface in the CNI cache."""

from pathlib import Path

from shim.base.atomic_files import remove_file
from shim.cni.cache import cached_attachments, remove_cached
from shim.domain.ids import SandboxId
from shim.runtime import Runtime

ROOT = Path("/var/lib/cri-dockerd")
"""Its directory, unless a flag of it, which our `root_directory` takes too, names another."""


def remove_legacy_traces(rt: Runtime, sandbox_id: SandboxId) -> None:
    """Remove both once the pod itself has gone: by its checkpoint cri-dockerd would list it. ShimError on failure."""
    for root in {ROOT, rt.config.root_directory}:
        remove_file(root / "sandbox" / sandbox_id)
    for attachment in cached_attachments(rt.config.cni_cache_dir, container_id=sandbox_id):
        # Nothing has to be undone for it: the interface goes with its namespace.
        if all(plugin["type"] == "loopback" for plugin in attachment.conflist["plugins"]):
            remove_cached(rt.config.cni_cache_dir, attachment)
