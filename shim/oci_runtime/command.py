"""The command line of the OCI runtime, and its error reports, which go to the file `--log` as runc's do.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

from shim.oci_runtime import json_text, order
from shim.oci_runtime.create import prepare, read_json, replace_json
from shim.oci_runtime.order import OrderError

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

SELF_TEST = "self-test"
"""The verb that tests whether user namespaces work. Its arguments are the
image store and further directories (`self_test.run`)."""

_WITH_VALUE = frozenset({"--root", "--log", "--log-format", "--criu", "--rootless", "--bundle", "-b", "--pid-file",
                         "--console-socket", "--preserve-fds", "--process", "-p"})  # fmt: skip
"""Options of `runc`, `runc create` and `runc exec`, as containerd passes them, whose value is the next word."""


class Invocation(SimpleNamespace):
    """The relevant arguments of `runc ... create ...` and `runc ... exec ...`."""

    def __init__(
        self, verb: str, *, verb_at: int, container: str, bundle: str, state_root: str, log: str, process: str
    ) -> None:
        self.verb = verb
        self.verb_at = verb_at
        """Its index in the command line."""
        self.container = container
        self.bundle = bundle
        self.state_root = state_root
        self.log = log
        self.process = process
        """File with the process that exec starts."""


def parse(words: Sequence[str]) -> Invocation:
    """Parse the words after the program's name."""
    values: dict[str, str] = {}
    plain: list[str] = []
    verb_at = -1
    rest = iter(enumerate(words))
    for place, word in rest:
        name, separator, value = word.partition("=")
        if name in _WITH_VALUE:
            values[name] = value if separator else next(rest, (0, ""))[1]
        elif not word.startswith("-"):
            verb_at = verb_at if plain else place
            plain.append(word)
    return Invocation(
        verb=plain[0] if plain else "",
        verb_at=verb_at,
        container=plain[-1] if len(plain) > 1 else "",
        bundle=values.get("--bundle") or values.get("-b") or os.getcwd(),
        state_root=values.get("--root", "/run/runc"),
        log=values.get("--log", ""),
        process=values.get("--process") or values.get("-p", ""),
    )


def main(arguments: Sequence[str]) -> None:
    """Prepare a container or an exec as ordered, then execute runc. Exit with 1 if the preparation fails."""
    if arguments[0] == SELF_TEST:
        _test(*arguments[1:])
        return
    directory, runtime, *words = arguments
    asked = parse(words)
    sys.excepthook = _reporter_of_faults(asked.log)
    try:
        ordered = order.read(directory, asked.container)
        if asked.verb == "exec":
            _prepare_exec(asked.process, ordered.process)
        else:
            prepare(ordered, bundle=asked.bundle, state_root=asked.state_root, runtime=runtime)
            if ordered.restore is not None:
                _restore(ordered.restore, words=words, asked=asked, runtime=runtime)
                return
        os.execvp(runtime, [runtime, *words])
    except (OSError, OrderError) as error:
        _report(f"pydockershim's OCI runtime: {_text(error)}", log=asked.log)
        sys.exit(1)


def _restore(ordered: order.Restore, *, words: list[str], asked: Invocation, runtime: str) -> None:
    from shim.oci_runtime.restore import restore  # noqa: PLC0415 - few containers have it

    restore(ordered, words=words, verb_at=asked.verb_at, bundle=asked.bundle, runtime=runtime)


def _prepare_exec(path: str, changes: order.Json) -> None:
    if not path:
        raise OrderError("exec has no option --process, with which containerd passes the process")
    from shim.oci_runtime.adjust import adjust_process  # noqa: PLC0415 - few containers have it

    process = read_json(path)
    adjust_process(process, changes)
    replace_json(path, process)


def _test(store: str, *directories: str) -> None:
    from shim.oci_runtime import self_test  # noqa: PLC0415 - the server runs it, and no container

    try:
        self_test.run(store, directories)
    except OSError as error:
        _report(_text(error), log="")
        sys.exit(1)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error.args[-1]) if error.args else type(error).__name__


def _reporter_of_faults(log: str) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """Return an exception hook that also writes a fault of this program to the log that Docker reads."""

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        _report(f"pydockershim's OCI runtime: {kind.__name__}: {error}", log=log)
        sys.__excepthook__(kind, error, traceback)

    return report


def _report(text: str, *, log: str) -> None:
    print(text, file=sys.stderr)
    if log:
        line = {"level": "error", "msg": text, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with open(log, "ab") as file:
            file.write(json_text.write(line) + b"\n")
