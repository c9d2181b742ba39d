"""A credential provider with real plugins that speak its protocol."""

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.base.deadline import Scope
from shim.credentials.model import Credentials
from shim.credentials.provider import Provider
from shim.credentials.provider_config import ProviderSettings
from shim.domain.errors import Cancelled
from tests.clock import Clock
from tests.credentials.programs import Programs, response

APP = "r.example/team/app"
WEB = "r.example/team/web"
OTHER = "other.example/app"
LOGIN = {"r.example": ("u", "p")}
FOUND = (("r.example", Credentials(username="u", password="p")),)


MakeProvider = Callable[..., Provider]


@pytest.fixture
def provider(programs: Programs, clock: Clock) -> MakeProvider:
    def made(*, timeout: float = 30.0, **changes: Any) -> Provider:
        values: dict[str, Any] = {
            "name": "one",
            "binary": programs.bin_dir / "one",
            "match_images": ("*.example",),
            "api_version": "credentialprovider.kubelet.k8s.io/v1",
            "default_cache_seconds": 60.0,
            **changes,
        }
        return Provider(ProviderSettings(**values), timeout=timeout, clock=clock)

    return made


# --- one run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_plugin_gets_a_request_and_its_response_is_read(
    programs: Programs, provider: MakeProvider, version: str
) -> None:
    programs.write_printing("one", response(LOGIN, version=version))
    api_version = f"credentialprovider.kubelet.k8s.io/{version}"
    assert provider(api_version=api_version, arguments=("get", "-v")).find(APP) == FOUND
    arguments, _, question = programs.asked[0].partition("|")
    assert arguments == "get -v"
    assert json.loads(question) == {"apiVersion": api_version, "kind": "CredentialProviderRequest", "image": APP}


def test_plugin_gets_the_environment(programs: Programs, provider: MakeProvider, tmp_path: Path) -> None:
    programs.write("one", f"env >{tmp_path}/env; printf '%s' '{json.dumps(response(LOGIN))}'")
    assert provider(environment={"PROFILE": "node"}).find(APP) == FOUND
    lines = (tmp_path / "env").read_text().splitlines()
    assert "PROFILE=node" in lines
    assert f"PATH={os.environ['PATH']}" in lines


@pytest.mark.parametrize("auth", [None, {}, {"r.example": ("", "")}], ids=["null", "empty", "empty names"])
def test_plugin_without_credentials_gives_no_entries(programs: Programs, provider: MakeProvider, auth: object) -> None:
    programs.write_printing("one", response(auth))
    with capture_logs() as logs:
        assert provider().find(APP) == ()
    assert logs == []


@pytest.mark.parametrize(
    "matched",
    [("r.example",), ("other.example", "r.example/team"), ("*.example/team/app",)],
    ids=["host", "path", "pattern"],
)
def test_plugin_runs_for_a_matching_image(programs: Programs, provider: MakeProvider, matched: tuple[str, ...]) -> None:
    programs.write_printing("one", response(LOGIN))
    assert provider(match_images=matched).find(APP) == FOUND


@pytest.mark.parametrize("matched", [("r.example:5000",), ("r.example/other",), ("*.*.example",)], ids=str)
def test_plugin_does_not_run_for_other_images(
    programs: Programs, provider: MakeProvider, matched: tuple[str, ...]
) -> None:
    programs.write_printing("one", response(LOGIN))
    assert provider(match_images=matched).find(APP) == ()
    assert programs.asked == []


def test_plugin_that_needs_a_service_account_does_not_run(programs: Programs, provider: MakeProvider) -> None:
    programs.write_printing("one", response(LOGIN))
    assert provider(needs_service_account=True).find(APP) == ()
    assert programs.asked == []


