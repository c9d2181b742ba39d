from pathlib import Path

import pytest

from shim.engine.answers import Runtime
from shim.engine.facts import CAP_SYS_RESOURCE, EngineFacts, has_capability
from tests.facts import own_score
from tests.fakes.engine import FakeEngine


def facts(engine: FakeEngine, restrict: str = "auto") -> EngineFacts:
    return EngineFacts(engine, restrict_oom_score_adj=restrict)  # type: ignore[arg-type]  # parametrised literals


def infos(engine: FakeEngine) -> int:
    return len(engine.calls_of("info"))


def test_info_is_asked_once_unless_it_must_be_fresh(engine: FakeEngine) -> None:
    known = facts(engine)
    assert known.info().server_version == known.info().server_version
    assert infos(engine) == 1
    known.info(max_age=0)
    assert infos(engine) == 2
    known.info(max_age=60)
    assert infos(engine) == 2


def test_a_runtime_added_by_a_reload_is_found(engine: FakeEngine) -> None:
    known = facts(engine)
    assert set(known.runtimes()) == {"runc"}
    assert engine.engine_info.runtimes is not None
    engine.engine_info.runtimes["kata"] = Runtime(path="kata")
    assert "kata" in known.runtimes(wanted="kata")


@pytest.mark.parametrize(("restrict", "wanted", "given"), [("false", -998, -998), ("false", 500, 500)])
def test_scores_are_left_alone_when_told_so(restrict: str, wanted: int, given: int, engine: FakeEngine) -> None:
    assert facts(engine, restrict).possible_oom_score_adj(wanted) == given


def test_scores_are_raised_to_what_the_daemon_has(engine: FakeEngine) -> None:
    # The daemon of the fake Engine is this process.
    known = facts(engine, "true")
    assert known.possible_oom_score_adj(-998) == own_score()
    assert known.possible_oom_score_adj(1000) == 1000


def test_auto_looks_at_the_daemons_bounding_set(engine: FakeEngine) -> None:
    unlimited = has_capability(Path("/proc/self/status"), CAP_SYS_RESOURCE)
    assert facts(engine).possible_oom_score_adj(-998) == (-998 if unlimited else own_score())


@pytest.mark.parametrize(
    ("line", "found"),
    [("CapBnd:\t000001ffffffffff", True), ("CapBnd:\t000001fffeffffff", False), ("CapEff:\t000001ffffffffff", False)],
)
def test_capabilities_are_read_from_the_bounding_set(line: str, found: bool, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tdockerd\n{line}\n")
    assert has_capability(status, CAP_SYS_RESOURCE) is found
