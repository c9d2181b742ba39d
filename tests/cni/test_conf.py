import json
import os
from pathlib import Path
from typing import Any

import pytest

from shim.cni.conf import (
    FILE_LIMIT,
    FILES_LIMIT,
    ConfError,
    Listing,
    NetworkConfig,
    Skipped,
    choose,
    parse_network,
    read_directory,
)
from tests.cni.fake_plugins import FakePlugins

BRIDGE: dict[str, Any] = {"type": "bridge", "bridge": "cni0", "vendor": {"x": [1, None]}}


def conflist(**changes: Any) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [BRIDGE]} | changes


def parsed(raw: Any, *, file: str = "10-pods.conflist") -> NetworkConfig:
    return parse_network(json.dumps(raw).encode(), file=file)


def reason(raw: Any, *, file: str = "10-pods.conflist") -> str:
    with pytest.raises(ConfError) as raised:
        parsed(raw, file=file)
    return str(raised.value)


def test_a_list_is_kept_as_written() -> None:
    raw = conflist(disableCheck=True, disableGC="false", vendor="kept")

    network = parsed(raw)

    assert network.conflist == raw
    assert (network.name, network.plugin_types) == ("pods", ["bridge"])


@pytest.mark.parametrize("file", ["10.conf", "10.json"])
def test_a_single_plugin_is_wrapped(file: str) -> None:
    raw = {"cniVersion": "0.4.0", "name": "pods", **BRIDGE}

    assert parsed(raw, file=file).conflist == {"cniVersion": "0.4.0", "name": "pods", "plugins": [raw]}


@pytest.mark.parametrize("file", ["10.conf", "10.json"])
def test_a_list_under_another_suffix_is_a_list(file: str) -> None:
    assert parsed(conflist(), file=file).conflist == conflist()


@pytest.mark.parametrize(
    ("version", "versions", "in_use"),
    [
        (None, None, "0.1.0"),
        ("", None, "0.1.0"),
        ("0.3.1", None, "0.3.1"),
        ("1.1.0", None, "1.1.0"),
        ("0.4.0", ["0.3.1", "1.0.0"], "1.0.0"),
        (None, ["0.4.0", "1.1.0", "9.0.0"], "1.1.0"),
        ("2.0.0", ["1.0.0", "2.0.0"], "1.0.0"),
        ("1.0.0", [], "1.0.0"),
    ],
    ids=["none", "empty", "old", "newest", "several", "only-several", "one-too-new", "no-several"],
)
def test_the_newest_version_that_both_support_is_in_use(version: Any, versions: Any, in_use: str) -> None:
    raw = conflist(cniVersion=version, cniVersions=versions)

    assert parsed({key: value for key, value in raw.items() if value is not None}).conflist["cniVersion"] == in_use


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "not a JSON object"),
        (conflist(name=""), "no name"),
        ({"cniVersion": "1.0.0", "plugins": [BRIDGE]}, "no name"),
        (conflist(name="../etc"), "bad name '../etc': only letters, digits, '_', '.' and '-', first a letter or digit"),
        (conflist(name=7), "bad name 7"),
        (conflist(plugins=[]), "no plugins: 'plugins' must be a list of at least one"),
        (conflist(plugins={}), "no plugins"),
        ({"cniVersion": "1.0.0", "name": "pods", **BRIDGE}, "no plugins"),
        (conflist(plugins=["bridge"]), "plugins[0] is not an object"),
        (conflist(plugins=[BRIDGE, {}]), "plugins[1] has no type"),
        (conflist(plugins=[{"type": ["bridge"]}]), "plugins[0] has no type"),
        (conflist(plugins=[{"type": "../../sh"}]), "plugins[0] has a bad type '../../sh'"),
        (conflist(plugins=[{"type": ".."}]), "plugins[0] has a bad type '..'"),
        (conflist(plugins=[{"type": "ü" * 128}]), "plugins[0] has a type longer than 255 bytes: 'ü"),
        (conflist(plugins=[{"type": "p", "capabilities": ["portMappings"]}]), "plugins[0]: capabilities is not an"),
        (conflist(cniVersion="1.2.0"), "unsupported cniVersion 1.2.0: the newest known is 1.1.0"),
        (conflist(cniVersions=["2.0.0", 3], cniVersion="1.5.0"), "unsupported cniVersion 2.0.0, 3, 1.5.0"),
        (conflist(cniVersion=1), "unsupported cniVersion 1"),
        (conflist(cniVersions="1.0.0"), "cniVersions is not a list"),
        (conflist(disableCheck="yes"), "disableCheck must be true or false, not 'yes'"),
        (conflist(disableGC=3), "disableGC must be true or false, not 3"),
        (conflist(loadOnlyInlinedPlugins="no"), "loadOnlyInlinedPlugins must be true or false, not 'no'"),
    ],
)
def test_an_unusable_list_is_an_error_with_the_reason(raw: Any, words: str) -> None:
    assert reason(raw).startswith(words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON: the file is empty"),
        (b" \n", "not JSON: the file is empty"),
        (b'{"name": "pods",', "not JSON: Input data was truncated"),
        (b"name: pods", "not JSON: JSON is malformed"),
        (b"\xff\xfe", "not JSON: JSON is malformed"),
        (b"[" * 1_000_000, "not JSON: "),
    ],
    ids=["empty", "blank", "half", "yaml", "binary", "deep"],
)
def test_an_error_in_json_has_its_position(data: bytes, words: str) -> None:
    with pytest.raises(ConfError) as raised:
        parse_network(data, file="10.conflist")

    assert str(raised.value).startswith(words)


