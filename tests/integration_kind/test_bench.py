from pathlib import Path
from typing import cast

import pytest

from integration.kind.bench import table
from integration.kind.cluster import Cluster
from integration.node.commands import NodeError
from integration.node.engine import Engine

KIND = """\
#!/bin/sh
cat >&2 <<'END'
Creating cluster "test" ...
 • Ensuring node image (node.test/kubernetes-node:1) 🖼  ...
 ✓ Ensuring node image (node.test/kubernetes-node:1) 🖼
 • Starting control-plane 🕹️  ...
 ✓ Starting control-plane 🕹️
 • Waiting ≤ 5m0s for control-plane = Ready ⏳  ...
END
echo "$SAID" >&2
exit "$STATUS"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a fake `kind` that prints steps like the real program."""
    (tmp_path / "kind").write_text(KIND)
    (tmp_path / "kind").chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def made(environ: dict[str, str], **more: str) -> Cluster:
    return Cluster("test", cast("Engine", None), environ | more)


def test_each_step_of_kind_is_timed(environ: dict[str, str]) -> None:
    cluster = made(environ, STATUS="0", SAID=" ✓ Waiting ≤ 5m0s for control-plane = Ready ⏳")
    cluster.create()

    assert list(cluster.steps) == ["Ensuring node image", "Starting control-plane", "Waiting for control-plane = Ready"]
    assert all(seconds >= 0 for seconds in cluster.steps.values())


def test_an_error_has_the_output_of_kind(environ: dict[str, str]) -> None:
    with pytest.raises(NodeError, match=r"(?s)^kind create cluster --name test: exit status 3\n.*\nERROR: no disk$"):
        made(environ, STATUS="3", SAID="ERROR: no disk").create()


def test_the_table_has_medians_and_ratios() -> None:
    containerd = [{"step": 2.0, "containerd": 40.0}, {"step": 1.0, "containerd": 42.0}, {"step": 9.0}]
    ours = [{"step": 4.0, "dockerd": 80.0}]

    assert [" ".join(line.split()) for line in table("seconds", containerd, ours)] == [
        "seconds containerd pydockershim ratio",
        "step 2.0 (1.0 to 9.0) 4.0 (4.0 to 4.0) 2.00",
        "dockerd - 80.0 (80.0 to 80.0)",
        "containerd 41.0 (40.0 to 42.0) -",
    ]
