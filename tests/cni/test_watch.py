import json
import queue
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict, WrappedLogger

from shim.cni import watch
from shim.cni.conf import Listing
from shim.cni.watch import NOT_READY, ConfDirectory, NetworkStatus
from shim.domain.errors import FailedPrecondition
from tests.cni.fake_plugins import FakePlugins
from tests.facts import open_descriptors

SOON = 20.0
"""Limit in seconds for a change to take effect, even on a stalling machine."""


class Lines:
    """The log lines in order. Each change of the network writes a single line."""

    def __init__(self) -> None:
        self._queue: queue.Queue[EventDict] = queue.Queue()

    def take(self, _logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        self._queue.put({"level": method, **line})
        raise structlog.DropEvent

    def wait_next(self, *, seconds: float = SOON) -> str:
        return str(self.wait_line(seconds=seconds)["detail"])

    def wait_line(self, *, seconds: float = SOON) -> EventDict:
        return self._queue.get(timeout=seconds)

    def wait_for(self, text: str) -> None:
        """Skip lines until `text`: a change in several steps may write more than a line."""
        until = time.monotonic() + SOON
        seen = [""]
        while seen[-1] != text:
            assert time.monotonic() < until, seen
            seen.append(self.wait_next())

    @property
    def waiting(self) -> int:
        return self._queue.qsize()


@pytest.fixture
def lines() -> Iterator[Lines]:
    taken = Lines()
    # Changed in place, because loggers in use keep the list.
    processors = structlog.get_config()["processors"]
    kept = list(processors)
    processors[:] = [taken.take]
    yield taken
    processors[:] = kept


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "etc/cni/net.d"


@pytest.fixture
def unstarted(directory: Path, fakes: FakePlugins) -> Iterator[ConfDirectory]:
    fakes.write("bridge")
    networks = ConfDirectory(directory, bin_dirs=[fakes.bin_dir, Path("/opt/none")])
    yield networks
    networks.stop()


@pytest.fixture
def networks(unstarted: ConfDirectory, directory: Path, lines: Lines) -> ConfDirectory:
    """Follows `directory`, which does not exist yet; the first line has been taken."""
    unstarted.start()
    assert lines.wait_next() == f"no pod network: cni configuration directory {directory} does not exist"
    return unstarted


@pytest.fixture
def ready(unstarted: ConfDirectory, directory: Path, lines: Lines) -> ConfDirectory:
    """Follows `directory`; the network `first` of 10.conflist is in force; the first line has been taken."""
    make_directory(directory, "10.conflist", "first")
    unstarted.start()
    assert lines.wait_next() == f"network first of {directory}/10.conflist"
    return unstarted


def text(name: str, *types: str) -> str:
    plugins = [{"type": kind} for kind in types or ("bridge",)]
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": plugins})


def make_directory(directory: Path, file: str, name: str) -> None:
    """Create a file atomically, by a rename."""
    new = directory.with_name("new")
    new.mkdir(parents=True)
    (new / file).write_text(text(name))
    new.rename(directory)


def test_only_the_loss_of_a_network_is_a_warning(unstarted: ConfDirectory, directory: Path, lines: Lines) -> None:
    def next_of() -> tuple[str, str]:
        line = lines.wait_line()
        return str(line["level"]), str(line["event"])

    unstarted.start()
    assert next_of() == ("info", "no CNI network yet")
    make_directory(directory, "10.conflist", "first")
    assert next_of() == ("info", "CNI network ready")
    (directory / "10.conflist").unlink()
    assert next_of() == ("warning", "no CNI network")


def test_an_unusable_file_is_a_warning_from_the_start(unstarted: ConfDirectory, directory: Path, lines: Lines) -> None:
    directory.mkdir(parents=True)
    (directory / "10.conflist").write_text("{")
    unstarted.start()

    line = lines.wait_line()
    assert (line["level"], line["event"]) == ("warning", "no CNI network")


def test_the_status_names_the_missing_directory(networks: ConfDirectory, directory: Path) -> None:
    message = f"no pod network: cni configuration directory {directory} does not exist"

    assert networks.status() == NetworkStatus(ready=False, reason=NOT_READY, message=message)
    with pytest.raises(FailedPrecondition) as raised:
        networks.chosen()
    assert str(raised.value) == message


def test_an_existing_file_is_in_force_after_start(unstarted: ConfDirectory, directory: Path) -> None:
    make_directory(directory, "10.conflist", "first")

    unstarted.start()

    assert unstarted.chosen().name == "first"
    assert unstarted.status() == NetworkStatus(
        ready=True, reason="", message=f"network first of {directory}/10.conflist"
    )


def write_in_place(path: Path) -> None:
    path.write_text(text("new"))


def rename_into_place(path: Path) -> None:
    other = path.with_suffix(".tmp")
    other.write_text(text("new"))
    other.rename(path)


def link_into_place(path: Path) -> None:
    other = path.with_suffix(".tmp")
    other.write_text(text("new"))
    path.unlink(missing_ok=True)
    path.hardlink_to(other)


def point_to(path: Path) -> None:
    other = path.with_suffix(".target")
    other.write_text(text("new"))
    path.unlink(missing_ok=True)
    path.symlink_to(other)


WAYS = [write_in_place, rename_into_place, link_into_place, point_to]


@pytest.mark.parametrize("put", WAYS)
def test_a_new_file_takes_effect(
    ready: ConfDirectory, directory: Path, lines: Lines, put: Callable[[Path], None]
) -> None:
    put(directory / "05.conflist")

    assert lines.wait_next() == f"network new of {directory}/05.conflist"
    assert ready.chosen().name == "new"


@pytest.mark.parametrize("put", [write_in_place, rename_into_place])
def test_a_changed_file_takes_effect(
    ready: ConfDirectory, directory: Path, lines: Lines, put: Callable[[Path], None]
) -> None:
    put(directory / "10.conflist")

    assert lines.wait_next() == f"network new of {directory}/10.conflist"
    assert ready.chosen().name == "new"


def move_away(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere")


@pytest.mark.parametrize("take", [Path.unlink, move_away], ids=["unlink", "rename"])
def test_a_deleted_file_ends_readiness(
    ready: ConfDirectory, directory: Path, lines: Lines, take: Callable[[Path], None]
) -> None:
    take(directory / "10.conflist")

    message = f"no pod network: cni configuration directory {directory} holds no .conflist, .conf or .json file"
    assert lines.wait_next() == message
    assert ready.status() == NetworkStatus(ready=False, reason=NOT_READY, message=message)


def test_the_next_file_takes_over(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    (directory / "20.conf").write_text(json.dumps({"name": "second", "type": "bridge"}))
    (directory / "10.conflist").unlink()

    lines.wait_for(f"network second of {directory}/20.conf")
    assert ready.chosen().conflist["plugins"] == [{"name": "second", "type": "bridge"}]


def test_a_file_is_not_read_before_it_is_whole(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    whole = text("second")

    with (directory / "05.conflist").open("w") as file:
        file.write(whole[:20])
        file.flush()
        with pytest.raises(queue.Empty):
            lines.wait_next(seconds=0.2)
        file.write(whole[20:])

    assert lines.wait_next() == f"network second of {directory}/05.conflist"
    assert ready.chosen().name == "second"


@pytest.mark.parametrize("deepest", ["etc", "etc/cni", "etc/cni/net.d"])
def test_the_directory_may_vanish_and_reappear_at_any_level(
    ready: ConfDirectory, directory: Path, tmp_path: Path, lines: Lines, deepest: str
) -> None:
    shutil.rmtree(tmp_path / deepest)
    lines.wait_for(f"no pod network: cni configuration directory {directory} does not exist")

    make_directory(directory, "10.conflist", "again")

    lines.wait_for(f"network again of {directory}/10.conflist")
    assert ready.chosen().name == "again"


def write_version(directory: Path, version: str) -> None:
    """Write a ConfigMap volume as the kubelet does: a new directory, and a link to it that replaces the last link."""
    (directory / f"..{version}").mkdir(parents=True)
    (directory / f"..{version}/10.conflist").write_text(text(version))
    (directory / "..data_tmp").symlink_to(f"..{version}")
    (directory / "..data_tmp").rename(directory / "..data")


def test_swapping_a_link_in_the_path_of_files_takes_effect(
    unstarted: ConfDirectory, directory: Path, lines: Lines
) -> None:
    write_version(directory, "one")
    (directory / "10.conflist").symlink_to("..data/10.conflist")
    unstarted.start()
    assert lines.wait_next() == f"network one of {directory}/10.conflist"

    write_version(directory, "two")

    assert lines.wait_next() == f"network two of {directory}/10.conflist"


def test_writing_the_target_of_a_link_takes_effect(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    (directory / "template").write_text(text("one"))
    (directory / "05.conflist").symlink_to("template")
    assert lines.wait_next() == f"network one of {directory}/05.conflist"

    (directory / "template").write_text(text("two"))

    lines.wait_for(f"network two of {directory}/05.conflist")


@pytest.mark.parametrize("level", ["etc", "etc/cni", "etc/cni/net.d"])
def test_the_directory_may_be_replaced_at_any_level(
    ready: ConfDirectory, directory: Path, tmp_path: Path, lines: Lines, level: str
) -> None:
    make_directory(tmp_path / "other" / directory.relative_to(tmp_path), "10.conflist", "other")

    (tmp_path / level).rename(tmp_path / "old")
    lines.wait_for(f"no pod network: cni configuration directory {directory} does not exist")
    (tmp_path / "other" / level).rename(tmp_path / level)
    lines.wait_for(f"network other of {directory}/10.conflist")

    # The moved directory does not count any more.
    (tmp_path / "old" / directory.relative_to(tmp_path / level) / "00.conflist").write_text(text("foreign"))
    (directory / "10.conflist").write_text(text("last"))
    lines.wait_for(f"network last of {directory}/10.conflist")
    assert ready.chosen().name == "last"


def test_the_directory_may_be_a_link_that_is_swapped(
    networks: ConfDirectory, directory: Path, tmp_path: Path, lines: Lines
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "10.conflist").write_text(text(name))
    directory.parent.mkdir(parents=True)
    directory.symlink_to(tmp_path / "one")
    lines.wait_for(f"network one of {directory}/10.conflist")

    turned = directory.with_name("turned")
    turned.symlink_to(tmp_path / "two")
    turned.rename(directory)

    lines.wait_for(f"network two of {directory}/10.conflist")
    (tmp_path / "two/10.conflist").write_text(text("three"))
    lines.wait_for(f"network three of {directory}/10.conflist")
    assert networks.status().ready


def test_a_file_in_place_of_the_directory_is_reported(networks: ConfDirectory, directory: Path, lines: Lines) -> None:
    directory.parent.mkdir(parents=True)
    directory.write_text("")
    lines.wait_for(f"no pod network: cni configuration directory {directory} cannot be read: not a directory")

    directory.unlink()
    make_directory(directory, "10.conflist", "first")

    lines.wait_for(f"network first of {directory}/10.conflist")
    assert networks.chosen().name == "first"


def test_a_new_or_removed_binary_counts_at_the_next_request(
    ready: ConfDirectory, directory: Path, fakes: FakePlugins, lines: Lines
) -> None:
    (fakes.bin_dir / "bridge").rename(fakes.bin_dir / "away")

    status = ready.status()

    assert (status.ready, status.reason) == (False, NOT_READY)
    assert status.message == (
        f"no pod network: no usable cni configuration in {directory}: "
        f"10.conflist: plugin binary bridge not found in {fakes.bin_dir}, /opt/none"
    )
    assert lines.wait_next() == status.message
    (fakes.bin_dir / "away").rename(fakes.bin_dir / "bridge")
    assert ready.chosen().name == "first"
    assert lines.wait_next() == f"network first of {directory}/10.conflist"


def test_skipped_files_are_reported_while_ready(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    (directory / "05.conflist").write_text("{")

    message = f"network first of {directory}/10.conflist; not used: 05.conflist: not JSON: Input data was truncated"
    assert lines.wait_next() == message
    assert ready.status() == NetworkStatus(ready=True, reason="", message=message)


def test_every_reason_is_reported_while_not_ready_up_to_a_limit(directory: Path) -> None:
    directory.mkdir(parents=True)
    for number in range(10, 22):
        (directory / f"{number}.conflist").write_text("{")
    networks = ConfDirectory(directory, bin_dirs=[])
    networks.start()
    networks.stop()

    message = networks.status().message

    assert message.startswith(f"no pod network: no usable cni configuration in {directory}: 10.conflist: not JSON: ")
    assert message.endswith("; 19.conflist: not JSON: Input data was truncated; and 2 more")


def test_changes_without_effect_are_not_logged(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    for _ in range(3):
        ready.status()
        ready.chosen()
    (directory / "README").write_text("nothing")
    (directory / "10.conflist").write_text(text("first"))
    (directory / "20.conflist").write_text(text("later"))
    (directory / "99-last.conflist.swp").write_text("{")

    rename_into_place(directory / "00.conflist")

    assert lines.wait_next() == f"network new of {directory}/00.conflist"
    ready.stop()
    assert lines.waiting == 0


def test_reading_continues_after_an_internal_error(
    ready: ConfDirectory, directory: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_directory: Path) -> Listing:
        raise RuntimeError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(watch, "read_directory", fail)
        (directory / "05.conflist").write_text(text("second"))
        assert lines.wait_line()["event"] == "failed to read CNI directory, waiting for its next change"
    assert ready.chosen().name == "first"

    (directory / "05.conflist").write_text(text("third"))
    lines.wait_for(f"network third of {directory}/05.conflist")


def test_a_plugin_type_that_is_too_long_for_a_file_name_is_skipped(
    ready: ConfDirectory, directory: Path, lines: Lines
) -> None:
    (directory / "05.conflist").write_text(text("long", "a" * 300))

    assert "not used: 05.conflist: plugins[0] has a type longer than 255 bytes" in lines.wait_next()
    assert ready.status().ready
    (directory / "04.conflist").write_text(text("next"))
    lines.wait_for(f"network next of {directory}/04.conflist")


def test_stop_ends_the_thread_and_may_be_repeated(ready: ConfDirectory) -> None:
    descriptors = open_descriptors()

    ready.stop()
    ready.stop()

    assert "cni-watch" not in [thread.name for thread in threading.enumerate()]
    assert open_descriptors() == descriptors - 2  # inotify and the eventfd
    assert ready.chosen().name == "first"


def test_a_lack_of_inotify_instances_is_an_error(directory: Path, ready: ConfDirectory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    another = ConfDirectory(directory, bin_dirs=[])
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(FailedPrecondition, match=rf"^watch cni directory {directory}: too many open files"):
            another.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_burst_of_changes_ends_with_the_last_change(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    names: list[Any] = [f"net{number}" for number in range(200)]
    for name in names:
        (directory / "10.conflist").write_text(text(name))

    lines.wait_for(f"network net199 of {directory}/10.conflist")
    assert ready.chosen().name == "net199"


def types_in_force(networks: ConfDirectory) -> list[str]:
    return networks.chosen().plugin_types


def add_drop_in(directory: Path, name: str = "20.conf", kind: str = "tuning") -> Path:
    path = directory / "first" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"type": kind}))
    return path


@pytest.fixture
def more(fakes: FakePlugins) -> None:
    for kind in ("tuning", "sbr"):
        fakes.write(kind)


@pytest.mark.usefixtures("more")
def test_a_new_changed_or_removed_drop_in_takes_effect(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    path = add_drop_in(directory)
    lines.wait_next()
    assert types_in_force(ready) == ["bridge", "tuning"]

    path.write_text(json.dumps({"type": "sbr"}))
    lines.wait_next()
    assert types_in_force(ready) == ["bridge", "sbr"]

    path.unlink()
    lines.wait_next()
    assert types_in_force(ready) == ["bridge"]


@pytest.mark.usefixtures("more")
def test_existing_drop_ins_are_followed_from_the_start(unstarted: ConfDirectory, directory: Path, lines: Lines) -> None:
    make_directory(directory, "10.conflist", "first")
    path = add_drop_in(directory)
    unstarted.start()
    lines.wait_next()
    assert types_in_force(unstarted) == ["bridge", "tuning"]

    path.with_name("new").write_text(json.dumps({"type": "sbr"}))
    path.with_name("new").rename(path)

    lines.wait_next()
    assert types_in_force(unstarted) == ["bridge", "sbr"]


@pytest.mark.usefixtures("more")
def test_the_drop_in_directory_may_vanish_and_be_replaced(ready: ConfDirectory, directory: Path, lines: Lines) -> None:
    add_drop_in(directory)
    lines.wait_next()

    (directory / "first").rename(directory / "old")
    lines.wait_next()
    assert types_in_force(ready) == ["bridge"]

    add_drop_in(directory, kind="sbr")
    lines.wait_next()
    assert types_in_force(ready) == ["bridge", "sbr"]

    add_drop_in(directory, "30.conf")
    lines.wait_next()
    assert types_in_force(ready) == ["bridge", "sbr", "tuning"]


@pytest.mark.usefixtures("more")
def test_swapping_a_link_in_the_path_of_drop_ins_takes_effect(
    unstarted: ConfDirectory, directory: Path, lines: Lines
) -> None:
    for number, kind in (("1", "tuning"), ("2", "sbr")):
        (directory / f"..{number}/first").mkdir(parents=True)
        (directory / f"..{number}/first/20.conf").write_text(json.dumps({"type": kind}))
    (directory / "10.conflist").write_text(text("first"))
    (directory / "..data").symlink_to("..1")
    (directory / "first").symlink_to("..data/first")
    unstarted.start()
    lines.wait_next()
    assert types_in_force(unstarted) == ["bridge", "tuning"]

    (directory / "..next").symlink_to("..2")
    (directory / "..next").rename(directory / "..data")
    lines.wait_next()
    assert types_in_force(unstarted) == ["bridge", "sbr"]

    (directory / "..2/first/20.conf").write_text(json.dumps({"type": "tuning"}))
    lines.wait_next()
    assert types_in_force(unstarted) == ["bridge", "tuning"]


@pytest.mark.usefixtures("more")
def test_drop_ins_alone_make_a_network(networks: ConfDirectory, directory: Path, lines: Lines) -> None:
    directory.mkdir(parents=True)
    (directory / "10.conflist").write_text(json.dumps({"name": "first"}))
    lines.wait_for(
        f"no pod network: no usable cni configuration in {directory}: "
        "10.conflist: no plugins: 'plugins' must be a list of at least one"
    )

    add_drop_in(directory)

    lines.wait_for(f"network first of {directory}/10.conflist")
    assert types_in_force(networks) == ["tuning"]
