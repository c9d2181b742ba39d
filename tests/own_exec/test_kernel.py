"""Numbers of system calls and sizes of structures, against the headers of the kernel."""

import ctypes
import re
import struct
from pathlib import Path

import pytest

from shim.oci_runtime import kernel as mounts
from shim.own_exec import kernel
from shim.spec import read_only

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    # arm64 takes the numbers that are the same for all newer architectures.
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ANYWHERE = {
    "open_tree": mounts._OPEN_TREE,
    "move_mount": mounts._MOVE_MOUNT,
    "openat2": mounts._OPENAT2,
    "mount_setattr": mounts._MOUNT_SETATTR,
}


def numbers(machine: str) -> dict[str, int]:
    """Return the numbers of a header by the names of the calls."""
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is missing: install linux-libc-dev")
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text())}


@pytest.mark.parametrize("machine", HEADERS)
def test_system_calls_have_the_numbers_of_the_kernel(machine: str) -> None:
    known = numbers(machine)
    of_machine = kernel._NUMBERS[machine]
    assert {name: known[name] for name in of_machine} == of_machine
    assert {name: known[name] for name in ANYWHERE} == ANYWHERE


def test_one_call_has_one_number() -> None:
    assert read_only._MOUNT_SETATTR == mounts._MOUNT_SETATTR


def test_all_machines_have_all_calls() -> None:
    assert kernel._NUMBERS.keys() == HEADERS.keys()
    assert len({tuple(sorted(calls)) for calls in kernel._NUMBERS.values()}) == 1


def test_structures_have_the_sizes_of_64_bit_kernels() -> None:
    """`struct sock_fprog`, `__user_cap_header_struct`, `mount_attr` and `open_how`; both processors align alike."""
    assert ctypes.sizeof(kernel._Program) == 16
    assert kernel._Program.instructions.offset == 8
    assert struct.calcsize("=Ii") == 8
    assert struct.calcsize("QQQQ") == 32
    assert struct.calcsize("QQQ") == 24
