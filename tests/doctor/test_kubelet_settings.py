import os
import subprocess
from pathlib import Path

import pytest

from shim.doctor import kubelet_settings
from shim.doctor.kubelet_settings import read_kubelet


def accepts_cgroup_v1(root: Path, *, proc: Path) -> str:
    return kubelet_settings.accepts_cgroup_v1(read_kubelet(root, proc=proc, packages=[]))


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


def test_without_a_kubelet_nothing_is_configured(proc: Path, tmp_path: Path) -> None:
    assert not read_kubelet(tmp_path / "nothing", proc=proc, packages=[]).exists


def test_flags_are_those_of_kubeadm_and_of_the_package(proc: Path, tmp_path: Path) -> None:
    write(tmp_path / "kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--cgroup-driver=systemd --pod-cidr 10.1.0.0/24"\n')
    write(tmp_path / "default", "# KUBELET_EXTRA_ARGS=--fail-swap-on=true\nKUBELET_EXTRA_ARGS='--fail-swap-on=false'\n")
    write(tmp_path / "config.yaml", "cgroupDriver: cgroupfs\nfeatureGates:\n  A: true\n")

    found = read_kubelet(tmp_path, proc=proc, packages=[tmp_path / "default"])

    assert [found.value(key) for key in ("cgroupDriver", "podCIDR", "failSwapOn")] == ["systemd", "10.1.0.0/24", False]
    assert str(found.settings["cgroupDriver"]) == f"--cgroup-driver in {tmp_path}/kubeadm-flags.env"
    assert found.gate("A") is True


def test_feature_gates_of_a_flag_are_added_to_those_of_the_file(proc: Path, tmp_path: Path) -> None:
    root = add_process(proc, "9", "kubelet", "--feature-gates=B=false,C=true", "--config=/etc/k.yaml")
    write(root / "etc/k.yaml", "featureGates: {A: true, B: true}\n")

    found = read_kubelet(tmp_path, proc=proc, packages=[])

    assert [found.gate(name) for name in "ABCD"] == [True, False, True, None]


def test_a_running_kubelet_names_the_file_of_its_flag(proc: Path, tmp_path: Path) -> None:
    write(tmp_path / "kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--cgroup-driver=systemd"\n')
    add_process(proc, "9", "kubelet", "--cgroup-driver=systemd", "--pod-cidr", "10.1.0.0/24")

    found = read_kubelet(tmp_path, proc=proc, packages=[])

    assert found.settings["cgroupDriver"].file == tmp_path / "kubeadm-flags.env"
    assert found.command_to_set("podCIDR", "x").startswith("set --pod-cidr=x in the kubelet's unit")


@pytest.mark.parametrize("text", ["a: b: c", "\ta: 1", "[" * 100_000], ids=["colons", "tab", "deep"])
def test_a_file_that_is_not_yaml_is_a_problem(proc: Path, tmp_path: Path, text: str) -> None:
    write(tmp_path / "config.yaml", text)

    found = read_kubelet(tmp_path, proc=proc, packages=[])

    assert found.problem.startswith(f"{tmp_path}/config.yaml is not YAML: ")
    assert found.exists


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("config.yaml", "a: 1\ncgroupDriver: cgroupfs\n", "a: 1\ncgroupDriver: systemd\n"),
        ("config.yaml", "a: 1\n", "a: 1\ncgroupDriver: systemd\n"),
        ("kubeadm-flags.env", 'X="--v=2 --cgroup-driver=cgroupfs"\n', 'X="--v=2 --cgroup-driver=systemd"\n'),
        ("kubeadm-flags.env", 'X="--cgroup-driver cgroupfs --v=2"\n', 'X="--cgroup-driver=systemd --v=2"\n'),
    ],
)
def test_the_command_sets_the_value(proc: Path, tmp_path: Path, file: str, before: str, after: str) -> None:
    write(tmp_path / file, before)
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "systemctl").chmod(0o755)

    command = read_kubelet(tmp_path, proc=proc, packages=[]).command_to_set("cgroupDriver", "systemd")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, check=True).stdout

    assert said == "restart kubelet\n"
    assert (tmp_path / file).read_text() == after