def test_the_reason_of_an_error_is_short() -> None:
    assert len(reason(conflist(name="/" * 100_000))) < 200


def test_only_capabilities_that_are_true_are_declared() -> None:
    plugin = {"type": "portmap", "capabilities": {"portMappings": True, "dns": False, "mac": "yes"}}
    network = parsed(conflist(plugins=[BRIDGE, plugin]))

    assert network.declares("portMappings")
    assert not any(network.declares(name) for name in ("dns", "mac", "bandwidth"))


def write(directory: Path, name: str, raw: Any) -> None:
    (directory / name).write_text(raw if isinstance(raw, str) else json.dumps(raw))


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("20.conflist", "10.json", "100.conf", "30.conflist"):
        write(tmp_path, name, conflist(name=f"net-{name}"))
    for name in ("00.conflist.bak", "01.yaml", "README"):
        write(tmp_path, name, "not a configuration")
    (tmp_path / "05.conflist").mkdir()

    names = [entry.name for entry in read_directory(tmp_path).entries if isinstance(entry, NetworkConfig)]

    assert names == ["net-10.json", "net-100.conf", "net-20.conflist", "net-30.conflist"]


def test_unreadable_files_are_skipped_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "10.conflist").symlink_to(tmp_path / "nowhere")
    write(tmp_path, "20.conflist", " " * (FILE_LIMIT + 1))
    write(tmp_path, "30.conflist", "{")

    assert read_directory(tmp_path).entries == (
        Skipped("10.conflist", "cannot be read: no such file or directory"),
        Skipped("20.conflist", "cannot be read: more than 1048576 bytes"),
        Skipped("30.conflist", "not JSON: Input data was truncated"),
    )


def test_a_missing_or_empty_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert read_directory(tmp_path / "absent").problem == "does not exist"
    assert read_directory(tmp_path).problem == "holds no .conflist, .conf or .json file"
    assert read_directory(tmp_path / "file").problem == "cannot be read: not a directory"


def test_the_first_network_whose_plugins_exist_is_chosen(tmp_path: Path, fakes: FakePlugins) -> None:
    fakes.write("bridge")
    networks: list[NetworkConfig | Skipped] = [
        NetworkConfig("10", conflist(plugins=[{"type": "calico"}, {"type": "bridge"}, {"type": "portmap"}])),
        Skipped("20", "not JSON"),
        NetworkConfig("30", conflist(plugins=[{"type": "bridge", "ipam": {"type": "answered-inside"}}])),
        Skipped("40", "not read"),
    ]

    choice = choose(Listing(tmp_path, tuple(networks)), bin_dirs=[Path("/opt/none"), fakes.bin_dir])

    assert choice.network == networks[2]
    assert [str(skipped) for skipped in choice.skipped] == [
        f"10: plugin binaries calico, portmap not found in /opt/none, {fakes.bin_dir}",
        "20: not JSON",
    ]


def test_without_a_usable_file_nothing_is_chosen(tmp_path: Path) -> None:
    listing = Listing(tmp_path, (NetworkConfig("10", conflist()),))

    choice = choose(listing, bin_dirs=[tmp_path])

    assert choice.network is None
    assert str(choice.skipped[0]) == f"10: plugin binary bridge not found in {tmp_path}"


def test_a_file_name_that_is_not_utf8_is_reported_as_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"10-\xff.conflist")).write_text(json.dumps(conflist()))

    assert read_directory(tmp_path).entries == (NetworkConfig("10-\ufffd.conflist", conflist()),)


def test_a_directory_of_too_many_files_is_a_problem(tmp_path: Path) -> None:
    for number in range(FILES_LIMIT + 1):
        (tmp_path / f"{number}.conf").touch()

    assert read_directory(tmp_path).problem == f"holds more than {FILES_LIMIT} files, so none is read"


