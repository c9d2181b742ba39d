import json

from shim.doctor.findings import SUBJECT_WIDTH, Finding, as_json, failed, shown

FINE = Finding("ok", "docker", "28.5.2")
ODD = Finding("warn", "live-restore", "off", "turn it on")
BAD = Finding("FAIL", "user", "uid 1000", "run as root")


def test_columns_are_the_same_for_each_line() -> None:
    assert [shown(finding).index(finding.text) for finding in (FINE, ODD, BAD)] == [6 + SUBJECT_WIDTH + 2] * 3


def test_advice_stands_below_what_it_is_about() -> None:
    assert shown(ODD).splitlines() == [
        "warn  live-restore    off",
        "                      -> turn it on",
    ]


def test_warnings_do_not_fail() -> None:
    assert not failed([FINE, ODD])
    assert failed([FINE, ODD, BAD])


def test_json_has_all_of_a_finding() -> None:
    found = json.loads(as_json([FINE, ODD]))

    assert found["failed"] is False
    assert found["findings"][1] == {"level": "warn", "subject": "live-restore", "text": "off", "advice": "turn it on"}
    assert json.loads(as_json([BAD]))["failed"] is True
