import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.keys import bytes_from_limit, check_unified, huge_page_limits
from shim.domain.errors import InvalidArgument

GOOD = {
    "memory.oom.group": "1",
    "memory.swap.max": "0",
    "hugetlb.2MB.max": "0",
    "io.max": "8:0 rbps=1048576\n8:16 wbps=max",
    "cgroup.max.depth": "3",
    "cpuset.cpus": "",
    "pids.max": "max",
}


def test_limit_files_of_controllers_are_accepted() -> None:
    check_unified(GOOD, field="linux.unified")
    check_unified({f"memory.x{number}": "1" for number in range(128)}, field="linux.unified")


@pytest.mark.parametrize(
    "key",
    [
        "../x",
        "a/b",
        "",
        "memory",
        "memory.",
        ".max",
        "memory..max",
        "/memory.max",
        "Memory.max",
        "a.b\n",
        "a.\0",
        "a.é",
    ],
)
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=r"linux\.unified: .* is not a cgroup file"):
        check_unified({key: "1"}, field="linux.unified")


@pytest.mark.parametrize(
    "key",
    [
        "cgroup.procs",
        "cgroup.kill",
        "cgroup.freeze",
        "cgroup.subtree_control",
        "cgroup.pressure",
        "memory.reclaim",
        "cpuset.cpus.partition",
        "cpu.pressure",
        "memory.pressure",
    ],
)
def test_files_that_are_no_limits_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"linux\.unified: '{key}' is not a limit"):
        check_unified({key: "1"}, field="linux.unified")


@pytest.mark.parametrize("value", ["1\0", "x" * 4096], ids=["NUL", "more than a page"])
def test_values_too_long_for_one_write_are_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"linux\.unified\['memory\.high'\] holds"):
        check_unified({"memory.high": value}, field="linux.unified")


def test_too_many_keys_are_refused() -> None:
    keys = {f"memory.x{number}": "1" for number in range(128)}
    check_unified(keys, field="linux.unified")
    with pytest.raises(InvalidArgument, match=r"linux\.unified has 129 keys, at most 128"):
        check_unified({**keys, "memory.high": "1"}, field="linux.unified")


@pytest.mark.parametrize("value", ["0", "00", "-1", "", "ten", "1.5", "1" * 30, "9" * 19, "4194305", "max\n"])
def test_an_impossible_pids_max_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"linux\.unified\['pids\.max'\] .* is neither"):
        check_unified({"pids.max": value}, field="linux.unified")


def test_the_highest_pids_max_is_accepted() -> None:
    check_unified({"pids.max": "4194304"}, field="linux.unified")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("max", None),
        ("4096", 4096),
        (" 16M\n", 16 << 20),
        ("1g", 1 << 30),
        ("0x1000K", 4 << 20),
        ("010", 8),
        ("0", 0),
        ("", 0),
        (str(1 << 64), 0),
        ("08", None),
        ("-1", None),
        ("1 M", None),
        ("all", None),
    ],
)
def test_bytes_are_parsed_as_the_kernel_does(text: str, size: int | None) -> None:
    assert bytes_from_limit(text) == size


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("2MB", "2MB"),
        ("2Mi", "2MB"),
        ("2MiB", "2MB"),
        ("2M", "2MB"),
        ("2048KB", "2MB"),
        ("1GB", "1GB"),
        ("1024Mi", "1GB"),
        ("64KB", "64KB"),
    ],
)
def test_a_page_size_gets_the_kernels_name(spelled: str, name: str) -> None:
    assert huge_page_limits([pb.HugepageLimit(page_size=spelled, limit=5)], field="f") == {name: 5}


@pytest.mark.parametrize("size", ["", "2", "MB", "0MB", "3MB", "-2MB", "2mb", "2TB", "../x", "2MB/", "2MB\n", "9" * 40])
def test_an_invalid_page_size_is_refused(size: str) -> None:
    with pytest.raises(InvalidArgument, match=r"f\[1\]\.page_size .* is not a size such as"):
        huge_page_limits([pb.HugepageLimit(page_size="2MB"), pb.HugepageLimit(page_size=size)], field="f")


def test_two_limits_of_one_page_size_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"f\[1\]\.page_size '2Mi' is limited twice"):
        huge_page_limits([pb.HugepageLimit(page_size="2MB"), pb.HugepageLimit(page_size="2Mi")], field="f")
