from pathlib import Path

from integration.networks import reserved


def test_a_reservation_that_a_plugin_is_writing_or_deleting_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "10.0.0.2").write_text("one\neth0")
    (tmp_path / "fd00::2").write_text("one\r\neth0")
    (tmp_path / "10.0.0.3").write_text("")
    (tmp_path / "10.0.0.4").symlink_to(tmp_path / "gone")
    (tmp_path / "last_reserved_ip.0").write_text("10.0.0.4")
    (tmp_path / "lock").touch()

    assert reserved(tmp_path) == {"10.0.0.2": "one", "fd00::2": "one"}
