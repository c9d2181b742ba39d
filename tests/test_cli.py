import subprocess
import sys
from pathlib import Path

import pytest

from shim import __version__
from shim.cli import main
from shim.config import load
from shim.config.cri_dockerd_flags import IGNORED
from shim.config.fields import fields


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "DEFAULT_FILE", tmp_path / "absent.toml")
    for field in fields().values():
        monkeypatch.delenv(field.variable, raising=False)


def test_version_prints_the_installed_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0

    words = capsys.readouterr().out.splitlines()
    assert words[:2] == [f"pydockershim {__version__}", "CRI v1"]
    assert [line.split()[0] for line in words[2:]] == ["Python", "grpcio"]


@pytest.mark.parametrize("flag", ["--version", "--buildinfo"])
def test_cri_dockerds_flags_print_the_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([flag])

    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"pydockershim {__version__}\n")


def test_config_shows_the_effective_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--cni-bin-dir=/a,/b", "--format=table"]) == 0

    out, err = capsys.readouterr()
    assert "/a,/b" in out
    assert "flag --cni-bin-dir" in out
    assert err == ""


def test_every_setting_is_a_flag_with_its_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])

    shown = " ".join(capsys.readouterr().out.split())
    for field in fields().values():
        assert f"{field.flag} VALUE" in shown
        assert field.doc.split(";")[0].split("-")[0] in shown
        assert f"Give {field.accepted.split('-')[0]}" in shown
    for entry in IGNORED:
        assert entry.flag in shown


def test_the_directory_flag_of_cri_dockerd_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--cri-dockerd-root-directory", "/var/lib/cri-dockerd"]) == 0

    assert "/var/lib/cri-dockerd" in capsys.readouterr().out


def test_a_flag_that_changes_nothing_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--network-plugin-mtu=1400", "--ipv6-dual-stack", "--log-level=warn"]) == 0

    assert capsys.readouterr().err == (
        "pydockershim: warning: flag --network-plugin-mtu is ignored: the CNI configuration decides the MTU\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        pytest.param(["--log-level=loud"], "flag --log-level: log_level 'loud' is not accepted", 2, id="value"),
        pytest.param(["--network-plugin=kubenet"], "flag --network-plugin: network_plugin 'kubenet'", 2, id="plugin"),
        # systemd restarts the server, and the file may appear a moment later.
        pytest.param(["--config=/nowhere/x.toml"], "file /nowhere/x.toml: cannot be read", 1, id="no-file"),
    ],
)
def test_wrong_settings_print_a_line_and_set_the_exit_code(
    arguments: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == code

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pydockershim: error: {message}")


@pytest.mark.parametrize("flag", ["--hairpin-mode=hairpin-veth", "--config=/nowhere/x.toml"])
def test_flags_alone_serve_as_with_cri_dockerd(flag: str, tmp_path: Path) -> None:
    script = (
        "import sys, shim.daemon.serve as daemon\n"
        "daemon.serve = lambda config, reread: not print(config.container_runtime_endpoint)\n"
        "from shim.cli import main\n"
        "sys.exit(main())"
    )
    (tmp_path / "x.toml").write_text("")
    flags = ["--container-runtime-endpoint", "fd://", "--network-plugin=cni", flag.replace("/nowhere", str(tmp_path))]

    served = subprocess.run([sys.executable, "-c", script, *flags], capture_output=True, text=True, check=True)

    assert served.stdout.splitlines()[-1] == "fd://"


@pytest.mark.parametrize("arguments", [["serve", "--nope"], ["--nope"], [], ["fly"], ["config", "--log=info"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    error, help_of_the_command = capsys.readouterr().err.splitlines()
    assert error.startswith("pydockershim")
    assert help_of_the_command.endswith(" --help")


def test_a_misspelt_flag_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "--cni-conf-dirs=/etc/cni"])

    error = "pydockershim: error: unrecognized arguments: --cni-conf-dirs=/etc/cni, perhaps --cni-conf-dir"
    assert capsys.readouterr().err.splitlines()[0] == error


def test_a_package_can_be_removed_with_wrong_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "DEFAULT_FILE", Path("/etc/pydockershim/config.toml"))
    file = tmp_path / "etc/pydockershim/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("log_levle = 1\n")
    uninstall = ["uninstall", f"--root={tmp_path}", "--dry-run"]

    assert main(uninstall) == 2
    assert main([*uninstall, "--force", "--keep-configuration"]) == 0

    error, warning = capsys.readouterr().err.splitlines()
    assert error.startswith(f"pydockershim: error: file {file}, line 1: there is no setting 'log_levle'")
    assert warning.startswith(f"pydockershim: warning: file {file}, line 1: there is no setting 'log_levle'")
    assert warning.endswith("; the default settings are used")


def test_a_closed_pipe_is_not_an_error() -> None:
    shown = subprocess.run(
        f"{sys.executable} -m shim config --format=toml | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (shown.stdout, shown.stderr) == ("#", "")


@pytest.mark.parametrize(("ended", "status"), [(True, 0), (False, 1)])
def test_a_hanging_thread_does_not_keep_the_process_alive(ended: bool, status: int) -> None:
    script = (
        "import sys, threading, shim.daemon.serve as daemon\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        f"daemon.serve = lambda config, reread: {ended}\n"
        "from shim.cli import main\n"
        "sys.exit(main(['serve']))"
    )

    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == status


def test_doctor_continues_after_a_wrong_setting(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('log_levle = "debug"\n')
    command = [sys.executable, "-m", "shim", "doctor", f"--config={file}"]
    reported = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (reported.returncode, reported.stderr) == (1, "")
    first, advice, *others = reported.stdout.splitlines()
    assert first.split(maxsplit=2) == [
        "FAIL",
        "settings",
        f"file {file}, line 1: there is no setting 'log_levle', perhaps 'log_level'",
    ]
    assert "-> correct it" in advice
    assert any("docker" in line for line in others)


def test_doctor_prints_advice_and_fails(tmp_path: Path) -> None:
    settings = [f"--docker-endpoint=unix://{tmp_path}/absent.sock", f"--cni-conf-dir={tmp_path}"]
    command = [sys.executable, "-m", "shim", "doctor", *settings, f"--container-runtime-endpoint=unix://{tmp_path}/s"]
    reported = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (reported.returncode, reported.stderr) == (1, "")
    assert f"{tmp_path}/absent.sock" in reported.stdout
    assert "-> " in reported.stdout
