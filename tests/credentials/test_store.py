"""Credential helpers, with real executables that speak their protocol."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.base.deadline import Scope
from shim.credentials.model import Credentials
from shim.credentials.store import CredentialStores
from shim.domain.errors import Cancelled
from tests.credentials.programs import Programs

NAME = "docker-credential-one"


@pytest.mark.parametrize(
    ("answer", "credentials"),
    [
        ({"ServerURL": "r.example", "Username": "u", "Secret": "p"}, Credentials(username="u", password="p")),
        ({"Username": "<token>", "Secret": "t"}, Credentials(identity_token="t")),
        ({"Username": "", "Secret": ""}, None),
    ],
    ids=["user", "token", "nothing"],
)
def test_answers_of_a_helper_are_read(programs: Programs, answer: object, credentials: Credentials | None) -> None:
    programs.write_printing(NAME, answer)
    with capture_logs() as logs:
        assert CredentialStores().find("one", domain="r.example:5000") == credentials
    assert programs.asked == ["get|r.example:5000"]
    assert logs == []


def test_docker_hub_is_asked_by_its_url(programs: Programs) -> None:
    programs.write_printing(NAME, {"Username": "u", "Secret": "p"})
    CredentialStores().find("one", domain="docker.io")
    assert programs.asked == ["get|https://index.docker.io/v1/"]


def test_helper_without_credentials_gives_none(programs: Programs) -> None:
    programs.write_printing(NAME, "credentials not found in native keychain\n", code=1)
    with capture_logs() as logs:
        assert CredentialStores().find("one", domain="r.example") is None
    assert logs == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo s3cret; echo no access with s3cret >&2; exit 1", "exit status 1; its standard error is not shown"),
        ("echo s3cret: keychain is locked >&2; exit 1", "exit status 1; its standard error mentions locked"),
        ("echo s3cret", "its answer is not an object"),
        ('echo \'{"Username": "u", "Secret": 5}\'', "its answer is not an object"),
        ("printf '\\377'", "its answer is not an object"),
        ("exec sleep 60", "not finished within 0.3 s"),
        ("yes s3cret", "printed more than"),
        ("yes '{\"x\":' | head -c 900000", "its answer is not an object"),
        ("kill -9 $$", "ended by signal 9"),
    ],
    ids=[
        "fails",
        "fails for a known reason",
        "garbage",
        "wrong type",
        "not UTF-8",
        "hangs",
        "prints without end",
        "nested",
        "killed",
    ],
)
def test_failing_helper_is_logged(programs: Programs, body: str, words: str) -> None:
    programs.write(NAME, body)
    with capture_logs() as logs:
        assert CredentialStores(timeout=0.3 if "sleep" in body else 30).find("one", domain="r.example") is None
    assert [line["event"] for line in logs] == ["skipped credential helper"]
    assert words in str(logs[0]["error"])
    assert "ask docker-credential-one for credentials of r.example" in str(logs[0]["error"])
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize("name", ["none", "../bin/docker-credential-one", "x/../one"])
def test_only_programs_on_path_run(programs: Programs, name: str) -> None:
    programs.write_printing(NAME, {"Username": "u", "Secret": "p"})
    with capture_logs() as logs:
        assert CredentialStores().find(name, domain="r.example") is None
    assert "is not on PATH" in str(logs[0]["error"])
    assert programs.asked == []


def test_concurrent_requests_share_a_run(programs: Programs) -> None:
    programs.write(NAME, 'read line <"$0.gate"; echo \'{"Username": "u", "Secret": "p"}\'')
    gate = programs.bin_dir / f"{NAME}.gate"
    os.mkfifo(gate)
    stores = CredentialStores()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(stores.find, "one", domain="r.example") for _ in range(3)]
        opened = gate.open("w")  # the program reads
        with pytest.raises(TimeoutError):
            futures[2].result(0.2)
        opened.write("go\n")
        opened.close()
        assert [future.result(10) for future in futures] == [Credentials(username="u", password="p")] * 3
    assert len(programs.asked) == 1


def test_cancellation_is_not_a_failure_of_the_helper(programs: Programs) -> None:
    programs.write(NAME, "exec sleep 60")
    scope = Scope()
    timer = threading.Timer(0.2, scope.cancel)
    timer.start()
    with capture_logs() as logs, deadline.entered(scope), pytest.raises(Cancelled):
        CredentialStores().find("one", domain="r.example")
    timer.join()
    assert logs == []