def printing(old: str = "", new: str = "", **changes: object) -> str:
    """Create a plugin that prints a valid response with some changes."""
    text = json.dumps({**response({"r.example": ("u", "s3cret")}), **changes})
    return f"printf %s '{text.replace(old, new)}'"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo s3cret; echo s3cret, v4lue and $1 >&2; exit 3", "exit status 3; its standard error is not shown"),
        ("echo timeout of s3cret >&2; exit 3", "exit status 3; its standard error mentions timeout"),
        ("echo s3cret", "its response is malformed: not JSON"),
        (":", "its response is malformed: not JSON"),
        (printing("}}}", "}"), "its response is malformed: not JSON"),
        (printing(kind="CredentialProviderRequest"), "kind is not CredentialProviderResponse"),
        (printing("io/v1", "io/v1beta1"), "apiVersion is not credentialprovider.kubelet.k8s.io/v1"),
        (printing(cacheKeyType="s3cret"), "cacheKeyType is not Image or Registry or Global"),
        (printing("cacheKeyType", "x"), "missing required field `cacheKeyType`"),
        (printing(cacheDuration="s3cret"), "cacheDuration is not a duration"),
        (printing(auth={"r.example": ["s3cret"]}), "Expected `object`"),
        ("exec sleep 60", "not finished within 0.3 s, killed"),
        ("yes s3cret", "printed more than"),
        ("yes '{\"x\":' | head -c 900000", "its response is malformed: not JSON"),
    ],
    ids=[
        "fails",
        "fails for a known reason",
        "garbage",
        "silent",
        "cut off",
        "kind",
        "version",
        "cache key",
        "no cache key",
        "duration",
        "auth",
        "hangs",
        "prints without end",
        "nested",
    ],
)
def test_failing_plugin_is_logged(programs: Programs, provider: MakeProvider, body: str, words: str) -> None:
    programs.write("one", body)
    with capture_logs() as logs:
        made = provider(timeout=0.3 if "sleep" in body else 30, environment={"KEY": "v4lue"}, arguments=("s3cret",))
        assert made.find(APP) == ()
    assert [(line["event"], line["provider"]) for line in logs] == [("skipped credential provider", "one")]
    assert f"ask credential provider one about {APP}: " in str(logs[0]["error"])
    assert words in str(logs[0]["error"])
    assert "s3cret" not in str(logs)
    assert "v4lue" not in str(logs)


def test_failure_is_not_cached(programs: Programs, provider: MakeProvider) -> None:
    made = provider()
    programs.write("one", "exit 1")
    assert made.find(APP) == ()
    programs.write_printing("one", response(LOGIN))
    assert made.find(APP) == FOUND


# --- the cache --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "asked"),
    [("Image", [APP, WEB, OTHER]), ("Registry", [APP, OTHER]), ("Global", [APP])],
)
def test_response_is_cached_by_its_key_type(
    programs: Programs, provider: MakeProvider, cache: str, asked: list[str]
) -> None:
    programs.write_printing("one", response(LOGIN, cache=cache))
    made = provider()
    for repository in (APP, WEB, OTHER, APP, WEB, OTHER):
        assert made.find(repository) == FOUND
    assert [json.loads(line.partition("|")[2])["image"] for line in programs.asked] == asked


@pytest.mark.parametrize(
    ("duration", "default", "seconds"),
    [(None, 60.0, 60), ("1h30m", 60.0, 5400), ("10s", 60.0, 10), ("10s", 0.0, 10)],
)
def test_response_is_cached_for_its_duration(
    programs: Programs, provider: MakeProvider, clock: Clock, duration: str | None, default: float, seconds: int
) -> None:
    programs.write_printing("one", response(LOGIN, duration=duration))
    made = provider(default_cache_seconds=default)
    made.find(APP)
    clock.now += seconds - 1
    made.find(APP)
    assert len(programs.asked) == 1
    clock.now += 1
    made.find(APP)
    assert len(programs.asked) == 2


@pytest.mark.parametrize(("duration", "default"), [("0s", 60.0), ("0", 60.0), ("-1m5s", 60.0), (None, 0.0)])
def test_invalid_response_is_refused(
    programs: Programs, provider: MakeProvider, duration: str | None, default: float
) -> None:
    programs.write_printing("one", response(LOGIN, duration=duration))
    made = provider(default_cache_seconds=default)
    assert [made.find(APP), made.find(APP)] == [FOUND, FOUND]
    assert len(programs.asked) == 2


