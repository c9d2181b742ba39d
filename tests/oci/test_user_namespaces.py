"""The test whether pods can have user namespaces on this node."""

from pathlib import Path

import pytest

from shim.dockerd.facts import EngineFacts
from shim.dockerd.runc import ORDERED_RUNTIME, ORDERS_OPTION
from shim.engine.answers import EngineInfo
from shim.engine.answers import Runtime as OciRuntime
from shim.oci import user_namespaces
from shim.oci.user_namespaces import UserNamespaces
from tests.fakes.engine import FakeEngine


def info(root: Path) -> EngineInfo:
    runtime = OciRuntime(runtime_args=[ORDERS_OPTION, str(root / "orders")])
    return EngineInfo(docker_root_dir=str(root), driver="overlay2", runtimes={ORDERED_RUNTIME: runtime})


def test_a_test_that_had_no_time_is_repeated(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.engine_info = info(tmp_path)
    users = UserNamespaces(EngineFacts(engine, restrict_oom_score_adj="false"), files=tmp_path / "new")
    with monkeypatch.context() as busy:
        busy.setattr(user_namespaces, "_TEST_SECONDS", 0.0)
        in_no_time = users.problem()

    assert "test user namespaces" in in_no_time
    assert users.problem() != in_no_time
