import json
import tomllib
from pathlib import Path

from shim.config import show
from shim.config.fields import fields
from shim.config.load import Loaded, load
from shim.config.model import Config


def loaded(tmp_path: Path) -> Loaded:
    file = tmp_path / "c.toml"
    file.write_text('cni_bin_dir = ["/a", "/b"]\nkubelet_root_dir = "/a \\"quoted\\" é"\n')
    return load(flags={"shutdown_grace": "1m30s"}, environ={}, file=file)


def test_table_shows_the_origin(tmp_path: Path) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in show.as_table(loaded(tmp_path)).splitlines()}

    assert rows["cni_bin_dir"] == ["/a,/b", "file", str(tmp_path / "c.toml")]
    assert rows["shutdown_grace"] == ["90", "flag", "--shutdown-grace"]
    assert rows["log_level"] == ["info", "default"]


def test_the_toml_form_loads_as_the_same_settings(tmp_path: Path) -> None:
    before = loaded(tmp_path)
    file = tmp_path / "again.toml"
    file.write_text(show.as_toml(before))

    assert load(flags={}, environ={}, file=file).config == before.config
    assert set(tomllib.loads(file.read_text())) == set(before.origins)


def test_the_json_form_has_value_and_origin(tmp_path: Path) -> None:
    shown = json.loads(show.as_json(loaded(tmp_path)))

    assert shown["shutdown_grace"] == {"value": 90.0, "origin": "flag --shutdown-grace"}
    assert shown["cni_bin_dir"]["value"] == ["/a", "/b"]


def test_the_reference_has_every_setting_with_its_default_and_sets_none(tmp_path: Path) -> None:
    text = show.reference()

    assert tomllib.loads(text) == {}
    settings = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#") and line[1:2].isalpha())
    assert set(tomllib.loads(settings)) == set(fields())
    (tmp_path / "all.toml").write_text(settings)
    assert load(flags={}, environ={}, file=tmp_path / "all.toml").config == Config()
