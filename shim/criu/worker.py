"""A program that makes one checkpoint: `python worker.py`. The order comes on standard input, the answer goes out.

It works in a process that no kill of its parent, its group or the server ends: criu must not be killed while it holds a
container, whose processes would be left with criu's code in them, frozen, and without their network. So the end of
standard input, which comes with the end of the server too, is the sign to give up: criu then fails by its own means,
the container goes on, and all files are removed.
"""

import errno
import os
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# Python is isolated from all packages (-IS). The program needs the package `shim` alone, which holds this file.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shim.base.proc import lines
from shim.criu import order as answers
from shim.criu.archive import ARCHIVE_LIMIT, LOG_LIMIT, Budget, Refused, TooLarge, Writer
from shim.criu.order import Answer, Order, decoded

_CHECK_SECONDS = 30.0
"""For `criu check`, which takes 0.1 s, and for a pause or resume."""
_LOOK_SECONDS = 0.05
"""Between two looks for processes of a criu that is to fail: it may just start another one."""
_TEXT_LENGTH = 2000
_LOG_BYTES = 64 << 10
"""Read of the end of criu's log."""
_ERRORS_SHOWN = 3
_IMAGES = "images"
_DIFF = "rootfs-diff.tar"
_SCRIPT_MODE = 0o700


class Failure(Exception):
    """The checkpoint cannot be made."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main() -> int:
    """Read the order, make the checkpoint and print the answer."""
    order = decoded(_line())
    worker = os.fork()
    if worker:
        _, status = os.waitpid(worker, 0)
        if os.WIFSIGNALED(status):
            _undo(order)
        return os.waitstatus_to_exitcode(status)
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    answer = _answer(order)
    with suppress(OSError):  # nobody reads it any more
        os.write(sys.stdout.fileno(), answer.encoded())
    return 0


def _undo(order: Order) -> None:
    """Have the container go on after the process that had it paused was killed, for example for lack of memory."""
    _Paused(order, {"PATH": order.path, "HOME": "/"}).resume()
    shutil.rmtree(order.work, ignore_errors=True)


def _line() -> bytes:
    """Read one line and nothing after it."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            raise SystemExit("there is no order")
        line += piece
    return line


def _answer(order: Order) -> Answer:
    try:
        _checkpoint(order)
    except Failure as failure:
        return Answer(failure.kind, str(failure)[:_TEXT_LENGTH])
    except Refused as refused:
        kind = answers.NO_SPACE if isinstance(refused, TooLarge) else answers.NOT_POSSIBLE
        return Answer(kind, str(refused)[:_TEXT_LENGTH])
    except subprocess.TimeoutExpired as late:
        return Answer(answers.NOT_POSSIBLE, f"{late.cmd[0]} does not end")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return Answer(answers.NO_SPACE if full else answers.NOT_POSSIBLE, str(error)[:_TEXT_LENGTH])
    return Answer()


def _checkpoint(order: Order) -> None:
    work, location = Path(order.work), Path(order.location)
    if os.path.lexists(location):
        raise Failure(answers.EXISTS, f"{location} is there already")
    archive = _unnamed_file(location.parent)
    try:
        work.mkdir(mode=0o700, parents=True)
        environment = _environment(order, work)
        budget = Budget()
        with _Paused(order, environment):
            _dump(order, work, environment)
            _write_diff(order, work)
        with os.fdopen(archive, "wb", closefd=False) as file:
            _write_archive(order, work, Writer(file, budget=budget, check=_check))
        os.fsync(archive)
        _name(archive, location)
    finally:
        os.close(archive)
        shutil.rmtree(work, ignore_errors=True)


def _check() -> None:
    """Raise Failure once the server has given up."""
    if select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
        raise Failure(answers.NOT_POSSIBLE, "given up")


