import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from shim.config.model import Config
from shim.doctor import check as module
from shim.doctor.check import check
from shim.doctor.checks import CHECKS
from shim.doctor.findings import SUBJECT_WIDTH, Finding
from shim.doctor.report import Report, encode_report

STEPS: tuple[Literal["begun", "ended"], ...] = ("begun", "ended")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[list[str]]:
    """Addresses of two sockets that accept and never answer."""
    with ExitStack() as stack:
        addresses = []
        for name in ("docker.sock", "cri.sock"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / name))
            listener.listen()
            addresses.append(f"unix://{tmp_path / name}")
        yield addresses


def found(config: Config) -> list[Finding]:
    return list(check(config, environ={"PATH": "/usr/bin:/bin"}))


def test_findings_are_in_the_order_of_the_checks(config: Config, tmp_path: Path) -> None:
    absent = msgspec.structs.replace(
        config,
        docker_endpoint=f"unix://{tmp_path}/absent.sock",
        container_runtime_endpoint=f"unix://{tmp_path}/none.sock",
    )

    subjects = [finding.subject for finding in found(absent)]
    expected = [
        "user",
        "forwarding",
        "pod network",
        "loopback",
        "credentials",
        "docker",
        "swap",
        "server",
    ]
    assert subjects[:8] == expected
    assert subjects[-3:] == ["exec", "checkpoints", "NRI"]
    assert all(len(subject) <= SUBJECT_WIDTH for subject in subjects)


def test_what_hangs_is_named_in_time_and_the_rest_comes_at_once(silent: list[str], tmp_path: Path) -> None:
    docker, server = silent
    command = [sys.executable, "-m", "shim", "doctor", f"--docker-endpoint={docker}"]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, f"--container-runtime-endpoint={server}", f"--cni-conf-dir={tmp_path}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as reported:
        assert reported.stdout is not None
        lines = [(time.monotonic() - began, line) for line in reported.stdout]
    took = time.monotonic() - began

    at = {line[6:].split("  ")[0]: (moment, line[:4].strip()) for moment, line in lines if line[:4].strip()}
    assert at["user"][0] + 1 < at["docker"][0]  # shown while others are waited for
    assert took - at["user"][0] < 15
    assert (at["docker"][1], at["server"][1]) != ("ok", "ok")
    assert reported.returncode in {0, 1}  # 0 where this machine is too busy for the checks to begin


def test_a_check_that_does_not_end_is_given_up(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but docker's end at once."""
    hung = [spec.subject for spec in CHECKS].index("docker")
    reports = [
        Report(number, step) for number in range(len(CHECKS)) for step in STEPS if (number, step) != (hung, "ended")
    ]
    (tmp_path / "reports").write_bytes(b"".join(encode_report(report) for report in reports))
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/sh\ncat {tmp_path}/reports\nexec sleep 60\n")
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setattr(module, "CHECKS", tuple(replace(spec, seconds=1.0) for spec in CHECKS))

    findings = found(config)[2:]

    text = f"no end within 1 s, waiting for {config.docker_endpoint}"
    assert [(finding.level, finding.subject, finding.text) for finding in findings] == [("FAIL", "docker", text)]


def test_a_check_that_did_not_begin_is_no_fault_of_the_node(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)

    findings = found(config)[2:]

    assert {finding.level for finding in findings} == {"warn"}
    assert all("too busy" in finding.text for finding in findings)


def test_a_process_that_ends_early_is_no_good_node(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    findings = found(config)

    assert {finding.subject for finding in findings if finding.level == "FAIL"} >= {spec.subject for spec in CHECKS}
    assert all("has ended" in finding.text for finding in findings[2:])
