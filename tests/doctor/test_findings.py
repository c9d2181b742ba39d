from shim.doctor.findings import Finding, failed, table

FINE = Finding("ok", "docker", "28.5.2")
ODD = Finding("warn", "live-restore", "off", "turn it on")
BAD = Finding("FAIL", "user", "uid 1000", "run as root")


def test_advice_stands_below_what_it_is_about() -> None:
    assert table([FINE, ODD]).splitlines() == [
        "ok    docker        28.5.2",
        "warn  live-restore  off",
        "                    -> turn it on",
    ]


def test_nothing_was_found() -> None:
    assert table([]) == ""


def test_warnings_do_not_fail() -> None:
    assert not failed([FINE, ODD])
    assert failed([FINE, ODD, BAD])