def _unnamed_file(directory: Path) -> int:
    """Return a descriptor of a file without a name, of which nothing is left until it gets one."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            text = f"the file system of {directory} has no files without names (O_TMPFILE)"
            raise Failure(answers.NOT_POSSIBLE, text) from error
        raise


def _name(archive: int, location: Path) -> None:
    """Give the complete archive its name, unless the server has given up."""
    _check()
    try:
        # A directory has to be named for the link to be followed; the path is absolute, so any will do.
        os.link(f"/proc/self/fd/{archive}", location, src_dir_fd=archive, follow_symlinks=True)
    except FileExistsError as error:
        raise Failure(answers.EXISTS, f"{location} is there already") from error
    try:
        _check()
    except Failure:
        location.unlink()
        raise


def _environment(order: Order, work: Path) -> dict[str, str]:
    """Return the environment for runc, with a criu that answers a limit of its files by an error, not by its death.

    Raise Failure where criu is not there, or does not run on this kernel.
    """
    criu = shutil.which("criu", path=order.path)
    if criu is None:
        raise Failure(answers.NO_CRIU, f"there is no program criu in {order.path}")
    checked = subprocess.run(
        [criu, "check"],
        check=False,
        env={"PATH": order.path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_CHECK_SECONDS,
    )
    if checked.returncode:
        raise Failure(answers.NO_CRIU, f"{criu} check: {_last_line(checked.stdout)}")
    programs = work / "bin"
    programs.mkdir()
    script = programs / "criu"
    script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(criu)} \"$@\"\n")
    script.chmod(_SCRIPT_MODE)
    return {"PATH": f"{programs}:{order.path}", "HOME": "/"}


class _Paused:
    """Has the container paused in the block, so that files and memory are of one moment."""

    def __init__(self, order: Order, environment: dict[str, str]) -> None:
        self._command = [order.runc, "--root", order.state_root]
        self._container = order.container
        self._environment = environment

    def __enter__(self) -> None:
        paused = self._run("pause")
        if paused.returncode:
            self._run("resume")  # it may be half-way
            raise Failure(answers.NOT_POSSIBLE, f"runc pause: {_last_line(paused.stderr)}")

    def __exit__(self, *_: object) -> None:
        self.resume()

    def resume(self) -> None:
        """Resume the container; one that is not paused is fine. Raise Failure."""
        resumed = self._run("resume")
        if resumed.returncode and b"not paused" not in resumed.stderr:
            raise Failure(answers.NOT_POSSIBLE, f"runc resume: {_last_line(resumed.stderr)}")

    def _run(self, verb: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self._command, verb, self._container],
            check=False,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_SECONDS,
        )


def _dump(order: Order, work: Path, environment: dict[str, str]) -> None:
    """Have runc write criu's images. Raise Failure with criu's words where it cannot."""
    _check()
    images, logs = work / _IMAGES, work / "logs"
    images.mkdir(mode=0o700)
    logs.mkdir(mode=0o700)
    command = [order.runc, "--root", order.state_root, "checkpoint", "--leave-running"]
    command += ["--file-locks", "--tcp-established", "--image-path", str(images), "--work-path", str(logs)]
    with (work / "runc.log").open("wb") as output:
        runc = subprocess.Popen(
            [*command, order.container],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        resource.prlimit(runc.pid, resource.RLIMIT_FSIZE, (ARCHIVE_LIMIT, ARCHIVE_LIMIT))
        given_up = _wait(runc)
    if given_up:
        raise Failure(answers.NOT_POSSIBLE, "given up")
    if runc.returncode:
        raise Failure(answers.NOT_POSSIBLE, _reason(logs / "dump.log", work / "runc.log"))


def _wait(runc: "subprocess.Popen[bytes]") -> bool:
    """Wait for the end of runc. Return whether criu was made to fail, since the server has given up."""
    process = os.pidfd_open(runc.pid)
    try:
        ready = select.select([process, sys.stdin], [], [])[0]
        if process in ready:
            return False
        while not select.select([process], [], [], _LOOK_SECONDS)[0]:
            _have_writes_fail(runc.pid)
        return True
    finally:
        runc.wait()
        os.close(process)


def _have_writes_fail(pid: int) -> None:
    """Let no descendant of a process write to a file any more: criu ends then, and puts right what it has changed."""
    for child in _children(pid):
        with suppress(ProcessLookupError):
            resource.prlimit(child, resource.RLIMIT_FSIZE, (0, 0))
        _have_writes_fail(child)


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [
            int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_bytes().split()
        ]
    return []


def _write_diff(order: Order, work: Path) -> None:
    with (work / _DIFF).open("wb") as file:
        writer = Writer(file, budget=Budget(), check=_check)
        writer.add_layer(Path(order.upper))
        writer.close()


def _write_archive(order: Order, work: Path, writer: Writer) -> None:
    for name, content in sorted(order.documents.items()):
        writer.add_content(name, content.encode())
    writer.add_directory("checkpoint", work / _IMAGES)
    writer.add_file(_DIFF, work / _DIFF)
    if order.log:
        with suppress(FileNotFoundError):  # it is being rotated
            writer.add_end("container.log", Path(order.log), limit=LOG_LIMIT)
    for name in ("dump.log", "stats-dump"):
        writer.add_file(name, work / "logs" / name)
    writer.close()


def _reason(log: Path, output: Path) -> str:
    """Return what criu says of its failure; else what runc says."""
    errors = [line.partition(b"Error ")[2] for line in lines(_end_of(log)) if b"Error " in line]
    if errors:
        return "criu: " + "; ".join(each.decode(errors="replace") for each in errors[:_ERRORS_SHOWN])
    return f"runc: {_last_line(_end_of(output))}"


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
