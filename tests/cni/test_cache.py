import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.cni.cache import (
    FILE_LIMIT,
    MAX_ORPHANS,
    Attachment,
    Owner,
    attached_to,
    cached_attachments,
    cached_result,
    own_attachments,
    remove_cached,
    write_cached,
)
from shim.domain.errors import ShimError

CONFLIST = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "vendor": 1}]}
RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}
ATTACHMENT = Attachment(
    conflist=CONFLIST,
    container_id="c0ffee",
    netns="/run/netns/cri-c0ffee",
    ifname="eth0",
    args=[("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web")],
    capabilities={"portMappings": [{"hostPort": 80}]},
)


def test_the_file_is_the_one_the_reference_library_writes(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)

    path = tmp_path / "results/pods-c0ffee-eth0"
    written = json.loads(path.read_bytes())
    config = json.loads(base64.b64decode(written.pop("config")))
    assert config == CONFLIST
    assert written == {
        "kind": "cniCacheV1",
        "containerId": "c0ffee",
        "ifName": "eth0",
        "networkName": "pods",
        "netns": "/run/netns/cri-c0ffee",
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web"]],
        "capabilityArgs": {"portMappings": [{"hostPort": 80}]},
        "result": RESULT,
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["pods-c0ffee-eth0"]


def test_empty_fields_are_not_written(tmp_path: Path) -> None:
    write_cached(tmp_path, Attachment(conflist=CONFLIST, container_id="c0ffee", netns="", ifname="eth0"), result=RESULT)

    written = json.loads((tmp_path / "results/pods-c0ffee-eth0").read_bytes())
    assert sorted(written) == ["config", "containerId", "ifName", "kind", "networkName", "result"]


def test_a_second_add_replaces_the_entry(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)
    write_cached(tmp_path, ATTACHMENT, result={"cniVersion": "1.0.0"})

    assert cached_result(tmp_path, ATTACHMENT) == {"cniVersion": "1.0.0"}


def test_an_attachment_is_read_back_completely(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)

    assert cached_attachments(tmp_path, container_id="c0ffee") == [msgspec.structs.replace(ATTACHMENT, result=RESULT)]


def test_an_entry_can_be_removed_repeatedly(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)

    remove_cached(tmp_path, ATTACHMENT)
    remove_cached(tmp_path, ATTACHMENT)

    assert cached_result(tmp_path, ATTACHMENT) is None
    assert cached_attachments(tmp_path, container_id="c0ffee") == []


def written_by_go(tmp_path: Path, **changes: Any) -> Path:
    """Return an entry as written by a runtime that caches the bytes of a `.conf` file."""
    config = {"cniVersion": "0.3.1", "name": "flannel", "type": "flannel"}
    entry = {
        "kind": "cniCacheV1",
        "containerId": "c0ffee",
        "config": base64.b64encode(json.dumps(config).encode()).decode(),
        "ifName": "eth0",
        "networkName": "flannel",
        "cniArgs": [["K8S_POD_NAME", "old"]],
        "result": RESULT,
        "future": True,
    }
    path = tmp_path / "results/flannel-c0ffee-eth0"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(entry | changes))
    return path


def test_attachments_of_other_runtimes_are_found(tmp_path: Path) -> None:
    written_by_go(tmp_path)

    (attachment,) = cached_attachments(tmp_path, container_id="c0ffee")

    assert attachment.network == "flannel"
    assert [plugin["type"] for plugin in attachment.conflist["plugins"]] == ["flannel"]
    assert (attachment.args, attachment.netns, attachment.result) == ([("K8S_POD_NAME", "old")], "", RESULT)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "cniCacheV2"}, {"containerId": "c0ffee-2"}, {"config": "e30="}, {"config": "%"}, {"cniArgs": "x"}],
    ids=["other-kind", "other-container", "no-config", "not-base64", "malformed"],
)
def test_unusable_entries_are_skipped(tmp_path: Path, changes: dict[str, Any]) -> None:
    written_by_go(tmp_path, **changes)

    assert cached_attachments(tmp_path, container_id="c0ffee") == []


