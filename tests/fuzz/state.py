"""State files on a damaged disk."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import read_regular
from shim.checkpoint import limits, store
from shim.checkpoint.envelope import Untrusted, seal
from shim.checkpoint.pod_cidr import PodCidr
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError
from shim.spec.seccomp import MAX_PROFILE, seccomp_options
from tests.checkpoint.samples import BEFORE_ADD, CONNECTED, ID
from tests.fuzz.target import NESTED, Run, Target, encoded, pure, shape

CHECKPOINT = json.loads(msgspec.json.encode(CONNECTED))
LIMITS = {"container_id": ID, "resources": {"memory_limit_in_bytes": "4096", "unified": {"memory.high": "1"}}}
PROFILE = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
    "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}
    ],
}


def _checkpoint(data: bytes) -> None:
    """Read the file unchanged and with a valid checksum; every state that was read can be written again."""
    for content in (data, seal(data) if _is_json(data) else b""):
        try:
            found = store.decode(content, sandbox_id=ID)
        except Untrusted:
            continue
        assert store.decode(store.encode(found), sandbox_id=ID) == found


def _limits(data: bytes) -> None:
    for content in (data, seal(data) if _is_json(data) else b""):
        try:
            found = limits.decode(content, container_id=ID)
        except Untrusted:
            continue
        limits.encode(ID, found)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


@contextmanager
def _directories() -> Iterator[Run]:
    """Load whole directories: no file keeps a server from starting."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        for name in ("sandboxes", "limits"):
            (top / name).mkdir(mode=0o700)

        def run(data: bytes) -> None:
            for name in ("sandboxes", "limits"):
                (top / name / f"{ID}.json").write_bytes(data)
            (top / "pod-cidr").write_bytes(data)
            store.CheckpointStore(top / "sandboxes").get(ID)
            limits.LimitStore(top / "limits").get(ID)
            assert PodCidr(top / "pod-cidr", default="10.0.0.0/24").ranges
            for aside in (top / "sandboxes" / "corrupt").glob("*"):
                aside.unlink()

        yield run


@contextmanager
def _profiles() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile.json"
        profile = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=str(path))

        def run(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(OSError):  # too large
                check(read_regular(path, most=MAX_PROFILE))

        def check(data: bytes) -> None:
            (option,) = seccomp_options(
                profile, deprecated="", daemon_profile="default", localhost_profile=data, field="seccomp"
            )
            json.loads(option.removeprefix("seccomp="))

        yield run


WORDS = (b'"version":1', b'"checksum":"', b'"data":', b"null", b'"network":', b'"result":{', b'"', b"1e400", b"\\ud800")
TARGETS = (
    Target(
        name="state-checkpoint",
        corpus=[store.encode(CONNECTED), store.encode(BEFORE_ADD), json.dumps(CHECKPOINT).encode()],
        words=WORDS,
        declared=(ShimError,),
        open=pure(_checkpoint),
        strategy=encoded(shape({**CHECKPOINT, "sandbox_id": ID})),
        enormous=NESTED,
    ),
    Target(
        name="state-limits",
        corpus=[seal(json.dumps(LIMITS).encode()), json.dumps(LIMITS).encode()],
        words=(*WORDS, b'"unified":{', b'"hugepage_limits":['),
        declared=(ShimError,),
        open=pure(_limits),
        strategy=encoded(shape(LIMITS)),
        enormous=NESTED,
    ),
    Target(
        name="state-directories",
        corpus=[store.encode(CONNECTED), seal(json.dumps(LIMITS).encode()), b"10.1.0.0/24,fd00::/64"],
        words=(*WORDS, b"10.1.0.0/24", b",", b"/"),
        declared=(),
        open=_directories,
        seconds=20.0,
        enormous=(*NESTED, lambda: bytes(100 << 20)),
    ),
    Target(
        name="state-seccomp",
        corpus=[json.dumps(PROFILE).encode()],
        words=(b'"SCMP_ACT_ALLOW"', b'"includes":{"minKernel":"', b'"names":[', b'"args":['),
        declared=(InvalidArgument, FailedPrecondition),
        open=_profiles,
        strategy=encoded(shape(PROFILE)),
        enormous=(*NESTED, lambda: bytes(100 << 20)),
    ),
)