def test_a_fifo_does_not_block_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "10.conf")

    assert read_directory(tmp_path).entries == (Skipped("10.conf", "cannot be read: not a regular file"),)


def drop_in(directory: Path, network: str, name: str, raw: Any) -> None:
    (directory / network).mkdir(exist_ok=True)
    write(directory / network, name, raw)


def test_drop_ins_are_appended_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, "10.conflist", conflist())
    for name in ("20-b.conf", "100-a.conf"):
        drop_in(tmp_path, "pods", name, {"type": name, "vendor": "kept", "name": "ignored"})
    for name in ("a.conflist", "b.json", "c.conf.bak"):
        drop_in(tmp_path, "pods", name, "no drop-in")
    (tmp_path / "pods/d.conf").mkdir()
    drop_in(tmp_path, "others", "10.conf", {"type": "of another network"})

    (network,) = read_directory(tmp_path).entries

    assert isinstance(network, NetworkConfig)
    assert network.plugin_types == ["bridge", "100-a.conf", "20-b.conf"]
    assert network.conflist["plugins"][1]["vendor"] == "kept"


def test_a_list_may_consist_of_drop_ins_alone(tmp_path: Path) -> None:
    write(tmp_path, "10.conflist", {"cniVersion": "1.1.0", "name": "pods"})
    assert read_directory(tmp_path).entries == (
        Skipped("10.conflist", "no plugins: 'plugins' must be a list of at least one"),
    )

    drop_in(tmp_path, "pods", "10.conf", BRIDGE)

    (network,) = read_directory(tmp_path).entries
    assert isinstance(network, NetworkConfig)
    assert network.conflist == {"cniVersion": "1.1.0", "name": "pods", "plugins": [BRIDGE]}


@pytest.mark.parametrize(
    ("file", "raw", "reason"),
    [
        ("10.conflist", conflist(loadOnlyInlinedPlugins=True), ""),
        ("10.conflist", conflist(loadOnlyInlinedPlugins="True"), ""),
        ("10.conflist", {"name": "pods", "loadOnlyInlinedPlugins": True}, "no plugins: 'plugins' must be"),
        ("10.conflist", conflist(plugins=[]), "no plugins: 'plugins' must be"),
        ("10.conf", {"name": "pods", **BRIDGE}, ""),
        ("10.json", conflist(), ""),
    ],
)
def test_drop_ins_need_a_conflist_that_allows_them(tmp_path: Path, file: str, raw: Any, reason: str) -> None:
    """As in the reference library, a file with a single plugin or with an empty list has none."""
    write(tmp_path, file, raw)
    drop_in(tmp_path, "pods", "10.conf", {"type": "more"})

    (entry,) = read_directory(tmp_path).entries

    if isinstance(entry, Skipped):
        assert reason
        assert entry.reason.startswith(reason)
    else:
        assert not reason
        assert entry.plugin_types == ["bridge"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("{", "pods/20.conf: not JSON: "),
        ([], "pods/20.conf: not a JSON object"),
        ({"name": "pods"}, "pods/20.conf has no type"),
        ({"type": "../sh"}, "pods/20.conf has a bad type '../sh'"),
        (" " * (FILE_LIMIT + 1), "pods/20.conf cannot be read: more than 1048576 bytes"),
    ],
    ids=["half", "list", "no type", "bad type", "too large"],
)
def test_an_unusable_drop_in_makes_its_network_unusable(tmp_path: Path, raw: Any, reason: str) -> None:
    write(tmp_path, "10.conflist", conflist())
    write(tmp_path, "20.conflist", conflist(name="next"))
    drop_in(tmp_path, "pods", "10.conf", BRIDGE)
    drop_in(tmp_path, "pods", "20.conf", raw)

    first, second = read_directory(tmp_path).entries

    assert isinstance(first, Skipped)
    assert first.reason.startswith(reason)
    assert isinstance(second, NetworkConfig)


def test_too_many_drop_ins_make_their_network_unusable(tmp_path: Path) -> None:
    write(tmp_path, "10.conflist", conflist())
    for number in range(FILES_LIMIT + 1):
        drop_in(tmp_path, "pods", f"{number}.conf", "")

    assert read_directory(tmp_path).entries == (Skipped("10.conflist", "pods holds more than 1000 files"),)


def test_a_file_in_place_of_the_drop_in_directory_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, "10.conflist", conflist())
    write(tmp_path, "pods", "anything")

    assert [type(entry) for entry in read_directory(tmp_path).entries] == [NetworkConfig]
