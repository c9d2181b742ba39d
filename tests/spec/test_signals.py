import pytest

from shim.api.v1 import api_pb2 as pb
from shim.spec.signals import cri_signal, docker_signal


@pytest.mark.parametrize(
    ("signal", "docker"),
    [
        (pb.SIGNAL_RUNTIME_DEFAULT, ""),
        (pb.SIGNAL_SIGTERM, "SIGTERM"),
        (pb.SIGNAL_SIGCLD, "SIGCLD"),
        (pb.SIGNAL_SIGRTMINPLUS15, "SIGRTMIN+15"),
        (pb.SIGNAL_SIGRTMAXMINUS14, "SIGRTMAX-14"),
        (pb.SIGNAL_SIGRTMAX, "SIGRTMAX"),
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
        ("", pb.SIGNAL_SIGTERM),
        ("sigquit", pb.SIGNAL_SIGQUIT),
        ("KILL", pb.SIGNAL_SIGKILL),
        ("rtmin+3", pb.SIGNAL_SIGRTMINPLUS3),
        ("9", pb.SIGNAL_SIGKILL),
        ("17", pb.SIGNAL_SIGCHLD),
        ("34", pb.SIGNAL_SIGRTMIN),
        ("37", pb.SIGNAL_SIGRTMINPLUS3),
        ("49", pb.SIGNAL_SIGRTMINPLUS15),
        ("50", pb.SIGNAL_SIGRTMAXMINUS14),
        ("63", pb.SIGNAL_SIGRTMAXMINUS1),
        ("64", pb.SIGNAL_SIGRTMAX),
        ("SIGNONE", pb.SIGNAL_RUNTIME_DEFAULT),
        ("0", pb.SIGNAL_RUNTIME_DEFAULT),
        ("32", pb.SIGNAL_RUNTIME_DEFAULT),
        ("65", pb.SIGNAL_RUNTIME_DEFAULT),
        ("-5", pb.SIGNAL_RUNTIME_DEFAULT),
    ],
)
def test_the_signal_is_reported_by_its_cri_name(docker: str, signal: pb.Signal) -> None:
    assert cri_signal(docker) == signal
