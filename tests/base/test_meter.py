import pytest

from shim.base.meter import Kind, Measurement, report, subscribed, timed
from shim.domain.errors import NotFound


def test_reports_are_observed_inside_the_block_only() -> None:
    heard: list[Measurement] = []
    report(Kind.RPC, "Version", "OK", seconds=1)
    with subscribed(heard.append):
        report(Kind.RPC, "Version", "OK", seconds=2)
    report(Kind.RPC, "Version", "OK", seconds=3)

    assert heard == [Measurement(Kind.RPC, ("Version", "OK"), 2)]


def test_several_observers_get_every_report() -> None:
    first: list[Measurement] = []
    second: list[Measurement] = []
    with subscribed(first.append):
        with subscribed(second.append):
            report(Kind.CNI, "bridge", "ADD", "ok", seconds=1)
        report(Kind.CNI, "bridge", "DEL", "ok", seconds=1)

    assert [done.labels[1] for done in first] == ["ADD", "DEL"]
    assert [done.labels[1] for done in second] == ["ADD"]


def test_a_block_is_reported_with_its_result() -> None:
    heard: list[Measurement] = []
    with subscribed(heard.append):
        with timed(Kind.DOCKER, "info"):
            pass
        with pytest.raises(NotFound), timed(Kind.DOCKER, "inspect_container"):
            raise NotFound("gone")
        with timed(Kind.DOCKER, "events") as timing:
            timing.drop()

    assert [done.labels for done in heard] == [("info", "ok"), ("inspect_container", "NotFound")]
    assert all(0 <= done.seconds < 60 for done in heard)
