"""The steps by which a command enters its container, in a process that is forked for the command.

The first process enters the container's namespaces and takes the identity of the command. It stays outside the
container's PID namespace, so the container's processes cannot see it. Then it forks the second process, which starts
inside with no more rights than the command. So no process inside, even with CAP_SYS_PTRACE, can trace a process that is
still the host's root.

Inside a namespace a process must not import or load anything, because the file would come from the container's image.
The second process must not have any descriptor of the host except the command's streams (CVE-2016-9962,
CVE-2024-21626).

If a step fails, no part of the command has run. The report names the step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import struct
import termios

from shim.oci_runtime.kernel import set_namespace
from shim.own_exec import kernel, report

TYPE_CHECKING = False  # typing would be copied with each fork
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.own_exec.plan import Plan

STREAMS = 3
"""The number of standard streams of a process."""
_REPORT = STREAMS
"""The descriptor for reports, once all other descriptors are closed."""
_ALL_DESCRIPTORS = 0x7FFFFFFF

_CLONE_NEWUSER = 0x10000000
_PTMX = os.makedev(5, 2)
_NULL = os.makedev(1, 3)
_GET_PEER = 0x5441
"""ioctl TIOCGPTPEER: open the other end of a terminal without a path."""
_UNLOCK = 0x40045431
"""ioctl TIOCSPTLCK: permit the other end of a terminal to be opened."""

_PROFILE_BYTES = 4096
_UNCONFINED = b"unconfined"

_PASSWD = b"/etc/passwd"
_PASSWD_BYTES = 1 << 20
"""Maximum bytes read of the container's file."""
_PASSWD_FIELDS = 7


