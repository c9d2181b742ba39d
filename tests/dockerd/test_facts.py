import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from shim.base import deadline
from shim.dockerd.facts import INFO_AGE, RECENT_SECONDS, EngineFacts
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, ShimError, Unavailable
from shim.engine.answers import Runtime
from tests.facts import own_score
from tests.fakes.engine import FakeEngine
from tests.waits import wait_until


def facts(engine: FakeEngine, restrict: str = "auto") -> EngineFacts:
    return EngineFacts(engine, restrict_oom_score_adj=restrict)  # type: ignore[arg-type]  # parametrised literals


def infos(engine: FakeEngine) -> int:
    return len(engine.calls_of("info"))


def test_info_is_cached_unless_it_must_be_fresh(engine: FakeEngine) -> None:
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
def test_scores_are_unchanged_if_the_setting_is_false(
    restrict: str, wanted: int, given: int, engine: FakeEngine
) -> None:
    assert facts(engine, restrict).possible_oom_score_adj(wanted) == given


def test_scores_are_raised_to_the_daemons_score(engine: FakeEngine) -> None:
    # The daemon of the fake Engine is this process.
    known = facts(engine, "true")
    assert known.possible_oom_score_adj(-998) == own_score()
    assert known.possible_oom_score_adj(1000) == 1000


FULL = "000001ffffffffff"
INITIAL = "         0          0 4294967295\n"


def daemon_in(proc: Path, engine: FakeEngine, *, status: str, uid_map: str | None) -> EngineFacts:
    """Return facts about a daemon with the score -500 and this content of /proc/<pid>."""
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
def test_auto_reads_the_daemons_bounding_set(status: str, lowest: int, engine: FakeEngine, tmp_path: Path) -> None:
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
def test_auto_ignores_capabilities_in_a_user_namespace(
    uid_map: str | None, lowest: int, engine: FakeEngine, tmp_path: Path
) -> None:
    known = daemon_in(tmp_path, engine, status=f"CapBnd:\t{FULL}", uid_map=uid_map)

    assert known.possible_oom_score_adj(-998) == lowest


SET_LOWEST = """
from pathlib import Path
from shim.dockerd.facts import EngineFacts
from tests.fakes.engine import FakeEngine

lowest = EngineFacts(FakeEngine(), restrict_oom_score_adj="auto").possible_oom_score_adj(-998)
Path("/proc/self/oom_score_adj").write_text(str(lowest))
"""


def test_the_lowest_score_in_a_user_namespace_is_the_kernels() -> None:
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")

    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", SET_LOWEST]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


# Health check


@dataclass
class Memory:
    """A `shim.dockerd.facts.Kept` in memory."""

    server_version: str = ""
    cgroup_driver: str = ""

    def keep(self, *, server_version: str, cgroup_driver: str) -> None:
        self.server_version, self.cgroup_driver = server_version, cgroup_driver


