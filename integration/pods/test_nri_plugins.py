"""Plugins of the NRI project, built from its Go sources.

They are not in this repository: NRI_PLUGINS names the directory of their programs. A test whose plugin is missing is
skipped.
"""

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from integration import nri_plugins
from integration.conftest import Served
from integration.pods.kubelet import Kubelet
from integration.pods.test_nri import docker_exec, kubelet
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

__all__ = ["kubelet"]  # the fixture

PROGRAMS = Path(os.environ.get("NRI_PLUGINS", "/nonexistent"))


def running(served: Served, *names: str, log: Path) -> AbstractContextManager[None]:
    """Run plugins inside the block."""
    for name in names:
        if not (PROGRAMS / name).is_file():
            pytest.skip(f"{name} is not in NRI_PLUGINS")
    return nri_plugins.running(served, [PROGRAMS / name for name in names], log=log)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "plugins.log"


def test_device_injector_adds_devices_and_mounts(served: Served, kubelet: Kubelet, log: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("injected\n")
    with running(served, "device-injector", log=log):
        device = "- path: /dev/mine\n  type: c\n  major: 1\n  minor: 3\n  file_mode: 438\n"
        mount = f"- source: {tmp_path}\n  destination: /mine\n  type: bind\n  options: [rbind, ro]\n"
        pod = kubelet.pod(annotations={"devices.nri.io/pod": device, "mounts.nri.io/pod": mount})
        container = kubelet.started(pod)
        shown = kubelet.inside(container, "cat /mine/file; echo x > /dev/mine && stat -c %t:%T:%a /dev/mine")
    assert shown.split() == ["injected", "1:3:666"]


def test_ulimit_adjuster_sets_limits_for_exec_too(served: Served, kubelet: Kubelet, log: Path) -> None:
    with running(served, "ulimit-adjuster", log=log):
        pod = kubelet.pod(
            annotations={
                "ulimits.noderesource.dev/container.limited": "- type: RLIMIT_NOFILE\n  soft: 1111\n  hard: 2222\n"
            }
        )
        name = pb.ContainerMetadata(name="limited")
        container = kubelet.started(pod, "sh", "-c", "ulimit -n > /limit; sleep 3600", metadata=name)
        wait_until(lambda: kubelet.inside(container, "cat /limit").strip() == "1111")
        assert kubelet.inside(container, "ulimit -Hn").strip() == "2222"
        # The soft limit is not certain: runc 1.1.5 may raise it to the hard limit in each exec.
        assert docker_exec(served, container, "ulimit -Hn").strip() == "2222"


def test_hook_injector_runs_hooks_of_the_node(served: Served, kubelet: Kubelet, log: Path, tmp_path: Path) -> None:
    hooks = Path("/etc/containers/oci/hooks.d")
    missing = [path for path in (hooks, *hooks.parents) if not path.exists()]
    hooks.mkdir(parents=True, exist_ok=True)
    script, made = tmp_path / "hook", tmp_path / "made"
    script.write_text(f"#!/bin/sh\ncat > {made}\n")
    script.chmod(0o755)
    definition = hooks / "test.json"
    wanted = {"hook": {"path": str(script)}, "when": {"always": True}, "stages": ["createRuntime"]}
    definition.write_text(json.dumps({"version": "1.0.0", **wanted}))
    try:
        with running(served, "hook-injector", log=log):
            container = kubelet.started(kubelet.pod())
            assert container in made.read_text()
    finally:
        definition.unlink()
        for path in missing:
            path.rmdir()


def test_three_plugins_together_change_only_their_fields(served: Served, kubelet: Kubelet, log: Path) -> None:
    with running(served, *nri_plugins.TOGETHER, log=log):
        pod = kubelet.pod()
        container = kubelet.started(pod)
        assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
        served.cri.stop_container(container)
        served.cri.remove_container(container)
        served.cri.remove(pod.id)
    heard = log.read_text()
    for event in ("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "RemovePodSandbox"):
        assert event in heard