def test_a_truncated_entry_counts_as_absent(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)
    path = tmp_path / "results/pods-c0ffee-eth0"
    path.write_bytes(path.read_bytes()[:100])

    assert cached_result(tmp_path, ATTACHMENT) is None


def test_a_failed_write_is_an_error_that_names_the_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "results/pods-c0ffee-eth0").mkdir(parents=True)

    with pytest.raises(
        ShimError, match=rf"^write cni result cache {tmp_path}/results/pods-c0ffee-eth0: is a directory"
    ):
        write_cached(tmp_path, ATTACHMENT, result=RESULT)
    with pytest.raises(ShimError, match=rf"^remove cni result cache {tmp_path}/results/pods-c0ffee-eth0: "):
        remove_cached(tmp_path, ATTACHMENT)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("more", "found"), [(0, 1), (1, 0)])
def test_an_entry_of_more_than_4_mib_counts_as_absent(tmp_path: Path, more: int, found: int) -> None:
    path = written_by_go(tmp_path)
    path.write_bytes(path.read_bytes().ljust(FILE_LIMIT + more))

    assert len(cached_attachments(tmp_path, container_id="c0ffee")) == found


@pytest.mark.parametrize("result", [b"[" * 100_000, b'{"x":' * 100_000], ids=["lists", "objects"])
def test_an_entry_that_is_nested_too_deeply_counts_as_absent(tmp_path: Path, result: bytes) -> None:
    path = written_by_go(tmp_path)
    path.write_bytes(path.read_bytes().removesuffix(b"}") + b',"result":' + result + b"}")

    assert cached_attachments(tmp_path, container_id="c0ffee") == []


def test_the_owner_is_in_a_separate_key_and_is_read_back(tmp_path: Path) -> None:
    owner = Owner(docker="/run/docker.sock", sandbox="k8s_POD_web_default_u-1_0")
    made = msgspec.structs.replace(ATTACHMENT, container_id="c0" * 32, owner=owner)
    write_cached(tmp_path, made, result=None)

    written = json.loads((tmp_path / f"results/pods-{'c0' * 32}-eth0").read_bytes())
    assert written["pydockershim"] == {"docker": "/run/docker.sock", "sandbox": "k8s_POD_web_default_u-1_0"}
    assert "result" not in written
    assert own_attachments(tmp_path, docker="/run/docker.sock", excluding=()) == [made]
    assert own_attachments(tmp_path, docker="/run/docker.sock", excluding=["c0" * 32]) == []


def test_orphans_beyond_the_limit_of_a_round_are_found_later(tmp_path: Path) -> None:
    owner = Owner(docker="/d", sandbox="k8s_POD_a")
    write_cached(tmp_path, msgspec.structs.replace(ATTACHMENT, container_id="a" * 64, owner=owner), result=RESULT)
    (written,) = (tmp_path / "results").iterdir()
    for number in range(MAX_ORPHANS):
        entry = written.read_bytes().replace(b"a" * 64, f"{number:064}".encode())
        written.with_name(written.name.replace("a" * 64, f"{number:064}")).write_bytes(entry)

    assert len(own_attachments(tmp_path, docker="/d", excluding=())) == 1000


def test_attachments_of_a_network_whose_name_is_a_prefix_are_told_apart(tmp_path: Path) -> None:
    write_cached(tmp_path, ATTACHMENT, result=RESULT)
    longer = msgspec.structs.replace(ATTACHMENT, conflist={**CONFLIST, "name": "pods-2"}, container_id="beef")
    write_cached(tmp_path, longer, result=RESULT)

    assert attached_to(tmp_path, network="pods") == {("c0ffee", "eth0")}


def test_a_missing_cache_is_empty_and_an_unreadable_cache_is_an_error(tmp_path: Path) -> None:
    assert attached_to(tmp_path / "none", network="pods") == set()
    (tmp_path / "results").symlink_to("results")

    with pytest.raises(ShimError, match=f"^list cni result cache {tmp_path}: too many levels of symbolic links"):
        own_attachments(tmp_path, docker="/d", excluding=())
