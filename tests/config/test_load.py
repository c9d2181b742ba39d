from collections.abc import Mapping
from pathlib import Path

import pytest

from shim.config import load as module
from shim.config.load import DEFAULT, Loaded, load
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


def test_without_any_source_all_is_default() -> None:
    got = loaded()

    assert got.config == Config()
    assert set(got.origins.values()) == {DEFAULT}


def test_flags_go_before_environment_before_file_before_defaults(file: Path) -> None:
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


def test_variables_that_are_no_setting_are_left_alone() -> None:
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
        pytest.param(
            f"shutdown_grace = 0x{'f' * 9000}", "shutdown_grace (too long to be shown, int)", id="hexadecimal"
        ),
        pytest.param(f"shutdown_grace = {'9' * 5000}", "a number in it is too long", id="longer-number"),
        pytest.param(f"cni_bin_dir = {'[' * 5000}{']' * 5000}", "it is nested too deep", id="deep-arrays"),
        pytest.param(f"cni_bin_dir{'.a' * 5000} = 1", "config.toml: ", id="deep-tables"),
    ],
)
def test_a_bad_file_is_named_with_its_field(file: Path, text: str, message: str) -> None:
    file.write_text(text)

    with pytest.raises(InvalidArgument) as caught:
        loaded(file=file)

    assert str(caught.value).startswith(f"file {file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidArgument, match="is not TOML"):
        loaded(file=file)


def test_a_default_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_bad_flag_names_the_flag_and_the_accepted_form() -> None:
    with pytest.raises(InvalidArgument) as caught:
        loaded({"shutdown_grace": "soon"})

    assert str(caught.value) == (
        "flag --shutdown-grace: shutdown_grace 'soon' is not accepted, give seconds, or a duration such as 1m30s, 277h "
        "at most"
    )


def test_a_bad_variable_names_the_variable() -> None:
    with pytest.raises(InvalidArgument, match=r"^environment PYDOCKERSHIM_CNI_BIN_DIR: cni_bin_dir"):
        loaded(environ={"PYDOCKERSHIM_CNI_BIN_DIR": "bin"})
