"""Remaining pods prevent an uninstallation."""

from pathlib import Path

import pytest

from shim.config.model import Config
from shim.domain.errors import FailedPrecondition
from shim.install.pods import pods_on_node
from shim.install.uninstall import Removal
from shim.netns.enter import in_netns
from shim.netns.loopback_guard import has_guard, install_guard
from tests.netns.conftest import directory, pinned, pod, start_pod

__all__ = ["directory", "pinned", "pod", "start_pod"]


def removal(tmp_path: Path, *, force: bool) -> Removal:
    config = Config(root_directory=tmp_path / "state", docker_endpoint=f"unix://{tmp_path}/absent.sock")
    # No systemctl on the PATH, and the node is this machine: no step is run.
    return Removal(root=Path("/"), force=force, config=config, environ={"PATH": str(tmp_path)})


def test_pods_missing_in_docker_are_found_by_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "state" / "sandboxes").mkdir(parents=True)
    (tmp_path / "state" / "sandboxes" / f"{'ab' * 32}.json").write_text("{}")

    assert pods_on_node(removal(tmp_path, force=False).config) == ["sandbox abababababab"]


def test_uninstall_with_pods_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "state" / "sandboxes").mkdir(parents=True)
    (tmp_path / "state" / "sandboxes" / f"{'ab' * 32}.json").write_text("{}")

    with pytest.raises(FailedPrecondition, match=r"1 containers of pods .*sandbox abababababab.*crictl rmp"):
        next(removal(tmp_path, force=False).steps())


def test_forced_uninstall_keeps_the_pods_state(tmp_path: Path) -> None:
    (tmp_path / "state" / "sandboxes").mkdir(parents=True)
    (tmp_path / "state" / "sandboxes" / f"{'ab' * 32}.json").write_text("{}")

    words = [step.words for step in removal(tmp_path, force=True).steps()]

    assert f"keep  {tmp_path / 'state'}, for 1 containers of pods that are left" in words
    assert not any(word.startswith(f"remove {tmp_path / 'state'}") for word in words)


def test_uninstall_without_pods_removes_the_state(tmp_path: Path) -> None:
    (tmp_path / "state" / "sandboxes").mkdir(parents=True)

    assert f"remove {tmp_path / 'state'}" in [step.words for step in removal(tmp_path, force=False).steps()]


def test_loopback_rule_is_removed_unless_pods_are_left(tmp_path: Path, pinned: Path) -> None:
    def about_the_rule(*, force: bool) -> list[str]:
        words = in_netns(pinned, lambda: [step.words for step in removal(tmp_path, force=force).steps()])
        return [word for word in words if "pydockershim of nftables" in word]

    assert about_the_rule(force=False) == []
    in_netns(pinned, install_guard)
    assert about_the_rule(force=False) == ["remove table pydockershim of nftables"]

    (tmp_path / "state" / "sandboxes").mkdir(parents=True)
    (tmp_path / "state" / "sandboxes" / f"{'ab' * 32}.json").write_text("{}")
    assert [word[:5] for word in about_the_rule(force=True)] == ["keep "]

    (tmp_path / "state" / "sandboxes" / f"{'ab' * 32}.json").unlink()
    steps = in_netns(pinned, lambda: list(removal(tmp_path, force=False).steps()))
    (remove,) = [step.do for step in steps if step.words == "remove table pydockershim of nftables"]
    assert remove is not None
    in_netns(pinned, remove)
    assert not in_netns(pinned, has_guard)
