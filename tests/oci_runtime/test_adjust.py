"""Changes of config.json that NRI plugins have requested."""

import copy
from pathlib import Path
from typing import Any

import pytest

from shim.oci_runtime.adjust import adjust, adjust_process
from shim.oci_runtime.order import OrderError

CONFIG: dict[str, Any] = {
    "annotations": {"a": "1", "b": "2"},
    "process": {
        "args": ["sh"],
        "env": ["A=1", "B=x=y", "C="],
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 5, "soft": 5}, {"type": "RLIMIT_CORE", "hard": 1, "soft": 1}],
        "oomScoreAdj": 0,
    },
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/a/b", "type": "bind", "source": "/x", "options": ["rbind"]},
    ],
    "hooks": {"prestart": [{"path": "/docker"}]},
    "linux": {
        "devices": [{"path": "/dev/null", "type": "c", "major": 1, "minor": 3}],
        "namespaces": [{"type": "mount"}, {"type": "ipc", "path": "/proc/1/ns/ipc"}],
        "sysctl": {"net.a": "1"},
        "resources": {"devices": [{"allow": False, "access": "rwm"}], "memory": {"limit": 5}, "blockIO": {"weight": 1}},
        "rootfsPropagation": "rslave",
    },
}


def adjusted(**changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    adjust(config, changes, runtime="runc")
    return config


def test_empty_adjustment_changes_nothing() -> None:
    assert adjusted() == CONFIG


def test_unknown_change_is_refused() -> None:
    with pytest.raises(OrderError, match="'colour', which this program does not support"):
        adjusted(args=["x"], colour="red")


def test_maps_are_changed_by_key() -> None:
    change = {"set": {"c": "3", "a": "9"}, "remove": ["b"]}
    assert adjusted(annotations=change)["annotations"] == {"a": "9", "c": "3"}
    assert adjusted(sysctl={"set": {"net.b": "2"}, "remove": ["net.a"]})["linux"]["sysctl"] == {"net.b": "2"}


def test_variables_are_set_and_removed() -> None:
    change = {"set": [["B", "new"], ["D", "d=e"]], "remove": ["A"]}
    assert adjusted(env=change)["process"]["env"] == ["C=", "B=new", "D=d=e"]


def test_arguments_are_replaced() -> None:
    assert adjusted(args=["run", "it"])["process"]["args"] == ["run", "it"]


def test_groups_are_added() -> None:
    config = copy.deepcopy(CONFIG)
    config["process"]["user"] = {"uid": 1, "additionalGids": [4, 5]}
    adjust(config, {"additionalGids": [5, 6]}, runtime="runc")
    assert config["process"]["user"] == {"uid": 1, "additionalGids": [4, 5, 6]}


def test_mounts_are_ordered_by_depth() -> None:
    change = {"set": [{"destination": "/a", "type": "bind", "source": "/y", "options": ["ro"]}], "remove": ["/proc"]}
    assert [mount["destination"] for mount in adjusted(mounts=change)["mounts"]] == ["/a", "/a/b"]


def test_mount_replaces_a_mount_at_the_same_path() -> None:
    change = {"set": [{"destination": "/a/b", "type": "tmpfs", "source": "tmpfs", "options": []}], "remove": []}
    assert [mount["type"] for mount in adjusted(mounts=change)["mounts"]] == ["proc", "tmpfs"]


@pytest.mark.parametrize(("option", "propagation"), [("rshared", "rshared"), ("rslave", "rslave"), ("ro", "rslave")])
def test_root_propagation_follows_the_mounts(option: str, propagation: str) -> None:
    change = {"set": [{"destination": "/m", "type": "bind", "source": "/m", "options": [option]}], "remove": []}
    assert adjusted(mounts=change)["linux"]["rootfsPropagation"] == propagation


def test_a_mount_gets_more_options() -> None:
    mounts = adjusted(mountOptions={"/a/b": ["rbind", "noexec"]})["mounts"]
    assert [mount.get("options") for mount in mounts] == [None, ["rbind", "noexec"]]
    with pytest.raises(OrderError, match="no mount at /c"):
        adjusted(mountOptions={"/c": ["noexec"]})


def test_hooks_come_after_dockers_hooks() -> None:
    change = {"prestart": [{"path": "/mine"}], "poststop": [{"path": "/end"}]}
    assert adjusted(hooks=change)["hooks"] == {
        "prestart": [{"path": "/docker"}, {"path": "/mine"}],
        "poststop": [{"path": "/end"}],
    }


def test_limits_of_a_process_are_replaced_by_their_type() -> None:
    limit = {"type": "RLIMIT_NOFILE", "hard": 9, "soft": 8}
    assert adjusted(rlimits=[limit])["process"]["rlimits"] == [CONFIG["process"]["rlimits"][1], limit]


def test_device_gets_access_rules() -> None:
    device = {"path": "/dev/x", "type": "c", "major": 10, "minor": 200}
    linux = adjusted(devices={"set": [device], "remove": ["/dev/null"]})["linux"]
    assert linux["devices"] == [device]
    assert linux["resources"]["devices"][-1] == {
        "allow": True,
        "type": "c",
        "major": 10,
        "minor": 200,
        "access": "rwm",
    }


def test_device_rules_come_last() -> None:
    rule = {"allow": True, "access": "r"}
    assert adjusted(deviceRules=[rule])["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}, rule]


def test_namespaces_are_replaced_and_removed() -> None:
    change = {"set": [{"type": "ipc"}, {"type": "cgroup"}], "remove": ["mount"]}
    assert adjusted(namespaces=change)["linux"]["namespaces"] == [{"type": "ipc"}, {"type": "cgroup"}]


def test_limits_of_control_groups_are_added() -> None:
    resources = adjusted(resources={"memory": {"swappiness": 3}, "cpu": {"realtimePeriod": 7}})["linux"]["resources"]
    assert resources["memory"] == {"limit": 5, "swappiness": 3}
    assert resources["cpu"] == {"realtimePeriod": 7}


def test_classes_of_intel_rdt_are_set_and_removed() -> None:
    linux = adjusted(intelRdt={"remove": False, "set": {"closID": "gold"}})["linux"]
    assert linux["intelRdt"] == {"closID": "gold"}
    config = copy.deepcopy(CONFIG)
    config["linux"]["intelRdt"] = {"closID": "old"}
    adjust(config, {"intelRdt": {"remove": True, "set": {}}}, runtime="runc")
    assert "intelRdt" not in config["linux"]


def test_single_values_are_replaced() -> None:
    config = adjusted(oomScoreAdj=7, seccomp={"defaultAction": "SCMP_ACT_ALLOW"}, noBlockIO=True)
    assert config["process"]["oomScoreAdj"] == 7
    assert config["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_ALLOW"}
    assert "blockIO" not in config["linux"]["resources"]


NEW = '{"ociVersionMax": "1.2.0", "linux": {"memoryPolicy": {"modes": []}, "netDevices": {"enabled": true}}}'
OLD = '{"ociVersionMax": "1.0.2-dev", "linux": {}}'


@pytest.mark.parametrize("kind", ["scheduler", "ioPriority", "memoryPolicy", "netDevices"])
def test_change_that_an_older_runc_would_ignore_is_refused(tmp_path: Path, kind: str) -> None:
    change: Any = {"set": {"eth9": {"name": "net9"}}, "remove": []} if kind == "netDevices" else {"value": 1}
    runc = tmp_path / "runc"
    runc.touch(0o755)

    runc.write_text(f"#!/bin/sh\n[ $1 = features ] && echo '{NEW}'\n")
    adjust(copy.deepcopy(CONFIG), {kind: change}, runtime=str(runc))
    for script in (f"#!/bin/sh\necho '{OLD}'\n", "#!/bin/sh\nexit 1\n"):
        runc.write_text(script)
        with pytest.raises(OrderError, match=f"has set {kind}, which this version of"):
            adjust(copy.deepcopy(CONFIG), {kind: change}, runtime=str(runc))


def test_exec_process_gets_variables_and_limits() -> None:
    process: dict[str, Any] = {"env": ["A=1", "GONE=x", "OWN=given"], "args": ["sh"]}
    changes = {
        "env": {"A": ["1", "2"], "GONE": ["x", None], "NEW": [None, "n"], "OWN": ["before", "after"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 9, "soft": 8}],
    }
    adjust_process(process, changes)
    assert process["env"] == ["OWN=given", "A=2", "NEW=n"]
    assert process["rlimits"] == [{"type": "RLIMIT_NOFILE", "hard": 9, "soft": 8}]
