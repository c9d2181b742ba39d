"""Pauses containers with runc and dumps their processes with criu."""

import errno
import os
import resource
import select
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from shim.criu import order as answers
from shim.criu.archive import ARCHIVE_LIMIT, Budget, Writer
from shim.criu.order import Source
from shim.criu.program import version_in
from shim.oci_runtime.restore import criu_errors, end_of

_CHECK_SECONDS = 30.0
"""Timeout of `criu check`, which takes 0.1 s, of a pause and of a resume."""
_RESUMES = 3
"""Attempts to resume a container. Nothing else would resume it."""
_LOOK_SECONDS = 0.05
"""Interval of searching for processes of a cancelled criu, which may start further processes."""


class Failure(Exception):
    """The order cannot be carried out."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def check_wanted() -> None:
    """Raise Failure if the server has cancelled the order, by closing standard input."""
    if select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
        raise Failure(answers.NOT_POSSIBLE, "given up")


def find_criu(path: str) -> str:
    """Return the path of criu. Raise Failure if it is missing, or if `criu check` fails on this kernel."""
    criu = shutil.which("criu", path=path)
    if criu is None:
        raise Failure(answers.NO_CRIU, f"there is no program criu in {path}")
    checked = subprocess.run(
        [criu, "check"],
        check=False,
        env={"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_CHECK_SECONDS,
    )
    if checked.returncode:
        raise Failure(answers.NO_CRIU, f"{criu} {_version(criu, path)}: criu check: {_last_line(checked.stdout)}")
    return criu


def _version(criu: str, path: str) -> str:
    said = subprocess.run(
        [criu, "--version"],
        check=False,
        env={"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_CHECK_SECONDS,
    )
    return version_in(said.stdout)


def environment_for(path: str, work: Path) -> dict[str, str]:
    """Return the environment for runc, whose PATH begins with a wrapper of criu that ignores SIGXFSZ.

    A write beyond the file size limit then fails with an error, after which criu cleans up, instead of killing criu.
    Raise Failure if criu is missing or does not run on this kernel.
    """
    criu = find_criu(path)
    programs = work / "bin"
    programs.mkdir()
    (programs / "criu").symlink_to(_in_memory(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(criu)} \"$@\"\n"))
    return {"PATH": f"{programs}:{path}", "HOME": "/"}


def _in_memory(script: str) -> str:
    """Return the path of an executable in memory, which exists until this process ends.

    A file would not run from a directory that is mounted noexec.
    """
    made = os.memfd_create("criu")
    try:
        os.write(made, script.encode())
        # Reopened read-only, because the kernel does not execute a file that is open for writing.
        return f"/proc/{os.getpid()}/fd/{os.open(f'/proc/self/fd/{made}', os.O_RDONLY | os.O_CLOEXEC)}"
    finally:
        os.close(made)


class Paused:
    """Pauses a container inside the block, so that its files and its memory are consistent."""

    def __init__(self, source: Source, environment: dict[str, str]) -> None:
        self._command = [source.runc, "--root", source.state_root]
        self._container = source.container
        self._environment = environment

    def __enter__(self) -> None:
        try:
            self._pause()
        except BaseException:
            self.resume()  # a failed or late runc may have frozen the cgroup
            raise

    def __exit__(self, *_: object) -> None:
        self.resume()

    def _pause(self) -> None:
        paused = self._run("pause")
        if paused.returncode:
            raise Failure(answers.NOT_POSSIBLE, f"runc pause: {_last_line(paused.stderr)}")

    def resume(self) -> None:
        """Resume the container if it is paused. Raise Failure after _RESUMES attempts."""
        for attempt in range(_RESUMES):
            with suppress(subprocess.TimeoutExpired):
                resumed = self._run("resume")
                if not resumed.returncode or b"not paused" in resumed.stderr:
                    return
                if attempt == _RESUMES - 1:
                    raise Failure(answers.NOT_POSSIBLE, f"runc resume: {_last_line(resumed.stderr)}")
        raise Failure(answers.NOT_POSSIBLE, "runc resume does not end")

    def _run(self, verb: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self._command, verb, self._container],
            check=False,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_SECONDS,
        )


def dump(source: Source, *, images: Path, logs: Path, environment: dict[str, str]) -> None:
    """Dump a paused container: criu's images to `images`, its log to `logs`. Both directories are created if missing.

    Raise Failure with criu's errors if criu fails.
    """
    check_wanted()
    for directory in (images, logs):
        directory.mkdir(mode=0o700, exist_ok=True)
    command = [source.runc, "--root", source.state_root, "checkpoint", "--leave-running"]
    command += ["--file-locks", "--tcp-established", "--image-path", str(images), "--work-path", str(logs)]
    printed = logs / "runc.log"
    with printed.open("wb") as output:
        runc = subprocess.Popen(
            [*command, source.container],
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
        raise Failure(answers.NOT_POSSIBLE, _reason(logs / "dump.log", printed))
    printed.unlink()


def write_diff(source: Source, path: Path, *, budget: Budget) -> None:
    """Write a paused container's changes to its root file system as a layer. Raise Refused or OSError."""
    with path.open("wb") as file:
        writer = Writer(file, budget=budget, check=check_wanted)
        writer.add_layer(Path(source.upper))
        writer.close()


def check_tree(source: Source) -> None:
    """Check that criu finds all processes of a container in a shared pid namespace. Raise Failure for an orphan.

    criu dumps only descendants of the container's first process. In a shared pid namespace an orphan becomes a child of
    the pause process, so criu would miss it.
    """
    if not source.shared_pids:
        return
    group = _control_groups(source.pid)
    for child in _children(source.shared_pids):
        if child != source.pid and _control_groups(child) == group:
            text = (
                f"its process {child} has lost its parent and is a child of the pause process, since the pod shares "
                "its process namespace: criu would leave it out"
            )
            raise Failure(answers.NOT_POSSIBLE, text)


def _control_groups(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cgroup").read_bytes()
    return b""


def _wait(runc: "subprocess.Popen[bytes]") -> bool:
    """Wait for runc. If the server cancels, make criu fail. Return whether the server has cancelled."""
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
    """Let file writes of all descendants of a process fail. criu then restores the container's processes and ends."""
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


def _reason(log: Path, output: Path) -> str:
    """Return criu's errors, or runc's last line if criu reports none."""
    return criu_errors(str(log)) or f"runc: {_last_line(end_of(str(output)))}"


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def kind_of(error: OSError) -> str:
    """Return the kind of failure of an OSError."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return answers.NO_SPACE if full else answers.NOT_POSSIBLE
