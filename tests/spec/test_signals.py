import pytest

from shim.api.v1 import api_pb2 as pb
from shim.spec.signals import cri_signal, docker_signal


@pytest.mark.parametrize(
    ("signal", "docker"),
    [
        (pb.RUNTIME_DEFAULT, ""),
        (pb.SIGTERM, "SIGTERM"),
        (pb.SIGCLD, "SIGCLD"),
        (pb.SIGRTMINPLUS15, "SIGRTMIN+15"),
        (pb.SIGRTMAXMINUS14, "SIGRTMAX-14"),
        (pb.SIGRTMAX, "SIGRTMAX"),
    ],
)
def test_signals_have_dockers_names(signal: int, docker: str) -> None:
    assert docker_signal(signal) == docker


@pytest.mark.parametrize("signal", pb.Signal.values()[1:], ids=pb.Signal.keys()[1:])
def test_signal_names_round_trip(signal: int) -> None:
    assert cri_signal(docker_signal(signal)) == signal


@pytest.mark.parametrize(
    ("docker", "signal"),
    [
        ("", pb.SIGTERM),
        ("sigquit", pb.SIGQUIT),
        ("KILL", pb.SIGKILL),
        ("rtmin+3", pb.SIGRTMINPLUS3),
        ("9", pb.SIGKILL),
        ("17", pb.SIGCHLD),
        ("34", pb.SIGRTMIN),
        ("37", pb.SIGRTMINPLUS3),
        ("49", pb.SIGRTMINPLUS15),
        ("50", pb.SIGRTMAXMINUS14),
        ("63", pb.SIGRTMAXMINUS1),
        ("64", pb.SIGRTMAX),
        ("SIGNONE", pb.RUNTIME_DEFAULT),
        ("0", pb.RUNTIME_DEFAULT),
        ("32", pb.RUNTIME_DEFAULT),
        ("65", pb.RUNTIME_DEFAULT),
        ("-5", pb.RUNTIME_DEFAULT),
    ],
)
def test_the_signal_is_reported_by_its_cri_name(docker: str, signal: pb.Signal) -> None:
    assert cri_signal(docker) == signal
