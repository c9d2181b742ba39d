import subprocess
import sys
from pathlib import Path

import pytest

from shim.engine.answers import Runtime
from shim.engine.facts import EngineFacts
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


FULL = "000001ffffffffff"
INITIAL = "         0          0 4294967295\n"


def daemon_in(proc: Path, engine: FakeEngine, *, status: str, uid_map: str | None) -> EngineFacts:
    """What is known of a daemon whose own score is -500 and whose /proc/<pid> says this."""
    process = proc / str(engine.daemon_pid())
    process.mkdir()
    (process / "status").write_text(f"Name:\tdockerd\n{status}\n")
    (process / "oom_score_adj").write_text("-500\n")
    if uid_map is not None:
        (process / "uid_map").write_text(uid_map)
    return EngineFacts(engine, restrict_oom_score_adj="auto", proc=proc)


@pytest.mark.parametrize(
    ("status", "lowest"),
    [(f"CapBnd:\t{FULL}", -998), ("CapBnd:\t000001fffeffffff", -500), (f"CapEff:\t{FULL}", -500)],
    ids=["all", "without", "elsewhere"],
)
def test_auto_looks_at_the_daemons_bounding_set(status: str, lowest: int, engine: FakeEngine, tmp_path: Path) -> None:
    known = daemon_in(tmp_path, engine, status=status, uid_map=INITIAL)

    assert known.possible_oom_score_adj(-998) == lowest


@pytest.mark.parametrize(
    ("uid_map", "lowest"),
    [
        pytest.param(INITIAL, -998, id="initial"),
        pytest.param("         0          0          1\n", -500, id="root alone"),
        pytest.param("0 1000 1\n1 100000 65536\n", -500, id="rootless"),
        pytest.param("", -500, id="not mapped yet"),
        pytest.param(None, -998, id="a kernel without user namespaces"),
    ],
)
def test_auto_does_not_trust_capabilities_in_a_user_namespace(
    uid_map: str | None, lowest: int, engine: FakeEngine, tmp_path: Path
) -> None:
    known = daemon_in(tmp_path, engine, status=f"CapBnd:\t{FULL}", uid_map=uid_map)

    assert known.possible_oom_score_adj(-998) == lowest


SET_LOWEST = """
from pathlib import Path
from shim.engine.facts import EngineFacts
from tests.fakes.engine import FakeEngine

lowest = EngineFacts(FakeEngine(), restrict_oom_score_adj="auto").possible_oom_score_adj(-998)
Path("/proc/self/oom_score_adj").write_text(str(lowest))
"""


def test_what_is_possible_in_a_user_namespace_is_what_the_kernel_lets_be_set() -> None:
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")

    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", SET_LOWEST]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
