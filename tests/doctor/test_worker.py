import io
from collections.abc import Iterator, Mapping

import pytest

from shim.config.model import Config
from shim.doctor import worker
from shim.doctor.checks import Check
from shim.doctor.findings import Finding
from shim.doctor.report import decode_report, encode_order


def test_a_check_that_fails_is_a_finding(config: Config) -> None:
    def broken(_config: Config, _environ: Mapping[str, str]) -> Iterator[Finding]:
        yield Finding("ok", "docker", "28.5.2")
        raise RuntimeError("oops")

    output = io.BytesIO()
    spec = Check(subject="docker", run=broken, modules=("json",), seconds=1.0, waits_for=lambda _: "")
    worker._run(0, spec, config, worker._Output(output))

    reports = [decode_report(line) for line in output.getvalue().splitlines()]
    assert [report.finding and report.finding.level for report in reports] == [None, "ok", "warn", None]
    assert [report.step for report in reports] == ["begun", "found", "found", "ended"]
    assert reports[2].finding is not None
    assert reports[2].finding.text == "the check failed: RuntimeError: oops"


def test_it_ends_with_the_command(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    class Stdin:
        buffer = io.BytesIO(encode_order(config))

    monkeypatch.setattr(worker, "CHECKS", ())
    monkeypatch.setattr("shim.base.log.configure", lambda **_: None)  # it is for the whole process
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("sys.stdin", Stdin)
    with pytest.raises(Ended):
        worker.main()
