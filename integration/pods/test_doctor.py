"""What `pydockershim doctor` says of a node where pods run, and of one where Docker is gone."""

import os
import subprocess
import sys
from pathlib import Path

from integration.conftest import Served
from integration.node.netns import Netns
from shim.api.v1 import api_pb2 as pb


def doctor(served: Served, *, netns: Netns | None = None, **settings: object) -> subprocess.CompletedProcess[str]:
    own = served.server.daemon.argv[served.server.daemon.argv.index("serve") + 1 :]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [*(netns.prefix if netns else ()), sys.executable, "-m", "shim", "doctor", *own, *flags]
    environ = {**os.environ, **(netns.environ if netns else {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)


def levels(reported: str) -> dict[str, str]:
    """Level by subject, of lines that are no advice."""
    return {line[6:].split("  ")[0]: line[:6].strip() for line in reported.splitlines() if line[:6].strip()}


def test_a_node_where_pods_run(served: Served) -> None:
    before = served.snapshot()
    reported = doctor(served)

    assert (reported.returncode, reported.stderr) == (0, "")
    found = levels(reported.stdout)
    assert {found[subject] for subject in ("user", "docker", "pod network", "pause image", "server")} == {"ok"}
    version = served.cri.runtime.Version(pb.VersionRequest()).runtime_version
    assert f"docker {version} answers at unix://{served.dirs.socket}" in reported.stdout
    assert served.snapshot() == before


def test_a_node_without_docker(served: Served, tmp_path: Path) -> None:
    reported = doctor(served, docker_endpoint=f"unix://{tmp_path}/absent.sock", cni_conf_dir=tmp_path)

    assert reported.returncode == 1
    found = levels(reported.stdout)
    assert (found["docker"], found["pod network"]) == ("FAIL", "FAIL")
    assert f"{tmp_path}/absent.sock" in reported.stdout
