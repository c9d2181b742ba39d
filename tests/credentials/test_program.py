"""Runs of programs: their output is not shown."""

from pathlib import Path

import pytest

from shim.base.spawn import Outcome
from shim.credentials.program import failure_of, run_helper
from shim.credentials.provider import Provider
from shim.credentials.provider_config import ProviderSettings
from shim.credentials.store import CredentialStores
from shim.domain.errors import DeadlineExceeded, ShimError
from tests.credentials.programs import Programs


def asked(programs: Programs, name: str, *, timeout: float = 30.0) -> Outcome:
    return run_helper(
        programs.bin_dir / name, arguments=["a", "b"], environment={}, stdin=b"question", timeout=timeout, what="try it"
    )


def test_program_gets_arguments_and_stdin(programs: Programs) -> None:
    programs.write_printing("one", "answer")
    assert asked(programs, "one").stdout == b"answer"
    assert programs.asked == ["a b|question"]


def test_missing_program_is_an_error(programs: Programs) -> None:
    with pytest.raises(ShimError, match=r"^try it: /\S+/none cannot be started: no such file"):
        asked(programs, "none")


def test_a_run_may_take_a_minute(tmp_path: Path) -> None:
    settings = ProviderSettings(
        name="one", binary=tmp_path / "one", match_images=("r.example",), api_version="v1", default_cache_seconds=0
    )
    assert (CredentialStores()._timeout, Provider(settings)._timeout) == (60.0, 60.0)


def test_hanging_program_is_an_error(programs: Programs) -> None:
    programs.write("one", "exec sleep 60")
    with pytest.raises(DeadlineExceeded, match="try it: not finished within"):
        asked(programs, "one", timeout=0.2)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(3, b"s3cret", b""), "exit status 3"),
        (Outcome(-9, b"s3cret", b""), "ended by signal 9"),
        (Outcome(1, b"", b" \n"), "exit status 1"),
        (
            Outcome(1, b"", b"Traceback\nToken s3cret is Expired: access denied to r.example\n"),
            "exit status 1; its standard error mentions access denied, expired",
        ),
        (Outcome(1, b"", b"s3cret"), "exit status 1; its standard error is not shown because it may contain secrets"),
        (Outcome(1, b"", b"\xff"), "exit status 1; its standard error is not shown because it may contain secrets"),
    ],
)
def test_failure_shows_status_and_known_phrases(outcome: Outcome, words: str) -> None:
    assert failure_of(outcome) == words
