import os
from pathlib import Path

import pytest

from shim.config.model import Config
from shim.doctor import own_exec as module
from shim.doctor.own_exec import check_own_exec


def found(config: Config, tmp_path: Path, *, booted: Path | None = None) -> tuple[str, str, str]:
    [finding] = check_own_exec(config, service=tmp_path / "exec.sock", booted=booted or tmp_path / "none")
    return finding.level, finding.text, finding.advice


def test_docker_runs_commands_where_own_exec_is_off(tmp_path: Path) -> None:
    level, text, _ = found(Config(own_exec=False), tmp_path)
    assert level == "ok"
    assert text.endswith("own_exec is off")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_the_exec_program_is_tried(tmp_path: Path) -> None:
    assert found(Config(), tmp_path)[0] == "ok"
    assert "without Docker" in found(Config(), tmp_path)[1]


def test_a_hardened_server_without_the_socket_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNIT_PATH", (tmp_path,))
    (tmp_path / "pydockershim.service").touch()
    level, text, advice = found(Config(), tmp_path, booted=tmp_path)
    assert level == "warn"
    assert "pydockershim-exec.socket is not active" in text
    assert advice.startswith("systemctl start pydockershim-exec.socket")