class Join:
    """The steps of a command, in order."""

    def __init__(self, plan: Plan, descriptors: Sequence[int], reports: int) -> None:
        """`descriptors` are the streams, the namespaces and the control groups; `reports` is the socket for reports."""
        kinds = len(plan.namespaces)
        self._plan = plan
        self._streams = descriptors[:STREAMS]
        self._namespaces = list(zip(descriptors[STREAMS : STREAMS + kinds], plan.namespaces, strict=True))
        self._control_groups = descriptors[STREAMS + kinds :]
        self._reports = reports
        self._environment = dict(plan.environment)
        self._is_moved = False
        self._terminal = -1

    def go(self) -> None:
        """Run all steps, up to the execution of the command. Do not return."""
        name = b""
        try:
            for step in (
                self._inherit,
                self._request_apparmor_profile,
                self._give_pipes_to_user,
                self._join_control_groups,
                self._enter_namespaces,
                self._open_terminal,
                self._open_null,
                self._place_streams,
                self._join_keyring,
                self._change_directory,
                self._set_home,
                self._filter_as_root,
                self._take_identity,
                self._fork,
                self._execute,
            ):
                name = step.__name__.encode()
                step()
        except OSError as failure:
            report.failure(self._reports, name, failure.errno or 0)
        except ValueError:  # an argument or the name of a variable is invalid, such as with a NUL byte
            report.failure(self._reports, name, errno.EINVAL)
        finally:
            os._exit(1)

    def _inherit(self) -> None:
        """Take the attributes that runc would inherit from containerd-shim, while still the host's root."""
        plan = self._plan
        kernel.end_with_parent()
        kernel.unblock_signals()
        os.setpriority(os.PRIO_PROCESS, 0, plan.niceness)
        kernel.set_io_priority(plan.io_priority)
        os.sched_setaffinity(0, plan.processors)
        _set_limits(plan.limits)
        _set_oom_score_adjustment(plan.oom_score_adjustment)
        os.umask(plan.umask)

    def _request_apparmor_profile(self) -> None:
        """Make AppArmor confine the next executed program. Use the host's /proc (CVE-2019-16884)."""
        profile = self._plan.apparmor
        if not profile:
            return
        attribute = os.open(_apparmor_attribute(), os.O_RDWR | os.O_CLOEXEC)
        os.write(attribute, b"exec " + profile)
        # The attribute reads, for example, `docker-default (enforce)`.
        if os.pread(attribute, _PROFILE_BYTES, 0).rpartition(b" (")[0] != profile and profile != _UNCONFINED:
            raise OSError(errno.EPERM, "")

    def _give_pipes_to_user(self) -> None:
        """Let the command reopen its streams, for example as `/dev/stdout`."""
        for stream in self._streams:
            if stat.S_ISFIFO(os.fstat(stream).st_mode):
                os.fchown(stream, *self._plan.pipe_owner)

    def _join_control_groups(self) -> None:
        for group in self._control_groups:
            os.write(group, b"0")

    def _enter_namespaces(self) -> None:
        for descriptor, kind in self._namespaces:
            set_namespace(descriptor, kind)
        if _CLONE_NEWUSER in self._plan.namespaces:
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)

    def _open_terminal(self) -> None:
        """Open a terminal of the container's devpts, so that the command finds it below /dev/pts."""
        if self._plan.terminal is None:
            return
        main = os.open(b"/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not _is_device(os.fstat(main), _PTMX):
            raise OSError(errno.ENOTTY, "")
        fcntl.ioctl(main, _UNLOCK, struct.pack("i", 0))
        self._terminal = fcntl.ioctl(main, _GET_PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        os.fchown(self._terminal, self._plan.uid, -1)
        width, height = self._plan.terminal
        if width and height:
            fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        report.terminal(self._reports, main)

    def _open_null(self) -> None:
        """Without input, use the container's /dev/null: root inside could change the mode of the host's /dev/null."""
        if not self._plan.namespaces or not _is_device(os.fstat(self._streams[0]), _NULL):
            return
        null = os.open(b"/dev/null", os.O_RDONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not _is_device(os.fstat(null), _NULL):
            raise OSError(errno.ENODEV, "")
        os.set_blocking(null, True)
        self._streams = (null, *self._streams[1:])

    def _place_streams(self) -> None:
        """Move the streams to descriptors 0 to 2, and close all other descriptors except the one for reports."""
        streams = (self._terminal,) * STREAMS if self._plan.terminal is not None else self._streams
        # Duplicate to higher descriptors first: a stream may have a number from 0 to 3 already.
        kept = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _REPORT + 1) for each in (*streams, self._reports)]
        for place, descriptor in enumerate(kept):
            os.dup2(descriptor, place, inheritable=place < STREAMS)
        self._reports = _REPORT
        os.closerange(_REPORT + 1, _ALL_DESCRIPTORS)

    def _join_keyring(self) -> None:
        if self._plan.keyring:
            kernel.join_session_keyring(self._plan.keyring)

    def _change_directory(self) -> None:
        """Change to the working directory as root, like runc: the command's user may have no access to it."""
        try:
            os.chdir(self._plan.directory)
        except PermissionError:
            return
        self._is_moved = True

    def _set_home(self) -> None:
        """Set HOME from the container's /etc/passwd, like runc."""
        if self._environment.get(b"HOME"):
            return
        self._environment[b"HOME"] = _home(self._plan.uid)

    def _filter_as_root(self) -> None:
        """Install the filter while still privileged. With no_new_privileges, `_execute` installs it later."""
        if not self._plan.no_new_privileges:
            self._filter()

    def _filter(self) -> None:
        if self._plan.filter:
            kernel.install_filter(self._plan.filter, flags=self._plan.filter_flags)

    def _take_identity(self) -> None:
        plan = self._plan
        for capability in range(kernel.LAST_CAPABILITY + 1):
            if not plan.bounding >> capability & 1:
                kernel.drop_from_bounding_set(capability)
        kernel.keep_capabilities(True)
        os.setgroups(plan.groups)
        os.setresgid(plan.gid, plan.gid, plan.gid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
        kernel.keep_capabilities(False)
        if not self._is_moved:
            os.chdir(plan.directory)
        os.getcwd()  # fails with ENOENT if the directory is outside the container's root (CVE-2024-21626)
        kernel.set_process_capabilities(
            effective=plan.effective, permitted=plan.permitted, inheritable=plan.inheritable, ambient=plan.ambient
        )
        if plan.no_new_privileges:
            kernel.forbid_new_privileges()
        kernel.hide_memory()  # again: with fs.suid_dumpable=1 the change of identity reverts it

    def _fork(self) -> None:
        if pid := kernel.fork_sibling():
            # The first process reports the pid, because a process inside might stop the second before it can report.
            report.born(self._reports, pid)
            os._exit(0)
        os.setsid()
        if self._plan.terminal is not None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        kernel.end_with_parent()

    def _execute(self) -> None:
        program = self._program()
        if self._plan.no_new_privileges:
            self._filter()
        report.ready(self._reports)
        os.execve(program, self._plan.arguments, self._environment)

    def _program(self) -> bytes:
        """Return the file to execute. Raise FileNotFoundError for unusual names: runc has special rules for them."""
        name = self._plan.arguments[0]
        if b"/" in name:
            return name
        for directory in self._environment.get(b"PATH", b"").split(b":"):
            if not directory.startswith(b"/"):
                break
            candidate = directory + b"/" + name
            try:
                mode = os.stat(candidate).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) and mode & 0o111:
                return candidate
        raise FileNotFoundError(errno.ENOENT, "")


def _apparmor_attribute() -> bytes:
    """Return the path of AppArmor's attribute of this process. attr/exec may belong to another security module."""
    own = b"/proc/self/attr/apparmor/exec"
    return own if os.path.exists(own) else b"/proc/self/attr/exec"


def _set_limits(wanted: dict[int, tuple[int, int]]) -> None:
    try:
        for number, limits in wanted.items():
            resource.setrlimit(number, limits)
    except ValueError:  # setrlimit raises this for EPERM
        raise PermissionError(errno.EPERM, "") from None


def _is_device(found: os.stat_result, number: int) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == number


def _set_oom_score_adjustment(wanted: int | None) -> None:
    adjustment = os.open(b"/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    # Writing the present value may need a capability that this process lacks.
    if wanted is not None and int(os.read(adjustment, 16)) != wanted:
        os.write(adjustment, b"%d" % wanted)


def _home(uid: int) -> bytes:
    """Return a user's home from the container's /etc/passwd; `/` if the file has none."""
    wanted = b"%d" % uid
    try:
        descriptor = os.open(_PASSWD, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"/"
    content = os.read(descriptor, _PASSWD_BYTES)
    os.close(descriptor)
    for line in content.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= _PASSWD_FIELDS and wanted in (fields[0], fields[2]):
            return fields[5]
    return b"/"
