from collections.abc import Mapping
from pathlib import Path

import pytest

from shim.config import load as module
from shim.config.load import DEFAULT, Loaded, load, misspelt_variables
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument
from tests.users import unprivileged_files


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "absent.toml")


def loaded(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    return load(flags=flags or {}, environ=environ or {}, file=file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_everything_defaults_without_a_source() -> None:
    got = loaded()

    assert got.config == Config()
    assert set(got.origins.values()) == {DEFAULT}


def test_flags_override_environment_overrides_file_overrides_defaults(file: Path) -> None:
    file.write_text('log_level = "debug"\npod_cidr = "10.0.0.0/16"\nnetns_directory = "/run/file"\n')

    got = loaded(
        {"log_level": "error"},
        {"PYDOCKERSHIM_LOG_LEVEL": "warning", "PYDOCKERSHIM_POD_CIDR": "10.1.0.0/16"},
        file,
    )

    assert (got.config.log_level, got.config.pod_cidr) == ("error", "10.1.0.0/16")
    assert got.config.netns_directory == Path("/run/file")
    assert got.origins["log_level"] == "flag --log-level"
    assert got.origins["pod_cidr"] == "environment PYDOCKERSHIM_POD_CIDR"
    assert got.origins["netns_directory"] == f"file {file}"
    assert got.origins["docker_endpoint"] == DEFAULT


def test_the_default_file_is_read_when_it_exists(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('log_format = "json"\n')
    monkeypatch.setattr(module, "DEFAULT_FILE", file)

    assert loaded().origins["log_format"] == f"file {file}"


@pytest.fixture
def drop_ins(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "DEFAULT_FILE", file)
    directory = file.with_name("conf.d")
    directory.mkdir()
    return directory


def test_conf_d_is_read_after_the_default_file_in_name_order(file: Path, drop_ins: Path) -> None:
    file.write_text('log_level = "error"\nlog_format = "json"\nshutdown_grace = 7\n')
    (drop_ins / "20-b.toml").write_text('log_level = "debug"\n')
    (drop_ins / "10-a.toml").write_text('log_level = "info"\nlog_format = "console"\n')

    got = loaded()

    assert (got.config.log_level, got.config.log_format, got.config.shutdown_grace) == ("debug", "console", 7)
    assert got.origins["log_level"] == f"file {drop_ins}/20-b.toml"
    assert got.origins["log_format"] == f"file {drop_ins}/10-a.toml"
    assert got.origins["shutdown_grace"] == f"file {file}"


def test_list_in_a_later_file_replaces_the_earlier_list(file: Path, drop_ins: Path) -> None:
    file.write_text('cni_bin_dir = ["/a", "/b"]\n')
    (drop_ins / "x.toml").write_text('cni_bin_dir = ["/c"]\n')

    assert loaded().config.cni_bin_dir == (Path("/c"),)


def test_conf_d_needs_no_default_file(drop_ins: Path) -> None:
    (drop_ins / "x.toml").write_text('log_level = "debug"\n')

    assert loaded().config.log_level == "debug"


def test_flags_and_environment_override_conf_d(drop_ins: Path) -> None:
    (drop_ins / "x.toml").write_text('log_level = "debug"\nlog_format = "console"\n')

    got = loaded({"log_level": "error"}, {"PYDOCKERSHIM_LOG_FORMAT": "json"})

    assert (got.config.log_level, got.config.log_format) == ("error", "json")


def test_named_file_is_the_only_file(drop_ins: Path, tmp_path: Path) -> None:
    (drop_ins / "x.toml").write_text('log_level = "debug"\n')
    (tmp_path / "mine.toml").write_text("")

    assert loaded(file=tmp_path / "mine.toml").config == Config()


@pytest.mark.parametrize("name", [".x.toml.swp", ".x.toml", "x.toml~", "x.toml.dpkg-new", "README"])
def test_files_of_editors_and_package_managers_are_ignored(drop_ins: Path, name: str) -> None:
    (drop_ins / name).write_text("= broken")

    assert loaded().config == Config()


def test_mistake_in_conf_d_is_an_error_even_if_overridden(drop_ins: Path) -> None:
    (drop_ins / "10.toml").write_text('\nlog_levle = "debug"\n')
    (drop_ins / "20.toml").write_text('log_level = "debug"\n')

    with pytest.raises(InvalidArgument, match=rf"^file {drop_ins}/10\.toml, line 2: there is no setting 'log_levle'"):
        loaded()


def test_unreadable_settings_directory_is_an_error(drop_ins: Path) -> None:
    drop_ins.rmdir()
    drop_ins.write_text("")

    with pytest.raises(FailedPrecondition, match=rf"directory {drop_ins}: cannot be read: not a directory"):
        loaded()


def test_the_files_of_another_root_are_read(tmp_path: Path, drop_ins: Path) -> None:
    (drop_ins / "x.toml").write_text('log_level = "debug"\n')
    other = tmp_path / "node"
    place = other / str(drop_ins).removeprefix("/")
    place.mkdir(parents=True)
    (place / "y.toml").write_text('log_level = "error"\n')

    got = load(flags={}, environ={}, file=None, root=other)

    assert (got.config.log_level, got.origins["log_level"]) == ("error", f"file {place}/y.toml")


def test_unknown_variables_are_ignored() -> None:
    assert loaded(environ={"PYDOCKERSHIM_SERVICE_HOST": "10.96.0.7"}).config == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('log_levle = "info"', "no setting 'log_levle', perhaps 'log_level'", id="typo"),
        pytest.param('log-level = "info"', "perhaps 'log_level'", id="spelled-as-the-flag"),
        pytest.param("zzz = 1", "no setting 'zzz'", id="unknown"),
        pytest.param('log_level = "loud"', "log_level 'loud' is not accepted", id="value"),
        pytest.param("root_directory = 5", "root_directory 5 is not accepted", id="type"),
        pytest.param("= 1", "is not TOML", id="syntax"),
        pytest.param(f"shutdown_grace = {'9' * 400}", f"shutdown_grace {'9' * 200}... is not accepted", id="number"),
        pytest.param(f"shutdown_grace = 0x{'f' * 9000}", "shutdown_grace (too long to show, int)", id="hexadecimal"),
        pytest.param(f"shutdown_grace = {'9' * 5000}", "a number in it is too long", id="longer-number"),
        pytest.param(f"cni_bin_dir = {'[' * 5000}{']' * 5000}", "it is nested too deep", id="deep-arrays"),
        pytest.param(f"cni_bin_dir{'.a' * 5000} = 1", "config.toml", id="deep-tables"),
        pytest.param('log_level = "info"\n\nlog_levle = 1', "config.toml, line 3: there is no", id="line-of-a-key"),
        pytest.param("\n[cni_bin_dir]\na = 1", "config.toml, line 2: cni_bin_dir", id="line-of-a-table"),
        pytest.param("\n 'log_level' = 7", "config.toml, line 2: log_level 7", id="line-of-a-quoted-key"),
        pytest.param('"log_leve\\u006c" = 7', "config.toml: log_level 7", id="no-line-of-an-escaped-key"),
        pytest.param("\nlog_level info", "config.toml, line 2: is not TOML", id="line-of-the-syntax"),
        pytest.param('\nlog_level = """', "config.toml, line 2: is not TOML", id="last-line"),
        pytest.param(
            'docker_log_max_file = 2\ndocker_log_max_size = "1m"',
            "config.toml, line 2 and file",
            id="lines-of-what-does-not-go-together",
        ),
    ],
)
def test_invalid_file_is_reported_with_its_field(file: Path, text: str, message: str) -> None:
    file.write_text(text)

    with pytest.raises(InvalidArgument) as caught:
        loaded(file=file)

    assert str(caught.value).startswith(f"file {file}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_file_is_reported(file: Path) -> None:
    file.write_bytes(b"\n\xff\xfe")

    with pytest.raises(InvalidArgument, match="line 2: is not TOML"):
        loaded(file=file)


def test_unreadable_default_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "private/config.toml")

    with (
        unprivileged_files(),
        pytest.raises(FailedPrecondition, match=r"config\.toml: cannot be read: permission denied"),
    ):
        loaded()


def test_a_named_file_must_exist(file: Path) -> None:
    with pytest.raises(FailedPrecondition, match=f"file {file}: cannot be read: no such file"):
        loaded(file=file)


def test_invalid_flag_reports_the_accepted_form() -> None:
    with pytest.raises(InvalidArgument) as caught:
        loaded({"shutdown_grace": "soon"})

    assert str(caught.value) == (
        "flag --shutdown-grace: shutdown_grace 'soon' is not accepted, give seconds or 1m30s, at most 277h"
    )


def test_invalid_variable_is_reported() -> None:
    with pytest.raises(InvalidArgument, match=r"^environment PYDOCKERSHIM_CNI_BIN_DIR: cni_bin_dir"):
        loaded(environ={"PYDOCKERSHIM_CNI_BIN_DIR": "bin"})


def test_a_misspelt_variable_is_a_warning() -> None:
    environ = {
        "PYDOCKERSHIM_LOG_LEVLE": "debug",
        "PYDOCKERSHIM_LOG_LEVEL": "debug",
        "PYDOCKERSHIM_SERVICE_PORT": "80",
        "PYDOCKERSHIM_PORT_80_TCP_ADDR": "10.96.0.7",
    }

    assert misspelt_variables(environ) == [
        "environment PYDOCKERSHIM_LOG_LEVLE is no setting, perhaps PYDOCKERSHIM_LOG_LEVEL"
    ]
