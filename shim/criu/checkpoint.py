"""The server's side of checkpoints: sends orders to the program `shim.criu.worker` and checks its answers."""

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import shim.criu
from shim.base import deadline, proc
from shim.base.spawn import run_bounded
from shim.criu import order as answers
from shim.criu.order import Answer, Order, TrialOrder, answered, encoded
from shim.criu.program import INSTALL, search_path
from shim.dockerd.runc_files import Unfit, bundle_of, is_frozen, read_file, read_state, runc_of, shim_of
from shim.dockerd.starting_tasks import state_file
from shim.domain.errors import (
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    ShimError,
    Unavailable,
    Unsupported,
    reason_of,
)
from shim.own_exec.command import STDOUT
from shim.own_exec.own_exec import Command, OwnExec

GIVE_UP_SECONDS = 20.0
"""How long to wait for the program after a checkpoint is cancelled: criu first finishes the write in progress."""

_TRIAL_SECONDS = 60.0

_WORKER = Path(shim.criu.__file__).with_name("worker.py")
_ANSWER_BYTES = 64 << 10
_USER_NAMESPACE = "user"
_OVERLAY = b"overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A running container, as runc and the kernel describe it."""

    runc: Path
    state_root: Path
    config: Mapping[str, Any]
    """The content of its `config.json`."""
    upper: Path
    """Directory where overlayfs keeps the container's changes."""
    joins_pids: bool
    """Whether it shares the pod's pid namespace."""


def read_task(container_id: str, *, exec_root: Path, pid: int) -> Task:
    """Read the Task of a container whose first process is `pid`.

    Raise FailedPrecondition with the reason if the container cannot be checkpointed.
    """
    what = f"checkpoint container {container_id}"
    try:
        state = read_state(container_id, exec_root=exec_root, pid=pid)
        bundle = bundle_of(state)
        runc = runc_of(bundle, shim=shim_of(pid))
        config = msgspec.json.decode(read_file(bundle / "config.json"))
        namespaces = {each["type"]: each.get("path", "") for each in config["linux"]["namespaces"]}
        mounts = Path(f"/proc/{pid}/mountinfo").read_bytes()
    except Unfit as unfit:
        raise FailedPrecondition(f"{what}: {unfit}") from unfit
    except OSError as error:
        raise FailedPrecondition(f"{what}: read its state or bundle: {reason_of(error)}") from error
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FailedPrecondition(f"{what}: its state or bundle is invalid: {error}") from error
    if is_frozen(state.cgroup_paths):
        raise FailedPrecondition(f"{what}: it is paused")
    if _USER_NAMESPACE in namespaces:
        raise FailedPrecondition(f"{what}: checkpoints of containers in a user namespace are not supported")
    upper = upper_directory(mounts)
    if upper is None:
        raise FailedPrecondition(f"{what}: its root is no overlay file system with a directory for changes")
    return Task(
        runc=runc,
        state_root=state_file(exec_root, container_id).parents[1],
        config=config,
        upper=upper,
        joins_pids=bool(namespaces.get("pid")),
    )


def upper_directory(mountinfo: bytes) -> Path | None:
    """Return the directory where overlayfs keeps changes of the root, from /proc/<pid>/mountinfo; None if unknown."""
    roots = [mount for mount in proc.mounts(mountinfo) if mount.point == "/"]
    if not roots or roots[-1].kind != _OVERLAY:
        return None
    path = Path(roots[-1].options.get("upperdir", ""))
    return path if path.is_absolute() else None


def new_work(parent: Path) -> Path:
    """Return a new path for the files of one order. The directory is not created."""
    return parent / uuid.uuid4().hex


def carry_out(own_exec: OwnExec, order: Order, *, what: str) -> None:
    """Run the program on an order and wait for it. A failed order leaves nothing behind.

    Raise Unsupported without a usable criu, FailedPrecondition with criu's errors if criu fails, AlreadyExists,
    ResourceExhausted, Cancelled or DeadlineExceeded.
    """
    try:
        with own_exec.host_program([sys.executable, "-IS", str(_WORKER)], what=what) as program:
            answer = _answer(program, order, what=what)
    except Unavailable as error:
        raise FailedPrecondition(f"{what}: {error}") from error
    except OSError as error:
        raise ResourceExhausted(f"{what}: {reason_of(error)}") from error
    _check(answer, what=what)


def tried(environ: Mapping[str, str], *, work: Path) -> str:
    """Dump an idle process; return the reason if that fails, else "". Raise ShimError or OSError.

    `work` is a directory for temporary files. The caller must run outside the server's unit, whose restrictions would
    make the dump fail.
    """
    what = "try criu"
    order = TrialOrder(path=search_path(environ), work=str(new_work(work)))
    done = run_bounded(
        Path(sys.executable),
        arguments=["-IS", str(_WORKER)],
        environment={},
        stdin=encoded(order),
        timeout=_TRIAL_SECONDS,
        what=what,
    )
    return _parsed(done.stdout, what=what).text


def _answer(program: Command, order: Order, *, what: str) -> Answer:
    try:
        program.streams.write(encoded(order))
        printed = _printed(program)
    except BaseException:
        program.streams.close_stdin()
        with deadline.shielded(GIVE_UP_SECONDS):
            _printed(program)
        raise
    return _parsed(printed, what=what)


def _parsed(printed: bytes, *, what: str) -> Answer:
    try:
        return answered(printed)
    except (ValueError, TypeError) as error:
        raise ShimError(f"{what}: the checkpoint program has ended without an answer") from error


def _printed(program: Command) -> bytes:
    return program.streams.output(most=_ANSWER_BYTES)[STDOUT]


def _check(answer: Answer, *, what: str) -> None:
    match answer.failure:
        case "":
            return
        case answers.NO_CRIU:
            raise Unsupported(f"{what}: {answer.text}; {INSTALL}")
        case answers.EXISTS:
            raise AlreadyExists(f"{what}: {answer.text}")
        case answers.NO_SPACE:
            raise ResourceExhausted(f"{what}: {answer.text}")
        case _:
            raise FailedPrecondition(f"{what}: {answer.text}")
