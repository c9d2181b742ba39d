"""A container's process and its stop, seen from inside: command, environment, terminal, signals."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, Pod, failure, unused_name, wait_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

# --- command and directory --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def echo_image(images: Images, served: Served) -> Iterator[str]:
    """An image with an entrypoint, arguments, a working directory, a variable and a health check."""
    reference = "node.test/echo:1"
    config: dict[str, object] = {
        "Entrypoint": ["sh", "-c", 'echo "$0 $* in $PWD with $COLOUR" >/dev/shm/out; sleep 3600', "entry"],
        "Cmd": ["of", "image"],
        "WorkingDir": "/var/www",
        "Env": ["PATH=/bin", "COLOUR=blue"],
        "Healthcheck": {"Test": ["CMD", "false"], "Interval": 1_000_000_000},
    }
    images.load(reference, config)
    wait_image(served.cri, reference)
    yield reference
    served.engine.api.remove_image(reference, force=True)


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({}, "entry of image in /var/www with blue"),
        ({"args": ["mine", "too"]}, "entry mine too in /var/www with blue"),
        (
            {"command": ["sh", "-c", 'echo "mine $* in $PWD with $COLOUR" >/dev/shm/out; sleep 3600', "x"]},
            "mine  in /var/www with blue",
        ),
        (
            {"working_dir": "/made/here", "envs": [pb.KeyValue(key="COLOUR", value=b"red")]},
            "entry of image in /made/here with red",
        ),
        (
            {"envs": [pb.KeyValue(key="COLOUR", value=b"red"), pb.KeyValue(key="COLOUR", value=b"green")]},
            "entry of image in /var/www with green",
        ),
    ],
    ids=["all of the image", "own arguments", "own command", "own directory and variable", "the last value counts"],
)
def test_command_arguments_and_directory_default_to_the_images(
    kubelet: Kubelet, echo_image: str, fields: dict[str, Any], reported: str
) -> None:
    container = kubelet.started(kubelet.pod(), **({"image": echo_image, "command": []} | fields))

    assert wait_until(lambda: kubelet.inside(container, "cat /dev/shm/out 2>/dev/null")) == reported + "\n"


def test_a_health_check_of_the_image_does_not_run(kubelet: Kubelet, pod: Pod, echo_image: str, served: Served) -> None:
    container = kubelet.started(pod, image=echo_image)

    assert "Health" not in served.engine.api.inspect_container(container)["State"]


def test_a_container_without_any_command_is_refused(kubelet: Kubelet, pod: Pod, images: Images, served: Served) -> None:
    reference = "node.test/no-command:1"
    images.load(reference, {"Cmd": None})
    wait_image(served.cri, reference)
    try:
        with pytest.raises(grpc.RpcError) as refusal:
            kubelet.created(pod, image=reference, command=[], args=[])
        code, message = failure(refusal)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert message.startswith("config.command and config.args are empty: ")
        kubelet.created(pod, image=reference, command=[], args=["sleep", "1"])
    finally:
        kubelet.remove_all()
        served.engine.api.remove_image(reference, force=True)


def test_a_working_directory_that_is_a_file_is_refused(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, working_dir="/etc/passwd")

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "working directory" in message
    assert "/etc/passwd is not a directory" in message


# --- environment and terminal -----------------------------------------------------------------------------


def test_environment_values_are_bytes(kubelet: Kubelet, pod: Pod) -> None:
    values = {"PLAIN": "a b", "UTF": "grün ✓", "LINES": "one\ntwo", "EQUALS": "a=b=c", "EMPTY": "", "QUOTES": "\"'$x`"}
    envs = [pb.KeyValue(key=key, value=value.encode()) for key, value in values.items()]

    container = kubelet.started(pod, envs=envs)

    answer = kubelet.cri.exec(container, "cat", "/proc/self/environ")
    seen = dict(entry.split(b"=", 1) for entry in answer.stdout.split(b"\0") if entry)
    assert {key: seen[key.encode()].decode() for key in values} == values


@pytest.mark.parametrize(
    ("pair", "named"),
    [
        (pb.KeyValue(key="RAW", value=b"\xff\xfe"), "config.envs[0].value of 'RAW'"),
        (pb.KeyValue(key="NUL", value=b"a\0b"), "config.envs[0].value of 'NUL'"),
        (pb.KeyValue(key="", value=b"x"), "config.envs[0].key ''"),
        (pb.KeyValue(key="A=B", value=b"x"), "config.envs[0].key 'A=B'"),
    ],
    ids=["not UTF-8", "NUL", "no name", "= in the name"],
)
def test_a_variable_that_cannot_be_set_is_refused(kubelet: Kubelet, pod: Pod, pair: pb.KeyValue, named: str) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, envs=[pair])

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in message


@pytest.mark.parametrize(("tty", "reported"), [(True, "0 xterm\n"), (False, "1 \n")], ids=["tty", "none"])
def test_a_container_has_a_terminal_when_asked_for(kubelet: Kubelet, pod: Pod, tty: bool, reported: str) -> None:
    script = "tty -s; echo $? $TERM >/dev/shm/tty; sleep 3600"
    container = kubelet.started(pod, "sh", "-c", script, tty=tty, stdin=True)

    seen = wait_until(lambda: kubelet.inside(container, "cat /dev/shm/tty 2>/dev/null && rm /dev/shm/tty"))
    assert seen == reported.replace("1 \n", "1\n")


def test_standard_input_stays_open_when_asked_for(kubelet: Kubelet, pod: Pod) -> None:
    reading = kubelet.started(pod, "cat", stdin=True)
    closed = kubelet.started(pod, "cat")

    wait_until(lambda: kubelet.cri.container_status(closed).state == pb.CONTAINER_EXITED)
    assert kubelet.cri.container_status(reading).state == pb.CONTAINER_RUNNING


# --- stop signals -----------------------------------------------------------------------------------------


KILLED = 37
"""Result of `stopped_by` for exit code 137."""


def stopped_by(kubelet: Kubelet, pod: Pod, signals: list[int], **fields: Any) -> int:
    """Stop a container that traps `signals`; return the number of the signal that arrived."""
    flag = f"/dev/shm/{unused_name('trap')}"
    traps = "; ".join(f"trap 'exit {100 + number}' {number}" for number in signals)
    container = kubelet.started(pod, "sh", "-c", f"{traps}; touch {flag}; while :; do sleep 0.05; done", **fields)
    wait_until(lambda: kubelet.cri.exec(container, "test", "-e", flag).exit_code == 0)

    kubelet.cri.stop_container(container, timeout=20)

    return kubelet.cri.container_status(container).exit_code - 100


NUMBERS = {
    pb.SIGNAL_RUNTIME_DEFAULT: 15,
    pb.SIGNAL_SIGUSR1: 10,
    pb.SIGNAL_SIGIOT: 6,
    pb.SIGNAL_SIGPOLL: 29,
    pb.SIGNAL_SIGRTMIN: 34,
    pb.SIGNAL_SIGRTMINPLUS1: 35,
    pb.SIGNAL_SIGRTMAXMINUS14: 50,
    pb.SIGNAL_SIGRTMAX: 64,
}


@pytest.mark.parametrize("signal", NUMBERS, ids=map(pb.Signal.Name, NUMBERS))
def test_stop_sends_the_requested_signal(kubelet: Kubelet, pod: Pod, signal: pb.Signal) -> None:
    assert stopped_by(kubelet, pod, list(NUMBERS.values()), stop_signal=signal) == NUMBERS[signal]


def test_every_signal_of_the_cri_is_taken_and_reported(kubelet: Kubelet, pod: Pod) -> None:
    for signal in pb.Signal.values()[1:]:
        container = kubelet.created(pod, stop_signal=signal)
        assert kubelet.cri.container_status(container).stop_signal == signal


@pytest.mark.parametrize(
    ("text", "reported", "number"),
    [
        ("SIGUSR1", pb.SIGNAL_SIGUSR1, 10),
        ("usr2", pb.SIGNAL_SIGUSR2, 12),
        ("36", pb.SIGNAL_SIGRTMINPLUS2, 36),
        ("RTMAX-14", pb.SIGNAL_SIGRTMAXMINUS14, 50),
        # Docker then has no signal to send and kills the process.
        ("SIGNONE", pb.SIGNAL_RUNTIME_DEFAULT, KILLED),
        ("0", pb.SIGNAL_RUNTIME_DEFAULT, KILLED),
    ],
)
def test_the_stop_signal_of_the_image_is_sent_and_reported(
    kubelet: Kubelet, pod: Pod, images: Images, served: Served, text: str, reported: pb.Signal, number: int
) -> None:
    reference = "node.test/signalled:1"
    images.load(reference, {"StopSignal": text})
    wait_image(served.cri, reference)
    try:
        assert kubelet.cri.container_status(kubelet.created(pod, image=reference)).stop_signal == reported
        assert stopped_by(kubelet, pod, [10, 12, 15, 36, 50], image=reference) == number
    finally:
        kubelet.remove_all()
        served.engine.api.remove_image(reference, force=True)


def test_an_unknown_stop_signal_is_refused(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, stop_signal=999)

    assert failure(refusal) == (grpc.StatusCode.INVALID_ARGUMENT, "config.stop_signal has the unknown value 999")


# --- a container that cannot start ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fields", "cause"),
    [
        (["nope"], {}, 'exec: "nope": executable file not found in $PATH'),
        (["/no/such"], {}, 'exec: "/no/such": stat /no/such: no such file or directory'),
        (["/etc/passwd"], {}, 'exec: "/etc/passwd": permission denied'),
        (["true"], {"envs": [pb.KeyValue(key="PATH", value=b"/none")]}, 'exec: "true": executable file not found'),
        (
            ["true"],
            {"mounts": [pb.Mount(host_path="/etc/passwd", container_path="/etc")]},
            'error mounting "/etc/passwd"',
        ),
    ],
    ids=["not in PATH", "no such file", "no program", "other PATH", "mount"],
)
def test_the_error_of_a_failed_start_names_the_cause(
    kubelet: Kubelet, pod: Pod, command: list[str], fields: dict[str, Any], cause: str
) -> None:
    container = kubelet.created(pod, *command, **fields)
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.start(container)
    message = failure(refusal)[1]
    assert message.startswith(f"start container {container}: {cause}")
    assert "unknown" not in message

    status = kubelet.cri.container_status(container)
    assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, 128, "StartError")
    assert status.message.startswith(cause)
    assert 0 < status.created_at <= status.finished_at


# --- the name of the image --------------------------------------------------------------------------------


def test_an_image_given_by_id_is_reported_by_name(kubelet: Kubelet, pod: Pod, images: Images, served: Served) -> None:
    identity = kubelet.cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=images.busybox))).image.id
    other = "node.test/another-name:2"
    served.engine.api.tag(identity, "node.test/another-name", "2")
    wait_image(served.cri, other)
    try:
        for spelled in (identity, identity.removeprefix("sha256:")):
            asked = pb.ImageSpec(image=spelled, user_specified_image=other, annotations={"a": "b"}, runtime_handler="x")
            container = kubelet.created(pod, image=asked)
            reported = kubelet.cri.container_status(container).image
            assert reported.image == reported.user_specified_image == other
            assert (dict(reported.annotations), reported.runtime_handler) == ({"a": "b"}, "x")
            asked.ClearField("runtime_handler")  # lists leave it out
            assert kubelet.cri.containers(id=container)[0].image == asked
        plain = kubelet.created(pod, image=pb.ImageSpec(image=identity))
        assert kubelet.cri.container_status(plain).image.image == images.busybox
    finally:
        kubelet.remove_all()
        served.engine.api.remove_image(other)
