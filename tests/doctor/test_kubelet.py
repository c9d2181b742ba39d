import os
from pathlib import Path

import pytest

from shim.doctor.kubelet import accepts_cgroup_v1


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process list with ourselves and a shell."""
    proc = tmp_path / "proc"
    add_process(proc, "self", "python3")
    add_process(proc, "7", "sh", "-c", "kubelet --config=/nowhere")
    return proc


def add_process(proc: Path, pid: str, *arguments: str, pid_namespace: str = "pid:[1]", uid: int | None = None) -> Path:
    """Add a process and return its root."""
    (proc / pid / "ns").mkdir(parents=True)
    (proc / pid / "ns/pid").symlink_to(pid_namespace)
    (proc / pid / "cmdline").write_bytes("\0".join([*arguments, ""]).encode())
    owner = os.getuid() if uid is None else uid
    (proc / pid / "status").write_text(f"Name:\tkubelet\nUid:\t{owner}\t0\t0\t0\n")
    root = proc / pid / "root"
    root.mkdir()
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "kind: KubeletConfiguration\nfailCgroupV1: false\n",
        'kind: KubeletConfiguration\n"failCgroupV1" : false # here\n',
        '{"kind": "KubeletConfiguration",\n "failCgroupV1": false}',
        '{"failCgroupV1":false}',
    ],
)
def test_without_a_kubelet_it_is_the_file_of_kubeadm(proc: Path, tmp_path: Path, text: str) -> None:
    write(tmp_path / "config.yaml", text)

    assert accepts_cgroup_v1(tmp_path, proc=proc) == f"failCgroupV1: false in {tmp_path}/config.yaml"


@pytest.mark.parametrize("text", ["", "failCgroupV1: true\n", "# failCgroupV1: false\n", "other: failCgroupV1\n"])
def test_a_file_that_does_not_accept_it(proc: Path, tmp_path: Path, text: str) -> None:
    write(tmp_path / "config.yaml", text)

    assert accepts_cgroup_v1(tmp_path, proc=proc) == ""


def test_neither_kubelet_nor_file(proc: Path, tmp_path: Path) -> None:
    assert accepts_cgroup_v1(tmp_path / "nothing", proc=proc) == ""


@pytest.mark.parametrize("flags", [["--config=/etc/k.yaml"], ["--v=2", "--config", "/etc/k.yaml", "--v=3"]])
def test_a_kubelet_that_runs_has_its_own_file_on_its_own_root(proc: Path, tmp_path: Path, flags: list[str]) -> None:
    root = add_process(proc, "9", "/usr/bin/kubelet", *flags)
    write(tmp_path / "config.yaml", "failCgroupV1: true\n")
    write(root / "etc/k.yaml", "failCgroupV1: false\n")

    assert accepts_cgroup_v1(tmp_path, proc=proc) == "failCgroupV1: false in /etc/k.yaml"


def test_the_last_drop_in_wins(proc: Path, tmp_path: Path) -> None:
    root = add_process(proc, "9", "kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d")
    write(root / "etc/k.yaml", "failCgroupV1: true\n")
    write(root / "etc/k.d/10.conf", "failCgroupV1: false\n")
    write(root / "etc/k.d/20.conf", "cgroupDriver: systemd\n")
    assert accepts_cgroup_v1(tmp_path, proc=proc) == "failCgroupV1: false in /etc/k.d/10.conf"

    write(root / "etc/k.d/30.conf", "failCgroupV1: true\n")
    assert accepts_cgroup_v1(tmp_path, proc=proc) == ""


@pytest.mark.parametrize(("value", "accepted"), [("false", "--fail-cgroupv1=false"), ("true", "")])
def test_a_flag_wins_over_files(proc: Path, tmp_path: Path, value: str, accepted: str) -> None:
    root = add_process(proc, "9", "kubelet", f"--fail-cgroupv1={value}", "--config=/etc/k.yaml")
    write(root / "etc/k.yaml", "failCgroupV1: false\n")

    assert accepts_cgroup_v1(tmp_path, proc=proc) == accepted


def test_the_kubelet_of_a_node_in_a_container_is_another(proc: Path, tmp_path: Path) -> None:
    root = add_process(proc, "9", "kubelet", "--config=/etc/k.yaml", pid_namespace="pid:[2]")
    write(root / "etc/k.yaml", "failCgroupV1: false\n")

    assert accepts_cgroup_v1(tmp_path / "nothing", proc=proc) == ""


def test_a_program_of_another_user_is_no_kubelet(proc: Path, tmp_path: Path) -> None:
    root = add_process(proc, "9", "kubelet", "--config=/etc/k.yaml", uid=os.getuid() + 1)
    write(root / "etc/k.yaml", "failCgroupV1: false\n")

    assert accepts_cgroup_v1(tmp_path / "nothing", proc=proc) == ""


def test_a_configuration_that_is_no_file_is_not_waited_for(proc: Path, tmp_path: Path) -> None:
    root = add_process(proc, "9", "kubelet", "--config=/k.yaml")
    os.mkfifo(root / "k.yaml")

    assert accepts_cgroup_v1(tmp_path, proc=proc) == ""


def test_a_process_that_has_ended_meanwhile(proc: Path, tmp_path: Path) -> None:
    (proc / "11").mkdir()
    write(tmp_path / "config.yaml", "failCgroupV1: false\n")

    assert accepts_cgroup_v1(tmp_path, proc=proc)
