import pytest

from integration.pods.kubelet import Pod
from integration.streaming.conftest import Kubectl

pytestmark = pytest.mark.usefixtures("pod")


@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_exit_code_is_the_commands(kubectl: Kubectl, code: int) -> None:
    done = kubectl.run("exec", "box", "--", "sh", "-c", f"exit {code}")

    assert done.returncode == code, done.stderr


def test_output_and_errors_are_apart(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "box", "--", "sh", "-c", "echo to out; echo to err >&2")

    assert (done.stdout, done.stderr.splitlines()[-1]) == (b"to out\n", b"to err")


def test_input_ends_when_the_clients_does(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "-i", "box", "--", "sh", "-c", "cat; echo end", stdin=b"some input\n")

    assert done.stdout == b"some input\nend\n"
