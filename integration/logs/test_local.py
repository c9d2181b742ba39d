"""Docker's `local` log driver: the CRI log has exactly the bytes that a container wrote."""

import hashlib

from integration.logs.conftest import Logged, on_drivers
from integration.logs.crilog import PIECE, output, read
from integration.waiting import wait_until

DOCKER_COPY = {"docker_log_max_size": "4m", "docker_log_max_file": 2}
"""Room for the largest output of these tests."""

local = on_drivers("local")


@local
def test_every_byte_value_is_kept(own: Logged) -> None:
    every = "".join(rf"\{number:03o}" for number in range(256))
    container_id, path = own.run(f"printf '{every}'; printf '{every}\\n' >&2")
    own.wait_exited(container_id)
    lines = read(path)

    assert output(lines) == bytes(range(256))
    assert output(lines, "stderr") == bytes(range(256)) + b"\n"
    assert [line.tag for line in lines if line.stream == "stdout"] == ["F", "P"]
    assert sorted(own.served.engine.api.logs(container_id)) == sorted([*range(256), *range(256), 10])


@local
def test_a_megabyte_of_random_bytes_without_newline_is_kept(own: Logged) -> None:
    script = "head -c 2000000 /dev/urandom | tr -d '\\n' | head -c 1048576 > /all; sha256sum /all >&2; cat /all"
    container_id, path = own.run(script)
    own.wait_exited(container_id)
    lines = read(path)

    assert hashlib.sha256(output(lines)).hexdigest().encode() == output(lines, "stderr").split()[0]
    pieces = [(len(line.content), line.tag) for line in lines if line.stream == "stdout"]
    assert pieces == [(PIECE, "P")] * ((1 << 20) // PIECE)


@local
def test_a_character_that_docker_splits_is_kept(own: Logged) -> None:
    container_id, path = own.run(r"head -c 16383 /dev/zero | tr '\0' x; printf '\342\202\254\n'")
    own.wait_exited(container_id)
    lines = read(path)

    assert [(len(line.content), line.tag) for line in lines] == [(PIECE, "P"), (2, "F")]
    assert output(lines).decode() == "x" * 16383 + "€\n"


@local
def test_output_of_a_terminal_is_logged_as_stdout(own: Logged) -> None:
    container_id, path = own.run(r"printf 'a\377\n'; echo error >&2", tty=True)
    own.wait_exited(container_id)

    assert [(line.stream, line.content) for line in read(path)] == [("stdout", b"a\xff\r"), ("stdout", b"error\r")]


@local
def test_each_of_many_short_lived_containers_has_its_line(own: Logged) -> None:
    """Docker creates the directory of its file only when the container starts."""
    for number in range(5):
        container_id, path = own.run(f"echo {number}")
        own.wait_exited(container_id)
        assert output(read(path)) == f"{number}\n".encode()


@local
def test_docker_logs_works_and_is_bounded(own: Logged) -> None:
    container_id, _ = own.run(r"echo hello; printf '\377\n'")
    own.wait_exited(container_id)
    api = own.served.engine.api

    assert api.logs(container_id) == b"hello\n\xff\n"
    config = api.inspect_container(container_id)["HostConfig"]["LogConfig"]
    assert config["Type"] == "local"
    assert (config["Config"]["max-size"], config["Config"]["compress"]) == ("4m", "false")


@local
def test_the_log_stays_after_the_container_is_removed(own: Logged) -> None:
    container_id, path = own.run("seq 1000; sleep 600")
    wait_until(lambda: own.docker_has(container_id, "1000"))
    own.served.cri.remove_container(container_id)

    assert output(read(path)) == b"".join(b"%d\n" % number for number in range(1, 1001))
