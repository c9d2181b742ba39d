from pathlib import Path

import pytest

from shim.install import daemon_json
from shim.install.dockerd import Dockerd, dockerd_of_unit

SHOWN = "MainPID={pid}\nExecStart={{ path=/usr/bin/dockerd ; argv[]={words} ; ignore_errors=no ; start_time=[n/a] }}\n"


def shown(words: str, *, pid: int = 0) -> str:
    return SHOWN.format(words=words, pid=pid)


def test_command_line_comes_from_the_unit() -> None:
    assert dockerd_of_unit(shown("/usr/bin/dockerd -H fd://")).words == ("/usr/bin/dockerd", "-H", "fd://")


def test_unit_variables_have_the_running_process_values(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"/usr/sbin/dockerd\0-H\0fd://\0--live-restore\0")

    dockerd = dockerd_of_unit(shown("/usr/sbin/dockerd -H fd:// $DOCKER_OPTS", pid=7), proc=tmp_path)

    assert dockerd.values("live-restore") == ["true"]


@pytest.mark.parametrize("pid", [0, 8])
def test_unit_variables_are_omitted_without_a_process(tmp_path: Path, pid: int) -> None:
    dockerd = dockerd_of_unit(shown("/usr/sbin/dockerd -H fd:// $DOCKER_OPTS", pid=pid), proc=tmp_path)

    assert dockerd.words == ("/usr/sbin/dockerd", "-H", "fd://")


def test_dockerd_without_a_unit_is_unknown() -> None:
    assert dockerd_of_unit("MainPID=0\n") == Dockerd()


def test_flag_values_are_found_in_each_form() -> None:
    dockerd = Dockerd(("d", "--exec-opt=a=b", "--exec-opt", "c=d", "--live-restore", "--debug", "--live-restore=false"))

    assert dockerd.values("exec-opt") == ["a=b", "c=d"]
    assert dockerd.values("live-restore") == ["true", "false"]


def test_missing_program_refuses_nothing() -> None:
    assert Dockerd(("/nowhere/dockerd",)).refusal("{}", path=Path("/d.json"), environ={}) == ""


@pytest.mark.parametrize(
    ("flags", "settings", "wanted"),
    [
        ((), {}, {"live-restore", "exec-opts"}),
        (("--live-restore",), {}, {"exec-opts"}),
        (("--exec-opt=native.cgroupdriver=cgroupfs",), {}, {"live-restore"}),
        (("--exec-opt=a=b",), {}, {"live-restore"}),
        (("--cgroup-parent=/x",), {}, {"live-restore"}),
        (("--cgroup-parent=x.slice",), {}, {"live-restore", "exec-opts"}),
        ((), {"cgroup-parent": "/x"}, {"live-restore"}),
        ((), {"exec-opts": [" Native.CgroupDriver = cgroupfs"]}, {"live-restore"}),
    ],
)
def test_keys_that_stop_dockerd_are_not_set(
    tmp_path: Path, flags: tuple[str, ...], settings: dict[str, object], wanted: set[str]
) -> None:
    dockerd = Dockerd(("dockerd", *flags))

    advised = daemon_json.advised(settings, systemd=True, path="d", dockerd=dockerd, root=tmp_path)
    assert advised.keys() == wanted | {"runtimes"}


def test_no_runtime_is_set_if_the_command_line_has_runtimes(tmp_path: Path) -> None:
    dockerd = Dockerd(("dockerd", "--add-runtime", "a=/b"))

    assert daemon_json.advised({}, systemd=False, path="d", dockerd=dockerd, root=tmp_path).keys() == {"live-restore"}
    assert "--add-runtime" in daemon_json.hindrances({}, systemd=False, dockerd=dockerd, root=tmp_path)["runtimes"]


@pytest.mark.parametrize(
    ("flags", "settings", "place"),
    [
        ((), {}, "var/lib/docker"),
        ((), {"data-root": "/srv/d"}, "srv/d"),
        (("--data-root=/srv/f",), {"userns-remap": "default"}, "srv/f/100000.100000"),
    ],
    ids=["default", "moved", "shifted users"],
)
def test_live_restore_is_not_set_in_a_swarm(
    tmp_path: Path, flags: tuple[str, ...], settings: dict[str, object], place: str
) -> None:
    (tmp_path / place / "swarm").mkdir(parents=True)
    (tmp_path / place / "swarm/docker-state.json").write_text("{}")
    dockerd = Dockerd(("dockerd", *flags))

    advised = daemon_json.advised(settings, systemd=False, path="d", dockerd=dockerd, root=tmp_path)
    assert advised.keys() == {"runtimes"}
    remarks = daemon_json.hindrances(settings, systemd=False, dockerd=dockerd, root=tmp_path)
    assert "docker swarm leave" in remarks["live-restore"]
