"""The content of CRI logs, read only once, as soon as the status says that the container exited."""

import stat

import grpc
import pytest

from integration.logs.conftest import Logged
from integration.logs.crilog import PIECE, output, read
from integration.pods.kubelet import failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def test_a_line_is_in_the_log_as_soon_as_the_container_has_exited(logged: Logged) -> None:
    container_id, path = logged.run("echo hello; sleep 0.2; echo bye")
    logged.wait_exited(container_id)

    assert [(line.stream, line.tag, line.content) for line in read(path)] == [
        ("stdout", "F", b"hello"),
        ("stdout", "F", b"bye"),
    ]


def test_each_of_many_short_lived_containers_has_its_line(logged: Logged) -> None:
    for number in range(20):
        container_id, path = logged.run(f"echo {number}")
        logged.wait_exited(container_id)
        assert output(read(path)) == f"{number}\n".encode()


def test_the_log_exists_when_start_returns(logged: Logged) -> None:
    container_id, path = logged.run("sleep 600")
    found = path.stat()

    assert stat.S_IMODE(found.st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert logged.served.cri.container_status(container_id).log_path == str(path)


def test_streams_keep_their_order_and_name(logged: Logged) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out-$i; echo err-$i >&2; done"
    container_id, path = logged.run(script)
    logged.wait_exited(container_id)
    lines = read(path)

    assert output(lines, "stdout") == b"".join(b"out-%d\n" % number for number in range(1, 10))
    assert output(lines, "stderr") == b"".join(b"err-%d\n" % number for number in range(1, 10))


def test_a_megabyte_without_newline_is_split_into_partial_records(logged: Logged) -> None:
    container_id, path = logged.run("head -c 1048576 /dev/zero | tr '\\0' x")
    logged.wait_exited(container_id)
    lines = read(path)

    assert output(lines) == b"x" * (1 << 20)
    assert {(len(line.content), line.tag) for line in lines} == {(PIECE, "P")}


def test_the_last_piece_of_a_long_line_is_a_full_record(logged: Logged) -> None:
    container_id, path = logged.run("head -c 40000 /dev/zero | tr '\\0' y; echo; echo next")
    logged.wait_exited(container_id)
    lines = read(path)

    assert [line.tag for line in lines] == ["P", "P", "F", "F"]
    assert output(lines) == b"y" * 40000 + b"\nnext\n"


def test_output_without_a_final_newline_is_in_the_log(logged: Logged) -> None:
    container_id, path = logged.run("printf hello")
    logged.wait_exited(container_id)

    assert [(line.tag, line.content) for line in read(path)] == [("P", b"hello")]


def test_control_characters_are_kept_and_invalid_utf_8_is_replaced(logged: Logged) -> None:
    """Docker's file has a replacement character for each invalid byte."""
    container_id, path = logged.run(r"""printf 'a\000\001\033[0m\r\\"<>&\303\251\342\200\250z\n\377\376b\n'""")
    logged.wait_exited(container_id)

    assert output(read(path)) == b'a\x00\x01\x1b[0m\r\\"<>&\xc3\xa9\xe2\x80\xa8z\n' + b"\xef\xbf\xbd" * 2 + b"b\n"


def test_output_of_a_terminal_is_logged_as_stdout(logged: Logged) -> None:
    container_id, path = logged.run("echo hello; echo error >&2", tty=True)
    logged.wait_exited(container_id)

    assert [(line.stream, line.content) for line in read(path)] == [("stdout", b"hello\r"), ("stdout", b"error\r")]


def test_a_container_without_a_log_path_has_no_log(logged: Logged) -> None:
    container_id = logged.kubelet.started(logged.pod, "echo", "hello")
    logged.wait_exited(container_id)

    assert logged.served.cri.container_status(container_id).log_path == ""
    assert not logged.directory.exists()


def test_docker_logs_works_and_is_bounded(logged: Logged) -> None:
    container_id, _ = logged.run("echo hello")
    logged.wait_exited(container_id)
    api = logged.served.engine.api

    assert api.logs(container_id) == b"hello\n"
    config = api.inspect_container(container_id)["HostConfig"]["LogConfig"]
    assert config["Type"] == "json-file"
    assert (config["Config"]["max-size"], config["Config"]["max-file"]) == ("16m", "2")


def test_stop_returns_when_the_last_output_is_written(logged: Logged) -> None:
    farewell = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; exit 0"
    container_id, path = logged.run(f"trap '{farewell}' TERM; echo up; while :; do sleep 0.1; done")
    # The script prints this once the trap is set.
    wait_until(lambda: path.exists() and output(read(path)) == b"up\n")
    logged.served.cri.stop_container(container_id, timeout=20)

    assert logged.served.cri.container_status(container_id).state == pb.CONTAINER_EXITED
    assert output(read(path)).splitlines()[-1] == b"1999"


def test_the_log_stays_after_the_container_is_removed(logged: Logged) -> None:
    container_id, path = logged.run("seq 5000; sleep 600")
    cri = logged.served.cri
    wait_until(lambda: cri.exec(container_id, "pidof", "sleep").exit_code == 0)  # so all lines were printed
    cri.remove_container(container_id)

    assert output(read(path)) == b"".join(b"%d\n" % number for number in range(1, 5001))


def test_only_a_running_container_can_be_reopened(logged: Logged) -> None:
    container_id, _ = logged.run("true")
    logged.wait_exited(container_id)
    request = pb.ReopenContainerLogRequest(container_id=container_id)

    with pytest.raises(grpc.RpcError) as raised:
        logged.served.cri.runtime.ReopenContainerLog(request)
    assert failure(raised)[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_a_link_in_place_of_the_log_is_not_followed(logged: Logged) -> None:
    victim = logged.directory / "victim"
    logged.directory.mkdir()
    victim.write_text("precious")
    (logged.directory / "link.log").symlink_to(victim)
    container_id = logged.kubelet.started(logged.pod, "echo", "hello", log_path="link.log")

    assert logged.served.cri.container_status(container_id).id == container_id
    assert victim.read_text() == "precious"
    (logged.directory / "link.log").unlink()
