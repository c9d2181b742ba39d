import pytest

from shim.engine.answers import NetworkSettings
from shim.engine.runc import exec_root, plain_start_error

RUNC = "OCI runtime create failed: runc create failed: "
OLD, NEW = (
    f"failed to create shim task: {RUNC}",
    f"failed to create task for container: failed to create shim task: {RUNC}",
)
PROCESS = "unable to start container process: "


@pytest.mark.parametrize(
    ("reported", "plain"),
    [
        (
            f'{NEW}{PROCESS}exec: "nope": executable file not found in $PATH',
            'exec: "nope": executable file not found in $PATH',
        ),
        (
            f'{OLD}{PROCESS}exec: "nope": executable file not found in $PATH: unknown',
            'exec: "nope": executable file not found in $PATH',
        ),
        (
            f"{OLD}{PROCESS}unable to apply caps: operation not permitted: unknown",
            "unable to apply caps: operation not permitted",
        ),
        (
            f"{OLD}{PROCESS}error during container init: mount: not a directory: unknown: Are you trying to mount",
            "mount: not a directory: Are you trying to mount",
        ),
        (f"{NEW}string SCMP_ARCH_FOO is not a valid arch", "string SCMP_ARCH_FOO is not a valid arch"),
        ("unable to find user x: no matching entries", "unable to find user x: no matching entries"),
        ("cannot start a stopped process: unknown", "cannot start a stopped process: unknown"),
        ("runc create failed: ", "runc create failed: "),
        ("", ""),
    ],
    ids=[
        "new",
        "old",
        "capabilities",
        "advice",
        "profile",
        "docker's own",
        "containerd's own",
        "nothing left",
        "empty",
    ],
)
def test_plain_start_error_is_the_cause(reported: str, plain: str) -> None:
    assert plain_start_error(reported) == plain


@pytest.mark.parametrize(
    ("key", "root"),
    [
        ("/var/run/docker/netns/4f1b2c3d4e5f", "/var/run/docker"),
        ("/run/user/1000/docker/netns/default", "/run/user/1000/docker"),
        ("/srv/netns/exec/netns/4f1b2c3d4e5f", "/srv/netns/exec"),
        ("", ""),
        ("4f1b2c3d4e5f", ""),
    ],
)
def test_exec_root_is_found_from_the_sandbox_key(key: str, root: str) -> None:
    assert exec_root(NetworkSettings(sandbox_key=key)) == root
    assert exec_root(None) == ""
