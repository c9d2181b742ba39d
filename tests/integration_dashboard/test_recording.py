"""Storage of recordings, and replacement of Grafana's variables in queries."""

from pathlib import Path

import pytest

from integration.dashboard import recording
from integration.dashboard.recording import Event, Recording, Series, load, queries


def test_a_saved_recording_is_read_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Recording(
        docker="1",
        prometheus="2",
        step=15,
        points=2,
        events=[Event(3, "ü")],
        queries={'a{b="c"}': [Series({"b": "c"}, [1, None])], "d": []},
    )
    monkeypatch.setattr(recording, "RECORDED", tmp_path / "recorded.json")
    recording.save(made)

    assert load() == made


def test_variables_of_grafana_are_replaced() -> None:
    query = 'rate(a{instance=~"$instance"}[$__rate_interval])'

    assert recording.complete(query) == 'rate(a{instance=~".*"}[1m])'
    assert not any("$" in recording.complete(each) for each in queries())
