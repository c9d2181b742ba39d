"""CDI specifications are found by kind and name, and converted to changes of config.json."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shim.domain.errors import FailedPrecondition
from shim.oci.cdi import FILE_LIMIT, FILES_LIMIT, Found, find

KIND = "vendor.com/gpu"
EDITS: dict[str, Any] = {
    "env": ["GPU=0", "EMPTY="],
    "deviceNodes": [{"path": "/dev/gpu0", "type": "c", "major": 195, "minor": 7, "fileMode": 438, "gid": 44}],
    "mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/lib/gpu", "options": ["ro", "rbind"]}],
    "hooks": [{"hookName": "createContainer", "path": "/bin/gpu", "args": ["gpu", "link"], "timeout": 5}],
    "additionalGids": [44, 0],
}


def write(directory: Path, name: str = "gpu.json", **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    specification = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [], **fields}
    (directory / name).write_text(json.dumps(specification))  # JSON is YAML
    return directory / name


def device(name: str = "0", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


def looked(directory: Path, *names: str) -> Found:
    return find(names or (f"{KIND}=0",), directories=[str(directory)])


@pytest.mark.parametrize("name", ["gpu.json", "gpu.yaml", "gpu.yml"])
def test_a_device_and_its_edits_are_found(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, devices=[device("1"), device("0", **EDITS)])

    found = looked(tmp_path)

    assert found.env == [("GPU", "0"), ("EMPTY", "")]
    assert found.devices == [{"path": "/dev/gpu0", "type": "c", "major": 195, "minor": 7, "fileMode": 438, "gid": 44}]
    assert found.mounts == [
        {"destination": "/lib/gpu", "type": "bind", "source": "/usr/lib/gpu", "options": ["ro", "rbind"]}
    ]
    hook = {"path": "/bin/gpu", "args": ["gpu", "link"], "env": [], "timeout": 5}
    assert found.hooks == [("createContainer", hook)]
    assert found.groups == [44]


def test_edits_of_a_kind_are_applied_once(tmp_path: Path) -> None:
    devices = [device("0", env=["A=0"]), device("1", env=["B=1"])]
    write(tmp_path, devices=devices, containerEdits={"env": ["ALL=1"]})
    assert looked(tmp_path, f"{KIND}=0", f"{KIND}=1", f"{KIND}=0").env == [("ALL", "1"), ("A", "0"), ("B", "1")]


def test_missing_device_numbers_come_from_the_host_device(tmp_path: Path) -> None:
    write(tmp_path, devices=[device(deviceNodes=[{"path": "/dev/mine", "hostPath": "/dev/null"}])])
    null = Path("/dev/null").stat().st_rdev
    assert looked(tmp_path).devices == [
        {"path": "/dev/mine", "type": "c", "major": os.major(null), "minor": os.minor(null)}
    ]


def test_the_last_directory_wins(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write(tmp_path / name, devices=[device(env=[f"FROM={name}"])])
    found = find([f"{KIND}=0"], directories=[str(tmp_path / "first"), str(tmp_path / "second"), "/nonexistent"])
    assert found.env == [("FROM", "second")]


def test_an_unknown_device_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, devices=[device("1")])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(
        FailedPrecondition, match=f"CDI device {KIND}=0: no specification in {tmp_path} has it; .*broken"
    ):
        looked(tmp_path)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"netDevices": []}, "netDevices"),
        ({"deviceNodes": [{"path": "/dev/nowhere"}]}, "/dev/nowhere: no such file"),
        ({"env": [1]}, "Expected `str`"),
    ],
)
def test_an_unsupported_edit_is_refused_by_name(tmp_path: Path, edits: dict[str, Any], reason: str) -> None:
    write(tmp_path, devices=[device(**edits)])
    with pytest.raises(FailedPrecondition, match=f"CDI device {KIND}=0: {tmp_path}/gpu.json: .*{reason}"):
        looked(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "- a", "a: b", "{", "kind: !!timestamp x"])
def test_a_malformed_specification_is_skipped(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.yaml").write_text(content)
    write(tmp_path, devices=[device(env=["A=1"])])
    assert looked(tmp_path).env == [("A", "1")]


def test_a_file_that_is_too_large_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, devices=[device()])
    path.write_text(path.read_text().ljust(FILE_LIMIT))
    looked(tmp_path)
    path.write_text(path.read_text() + " ")
    with pytest.raises(FailedPrecondition, match=f"more than {FILE_LIMIT} bytes"):
        looked(tmp_path)


def test_the_number_of_files_is_limited(tmp_path: Path) -> None:
    for number in range(FILES_LIMIT):
        write(tmp_path, f"{number:05}.json")
    write(tmp_path, "last.json", devices=[device()])
    with pytest.raises(FailedPrecondition):
        looked(tmp_path)
    (tmp_path / "00000.json").unlink()
    looked(tmp_path)
