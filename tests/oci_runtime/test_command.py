"""The command line: runc's arguments, the calling shell script, and errors in runc's form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shim.oci_runtime
from shim import share
from shim.oci_runtime.command import Invocation, parse
from shim.oci_runtime.order import Order, UserNamespace, encode

PROGRAM = Path(shim.oci_runtime.__file__).with_name("__main__.py")


@pytest.mark.parametrize(
    "words",
    [
        ["--root", "/r", "--log", "/l", "--log-format", "json", "create", "--bundle", "/b", "--pid-file", "/p", "id"],
        ["--root=/r", "--log=/l", "--systemd-cgroup", "create", "--bundle=/b", "--console-socket", "/s", "id"],
        ["--root", "/r", "--log", "/l", "create", "-b", "/b", "--no-pivot", "id"],
    ],
)
def test_runc_arguments_are_parsed(words: list[str]) -> None:
    asked = parse(words)
    assert words[asked.verb_at] == "create"
    assert asked == Invocation(
        "create", verb_at=asked.verb_at, container="id", bundle="/b", state_root="/r", log="/l", process=""
    )


def test_exec_arguments_are_parsed() -> None:
    words = ["--root", "/r", "exec", "--process", "/p", "--console-socket", "/s", "--detach", "--pid-file", "/f", "id"]
    found = parse(words)
    assert (found.verb, found.container, found.process) == ("exec", "id", "/p")


@pytest.fixture
def runtime(tmp_path: Path) -> list[str]:
    """The script, with a runc that prints its arguments."""
    script, runc = tmp_path / "oci-runtime", tmp_path / "runc"
    script.write_text(share.oci_runtime(python=sys.executable, program=str(PROGRAM)))
    runc.write_text('#!/bin/sh\necho runc "$@"\n')
    for path in (script, runc):
        path.chmod(0o755)
    return [str(script), "--orders", str(tmp_path / "orders")]


def run(runtime: list[str], *words: str) -> "subprocess.CompletedProcess[bytes]":
    path = f"{Path(runtime[0]).parent}:/usr/bin:/bin"
    return subprocess.run([*runtime, *words], capture_output=True, env={"PATH": path}, check=False, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        ["--root", "/create", "state", "id"],
        ["--log", "create", "--log-format", "json", "kill", "--all", "create", "9"],
        ["--version"],
        ["--root", "/r", "delete", "a b"],
        ["features"],
    ],
)
def test_other_verbs_go_straight_to_runc(runtime: list[str], words: list[str]) -> None:
    done = run(runtime, *words)

    assert (done.returncode, done.stdout.decode()) == (0, " ".join(["runc", *words]) + "\n")


def test_create_without_an_order_fails_in_the_log_of_runc(runtime: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log.json"

    done = run(runtime, "--root", "/r", "--log", str(log), "--log-format", "json", "create", "--bundle", "/b", "id")

    assert done.returncode == 1
    assert done.stdout == b""
    line = json.loads(log.read_bytes())
    assert line["level"] == "error"
    assert f"container id has no order {tmp_path}/orders/id" in line["msg"]


def test_exec_without_an_order_goes_to_runc(runtime: list[str]) -> None:
    done = run(runtime, "exec", "--process", "/p", "id")

    assert done.returncode == 0
    assert (done.stdout, done.stderr) == (b"runc exec --process /p id\n", b"")


def test_create_without_python_does_not_reach_runc(runtime: list[str], tmp_path: Path) -> None:
    Path(runtime[0]).write_text(share.oci_runtime(python=str(tmp_path / "missing"), program=str(PROGRAM)))

    done = run(runtime, "--root", "/r", "create", "--bundle", "/b", "id")

    assert done.returncode != 0
    assert done.stdout == b""
    assert b"missing" in done.stderr


def test_script_without_the_directory_argument_reports_it(runtime: list[str]) -> None:
    done = run(runtime[:1], "create", "id")

    assert done.returncode == 1
    assert b"the first argument must be --orders" in done.stderr


def test_program_needs_nothing_but_the_standard_library() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parents[2])!r}); before = set(sys.modules); "
        "import shim.oci_runtime.command; "
        "print(*{n.partition('.')[0] for n in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout.split() == [b"shim"]


def put(tmp_path: Path, order: Order) -> None:
    orders = tmp_path / "orders"
    orders.mkdir(mode=0o700)
    (orders / "id").write_bytes(encode(order))
    (orders / "id").chmod(0o600)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an order must belong to root")


@needs_root
def test_an_adjusted_container_is_created_with_its_changes(runtime: list[str], tmp_path: Path) -> None:
    put(tmp_path, Order("id", adjustment={"args": ["run"]}))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": {"args": ["sh"]}, "root": {"path": "r"}}))

    done = run(runtime, "create", "--bundle", str(tmp_path), "id")

    assert done.stdout.decode() == f"runc create --bundle {tmp_path} id\n"
    assert json.loads(config.read_bytes()) == {"process": {"args": ["run"]}, "root": {"path": "r"}}


@needs_root
def test_create_loads_no_module_that_takes_long(tmp_path: Path) -> None:
    put(tmp_path, Order("id", adjustment={"args": ["run"]}))
    (tmp_path / "config.json").write_text(json.dumps({"process": {"args": ["sh"]}, "root": {"path": "r"}}))
    words = [str(tmp_path / "orders"), "/bin/true", "create", "--bundle", str(tmp_path), "id"]

    done = subprocess.run(
        [sys.executable, "-IS", "-X", "importtime", PROGRAM, *words], capture_output=True, check=True, timeout=60
    )

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert {"shim.oci_runtime.create", "shim.oci_runtime.adjust"} <= loaded
    assert not loaded & {
        *("collections", "contextlib", "dataclasses", "enum", "functools", "json", "pathlib", "re", "subprocess"),
        *("tempfile", "typing", "shim.oci_runtime.self_test"),
    }


@needs_root
def test_an_exec_gets_the_changes_of_its_container(runtime: list[str], tmp_path: Path) -> None:
    put(tmp_path, Order("id", process={"env": {"A": [None, "1"]}}))
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "env": ["B=2"]}))

    done = run(runtime, "exec", "--process", str(process), "--detach", "id")

    assert done.stdout.decode() == f"runc exec --process {process} --detach id\n"
    assert json.loads(process.read_bytes())["env"] == ["B=2", "A=1"]


@needs_root
@pytest.mark.parametrize("verb", ["create", "exec"])
def test_empty_order_starts_no_python(runtime: list[str], tmp_path: Path, verb: str) -> None:
    put(tmp_path, Order("id"))
    Path(runtime[0]).write_text(share.oci_runtime(python=str(tmp_path / "missing"), program=str(PROGRAM)))

    done = run(runtime, verb, "id")

    assert (done.returncode, done.stdout.decode()) == (0, f"runc {verb} id\n")


@needs_root
@pytest.mark.parametrize("header", [b"1 5 5 0 0", b"2 0 0 0 0"], ids=["damaged", "newer"])
def test_damaged_empty_order_does_not_reach_runc(runtime: list[str], tmp_path: Path, header: bytes) -> None:
    put(tmp_path, Order("id", UserNamespace(uid=5, uids=1, gid=5, gids=1, pause="")))
    order = tmp_path / "orders/id"
    order.write_bytes(order.read_bytes().replace(b"1 5 5 1 0", header))

    done = run(runtime, "create", "id")

    assert (done.returncode, done.stdout) == (1, b"")
    assert str(order).encode() in done.stderr


@needs_root
@pytest.mark.parametrize("config", [b'{"root": ', b'{"root": {"path": "/r"}, "mounts": null}', b"[]"])
def test_fault_of_the_program_is_reported_in_the_log_of_runc(runtime: list[str], tmp_path: Path, config: bytes) -> None:
    log = tmp_path / "log.json"
    users = UserNamespace(uid=1 << 16, uids=1 << 16, gid=1 << 16, gids=1 << 16, pause="")
    put(tmp_path, Order("id", users, "/var/lib/docker"))
    (tmp_path / "config.json").write_bytes(config)

    done = run(runtime, "--log", str(log), "create", "--bundle", str(tmp_path), "id")

    assert done.returncode == 1
    assert done.stdout == b""
    assert "pydockershim's OCI runtime: " in json.loads(log.read_bytes())["msg"]
    assert (tmp_path / "config.json").read_bytes() == config
