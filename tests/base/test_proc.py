"""The parsers handle any name, in generated tables and of real mounts and processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.base.proc import lines, mounts, to_text, unescape, value_of
from shim.hostfs.mount_table import mount_under
from shim.hostfs.volumes import Volumes
from tests.mounts import need_root, unmount_below

SEPARATORS = [b"\n", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\xc2\x85", b"\xe2\x80\xa8"]
"""Line ends for the kernel, for `str.splitlines`, or for a file opened as text."""
ODD = [*SEPARATORS, b" ", b"\t", b"\xa0", b"\\", b"\\040", b"\xff\xfe", b" - overlay overlay upperdir=/etc", b"#"]
FORGED = b"1 1 0:1 / / rw - overlay overlay rw,upperdir=/etc"


def in_mountinfo(name: bytes) -> bytes:
    """Escape a name as the kernel does (seq_escape)."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes((byte,)) for byte in name)


def in_options(name: bytes) -> bytes:
    """Escape a value as the kernel does (seq_show_option)."""
    return b"".join(b"\\%03o" % byte if byte in b",= \t\n\\" else bytes((byte,)) for byte in name)


names = st.lists(st.sampled_from([b"/", b"-", b"=", b",", b":", b"a", FORGED, *ODD]) | st.binary(), min_size=1).map(
    lambda parts: b"".join(parts).replace(b"\0", b"")
)


@given(root=names, point=names, source=names, upper=names, propagation=st.sets(st.sampled_from(["shared", "master"])))
def test_any_name_is_parsed_back_and_adds_no_line(
    root: bytes, point: bytes, source: bytes, upper: bytes, propagation: set[str]
) -> None:
    optional = b"".join(b" %s:7" % name.encode() for name in propagation)
    line = b"36 35 98:0 /%s /%s rw%s - overlay %s rw,upperdir=%s,xino=off\n" % (
        *(in_mountinfo(root), in_mountinfo(point), optional, in_mountinfo(source), in_options(upper)),
    )
    (one, other) = mounts(line + line.replace(b"36", b"37", 1))

    assert (one.id, other.id, one.kind) == (b"36", b"37", b"overlay")
    assert one.root == os.fsdecode(b"/" + root)
    assert one.point == os.fsdecode(b"/" + point)
    assert one.options == {"rw": "", "upperdir": os.fsdecode(upper), "xino": "off"}
    assert one.propagation == {name.encode() for name in propagation}


@given(st.binary())
def test_the_parser_accepts_any_bytes(table: bytes) -> None:
    for mount in mounts(table):
        assert os.fsencode(mount.point) == unescape(mount.fields[4])
        assert os.fsencode(mount.root) == unescape(mount.fields[3])
        assert mount.options


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line), min_size=1))
def test_lines_end_where_the_kernel_ends_them(whole: list[bytes]) -> None:
    assert lines(b"".join(line + b"\n" for line in whole)) == whole


def test_an_incomplete_line_is_skipped() -> None:
    line = b"36 35 98:0 / /mnt rw - ext4 /dev/vda rw"
    assert [mount.point for mount in mounts(line + b"\n\n36 35\n36 35 98:0 / /b rw - ext4 /dev/vdb\n")] == ["/mnt"]
    assert list(mounts(b"")) == []


def test_only_escapes_of_the_kernel_are_replaced() -> None:
    assert unescape(rb"a\040b\134040\011\012") == b"a b\\040\t\n"
    assert unescape(rb"\400\08\x41") == rb"\400\08\x41"
    assert to_text(b"a\xff\xc3\xa4") == "a\udcffä"


def test_a_value_is_read_from_the_line_that_begins_with_its_key() -> None:
    status = b"Name:\tx CapBnd:\\n\r\x0bCapBnd:\t7\nUid:\t1000\t0\nCapBnd:\t00ff\n"
    assert value_of(status, b"CapBnd") == b"00ff"
    assert value_of(status, b"Uid") == b"1000\t0"
    assert value_of(status, b"Name").startswith(b"x")
    assert value_of(status, b"Seccomp") == b""


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_a_real_mount_with_an_odd_name_is_parsed(odd: bytes, tmp_path: Path) -> None:
    need_root()
    point = tmp_path / os.fsdecode(b"a%b%b%b" % (odd, FORGED.replace(b"/", b"|"), odd))
    point.mkdir(parents=True)
    before = {mount.id for mount in mounts(Path("/proc/self/mountinfo").read_bytes())}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", b"source%b" % odd, point], check=True)
    try:
        (added,) = [
            mount
            for mount in mounts(Path("/proc/self/mountinfo").read_bytes())
            if mount.point.startswith(str(tmp_path))
        ]
        assert (added.point, added.kind, added.id in before) == (str(point), b"tmpfs", False)
        assert mount_under(point).point == str(point)
        assert volume_of(point / "in it") == str(point)
        assert volume_of(tmp_path / "beside") != str(point)
    finally:
        unmount_below(tmp_path)


def volume_of(path: Path) -> str:
    volumes = Volumes()
    try:
        return volumes.of_path(str(path))
    finally:
        volumes.close()


NAMED = """
import sys
from pathlib import Path
Path("/proc/self/comm").write_bytes(sys.argv[1].encode("utf-8", "surrogateescape"))
print("named", flush=True)
sys.stdin.read()
"""


@contextmanager
def process_named(name: bytes) -> Iterator[Path]:
    """Run a process of this name, and yield its directory in /proc."""
    command = [sys.executable, "-c", NAMED, os.fsdecode(name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        yield Path(f"/proc/{process.pid}")


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_a_real_process_with_an_odd_name_is_parsed(odd: bytes) -> None:
    with process_named(b"%bUid:\t7%b" % (odd[:4], odd[:4])) as process:
        status = (process / "status").read_bytes()
    assert value_of(status, b"Uid").split() == [b"%d" % os.getuid()] * 4
    assert value_of(status, b"Threads") == b"1"