def test_empty_response_is_cached(programs: Programs, provider: MakeProvider) -> None:
    programs.write_printing("one", response({}))
    made = provider()
    assert [made.find(APP), made.find(APP)] == [(), ()]
    assert len(programs.asked) == 1


# --- several at once --------------------------------------------------------------------------------------


class Gated:
    """A plugin whose every run waits for a line from the test."""

    def __init__(self, programs: Programs, answer: object) -> None:
        self.path = programs.bin_dir / "gate"
        self._programs = programs
        os.mkfifo(self.path)
        programs.write("one", f"read line <'{self.path}'; printf '%s' '{json.dumps(answer)}'")

    def release(self, number: int) -> None:
        """Wait until the run with this number waits and all earlier runs are over, then release it."""
        wait_asked(self._programs, number)
        self.path.write_text("go\n")


def wait_asked(programs: Programs, number: int) -> None:
    """Wait until this many runs have begun."""
    while len(programs.asked) < number:  # bound by the test's own timeout
        threading.Event().wait(0.01)


@pytest.mark.parametrize(
    ("cache", "wanted", "runs"),
    [
        ("Image", [APP, APP, APP], 1),
        ("Registry", [APP, WEB, APP], 1),
        ("Global", [APP, WEB, OTHER], 1),
        ("Image", [APP, WEB, WEB], 2),
    ],
    ids=["one image", "one registry", "all", "two images"],
)
@pytest.mark.parametrize("duration", [None, "0s"], ids=["kept", "not kept"])
def test_concurrent_requests_for_a_key_share_a_run(
    programs: Programs, provider: MakeProvider, cache: str, wanted: list[str], runs: int, duration: str | None
) -> None:
    gated = Gated(programs, response(LOGIN, cache=cache, duration=duration))
    made = provider()
    with ThreadPoolExecutor(len(wanted)) as pool:
        first = pool.submit(made.find, wanted[0])
        wait_asked(programs, 1)
        others = [pool.submit(made.find, repository) for repository in wanted[1:]]
        with pytest.raises(TimeoutError):
            others[-1].result(0.2)
        for number in range(runs):
            gated.release(number + 1)
        assert [future.result(10) for future in (first, *others)] == [FOUND] * 3
    assert len(programs.asked) == runs


def test_failure_for_an_image_does_not_affect_others(programs: Programs, provider: MakeProvider) -> None:
    good = json.dumps(response(LOGIN))
    gate = programs.bin_dir / "gate"
    os.mkfifo(gate)
    programs.write("one", f"case $question in *web*) printf '%s' '{good}';; *) read line <'{gate}'; exit 1;; esac")
    made = provider()
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(made.find, APP)
        wait_asked(programs, 1)
        waiting = pool.submit(made.find, WEB)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        gate.write_text("go\n")
        assert failing.result(10) == ()
        assert waiting.result(10) == FOUND


def test_cancellation_is_not_a_failure_of_the_plugin(programs: Programs, provider: MakeProvider) -> None:
    programs.write("one", "exec sleep 60")
    scope = Scope()
    timer = threading.Timer(0.2, scope.cancel)
    timer.start()
    with capture_logs() as logs, deadline.entered(scope), pytest.raises(Cancelled):
        provider().find(APP)
    timer.join()
    assert logs == []


def test_cached_responses_are_bounded(
    programs: Programs, provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.credentials.provider.MAX_KEPT", 2)
    programs.write_printing("one", response(LOGIN, cache="Image"))
    made = provider()
    for repository in (APP, WEB, OTHER, OTHER, WEB, APP):
        made.find(repository)
    assert [json.loads(line.partition("|")[2])["image"] for line in programs.asked] == [APP, WEB, OTHER, APP]
