from pathlib import Path

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.report import Report, decode_order, decode_report, encode_order, encode_report


def test_settings_arrive_as_they_were_sent() -> None:
    config = Config(cni_bin_dir=(Path("/a"), Path("/b")), pinned_images=("x",), runtime_request_timeout=0.5)

    assert decode_order(encode_order(config)).config == config


def test_reports_arrive_as_they_were_sent() -> None:
    for report in (Report(0, "found", Finding("warn", "docker", "a\nb", "do so")), Report(3, "ended")):
        line = encode_report(report)

        assert line.count(b"\n") == 1
        assert decode_report(line) == report