def aged(known: EngineFacts, *, seconds: float) -> None:
    """Make the description older."""
    known._read_at -= seconds


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits of the tests."""
    monkeypatch.setattr("shim.dockerd.facts.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("shim.dockerd.facts.FALLBACK_SECONDS", 0.05)


def test_an_engine_that_answers_passes_the_check(engine: FakeEngine) -> None:
    known = facts(engine)
    for _ in range(3):
        engine.answered_at = -math.inf
        known.check_answers()
    assert (len(engine.calls_of("ping")), infos(engine)) == (3, 1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("method", "words"), [("ping", "ping Docker"), ("info", "read Docker's info")])
def test_a_hung_call_is_named(engine: FakeEngine, method: str, words: str) -> None:
    known = facts(engine)
    with engine.held(method), pytest.raises(DeadlineExceeded, match=f"{words}: Docker did not answer within"):
        known.check_answers()
    known.check_answers()


def test_a_rootless_engine_is_refused(engine: FakeEngine) -> None:
    engine.engine_info = msgspec.structs.replace(
        engine.engine_info, security_options=["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]
    )
    known = facts(engine)
    with pytest.raises(FailedPrecondition, match="Docker is rootless"):
        known.check_answers()
    with pytest.raises(FailedPrecondition, match=r"Docker is rootless.*docker_endpoint"):
        known.info()


def test_a_rootless_engine_that_replaces_another_is_refused(engine: FakeEngine) -> None:
    known = facts(engine)
    known.check_answers()
    engine.engine_info = msgspec.structs.replace(engine.engine_info, security_options=["name=rootless"])
    known.refresh()
    wait_until(lambda: len(engine.calls_of("info")) == 2 and known.last_info is None)
    with pytest.raises(FailedPrecondition, match="Docker is rootless"):
        known.check_answers()


def test_concurrent_checks_share_a_ping(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    engine.answered_at = -math.inf
    with ThreadPoolExecutor(20) as pool:
        with engine.held("ping") as gate:
            callers = [pool.submit(known.check_answers) for _ in range(20)]
            gate.wait_entered()
            with pytest.raises(TimeoutError):
                callers[-1].result(0.1)
            assert len(engine.calls_of("ping")) == 1
        for caller in callers:
            caller.result(10)


def test_an_engine_with_a_recent_answer_is_not_pinged(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    known.check_answers()
    assert not engine.calls_of("ping")


@pytest.mark.usefixtures("impatient")
def test_an_engine_without_a_recent_answer_is_pinged(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    engine.answered_at -= RECENT_SECONDS
    with engine.held("ping"), pytest.raises(DeadlineExceeded, match="ping Docker"):
        known.check_answers()


def test_a_lost_engine_is_pinged_despite_a_recent_answer(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    engine.disconnect()
    with pytest.raises(Unavailable):
        known.check_answers()


@pytest.mark.usefixtures("impatient")
def test_checks_of_a_hung_engine_leave_no_thread(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.base.thread_pool.IDLE_SECONDS", 0.01)
    known = facts(engine)
    before = threading.active_count()
    with engine.held("ping"), engine.held("info"):
        for _ in range(30):
            with deadline.bound(0.005), pytest.raises(DeadlineExceeded):
                known.check_answers()
            with deadline.bound(0.005), pytest.raises(DeadlineExceeded):
                known.server_version()
        assert threading.active_count() - before <= 2


def test_a_due_description_is_read_in_the_background(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    aged(known, seconds=INFO_AGE + 1)
    with engine.held("info") as gate:
        known.check_answers()  # a slow info does not delay it
        gate.wait_entered()
        known.check_answers()
    wait_until(lambda: known._age() < INFO_AGE)
    assert infos(engine) == 2


def test_a_new_daemon_is_described_again(engine: FakeEngine) -> None:
    known = facts(engine)
    assert (known.cgroup_driver(), known.systemd_cgroups) == ("cgroupfs", False)
    engine.engine_info = replace(engine.engine_info, cgroup_driver="systemd", server_version="28.5.3")
    known.refresh()
    assert (known.cgroup_driver(), known.systemd_cgroups) == ("systemd", True)
    assert known.server_version() == "28.5.3"
    assert infos(engine) == 2


def test_an_answer_of_the_previous_daemon_does_not_describe_the_next(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    with engine.held("info") as gate:
        known.refresh()
        gate.wait_entered()
        known.refresh()  # the answer in flight is the previous daemon's
    wait_until(lambda: known._described == 1)
    engine.engine_info = replace(engine.engine_info, cgroup_driver="systemd")
    assert known.cgroup_driver() == "systemd"


@pytest.mark.usefixtures("impatient")
def test_an_unanswering_new_daemon_has_the_previous_description(engine: FakeEngine) -> None:
    known = facts(engine)
    known.info()
    with engine.held("info"):
        known.refresh()
        assert known.cgroup_driver() == "cgroupfs"


def test_info_has_a_deadline(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.dockerd.facts.INFO_SECONDS", 0.02)
    with engine.held("info"), pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.02 s"):
        facts(engine).info()


# The kept description


def test_the_last_answer_is_kept(engine: FakeEngine) -> None:
    kept = Memory()
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=kept)
    assert (known.server_version(), known.cgroup_driver()) == ("28.5.2", "cgroupfs")
    assert kept == Memory("28.5.2", "cgroupfs")
    assert infos(engine) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["hangs", "is gone", "fails"])
def test_the_kept_description_is_used_without_an_answer(engine: FakeEngine, how: str) -> None:
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=Memory("27.1.0", "systemd"))
    with engine.held("info") if how == "hangs" else nullcontext():
        if how == "is gone":
            engine.disconnect()
        if how == "fails":
            engine.fail_next("info", *[ShimError("read Docker's info: 500")] * 2)
        assert (known.server_version(), known.cgroup_driver()) == ("27.1.0", "systemd")
    engine.reconnect()
    wait_until(lambda: known.server_version() == "28.5.2")


@pytest.mark.usefixtures("impatient")
def test_the_error_before_the_first_answer_gives_advice(engine: FakeEngine) -> None:
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=Memory())
    with engine.held("info"):
        for question in (known.server_version, known.cgroup_driver):
            with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s.*systemctl start docker"):
                question()


def test_a_client_that_leaves_gets_no_kept_description(engine: FakeEngine) -> None:
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=Memory("27.1.0", "systemd"))
    gone = deadline.Scope()
    gone.cancel()
    with engine.held("info"), deadline.entered(gone), pytest.raises(Cancelled):
        known.server_version()


def test_the_kept_description_does_not_hide_an_engine_that_is_too_old(engine: FakeEngine) -> None:
    engine.fail_next("info", FailedPrecondition("the Docker Engine speaks API version 1.40"))
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=Memory("27.1.0", "systemd"))
    with pytest.raises(FailedPrecondition):
        known.server_version()


def test_a_changed_cgroup_driver_is_logged(engine: FakeEngine) -> None:
    kept = Memory("28.5.2", "systemd")
    known = EngineFacts(engine, restrict_oom_score_adj="false", kept=kept)
    with capture_logs() as logs:
        known.info()
        known.info(max_age=0)
    assert [(line["log_level"], line["before"], line["now"]) for line in logs] == [("error", "systemd", "cgroupfs")]
    assert "restart the kubelet" in logs[0]["event"]
