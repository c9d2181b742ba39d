"""A run of a CNI plugin: environment and configuration in, result or error object out.

Source: CNI specification 1.1.0, section 2 (execution protocol) and section 5 (result types).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from shim.base.meter import Kind, timed
from shim.base.spawn import STDOUT_LIMIT, Outcome, run_bounded
from shim.domain.errors import FailedPrecondition, ResourceExhausted, ShimError, reason_of

JsonObject = dict[str, Any]
Verb = Literal["ADD", "DEL", "GC", "STATUS"]

QUOTED_CHARACTERS = 200
"""Most quoted characters of output that is not CNI."""
MAX_MESSAGE_CHARACTERS = 1000
"""Most characters of message, details and stderr, each, in an error: gRPC carries a few KiB of status text."""
UNKNOWN_VERB = 4
"""Error code of a plugin that does not know the verb ("invalid environment variables")."""
STDERR_LINES = 3
"""Last lines of stderr in an error."""


class PluginError(ShimError):
    """A plugin failed, or printed output that is not CNI."""

    def __init__(self, call: "Call", *, msg: str, code: int = 0, details: str = "", stderr: bytes = b"") -> None:
        self.plugin = call.binary.name
        self.verb = call.verb
        self.code = code
        """Code of the CNI error object; 0 if there is none."""
        self.msg = msg
        self.details = details
        text = f"{call.what}: {msg[:MAX_MESSAGE_CHARACTERS]}"
        if code:
            text += f" (code {code})"
        if details:
            text += f": {details[:MAX_MESSAGE_CHARACTERS]}"
        if said := _last_lines(stderr):
            text += f"; stderr: {said}"
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Parameters of a run, without the configuration."""

    binary: Path
    verb: Verb
    bin_dirs: Sequence[Path]
    container_id: str = ""
    """Empty for verbs without a pod, like the following fields."""
    netns: str = ""
    """Path of the pod's network namespace; empty in a DEL if the namespace is gone."""
    ifname: str = ""
    args: Sequence[tuple[str, str]] = ()

    @property
    def what(self) -> str:
        """A prefix for messages about this run."""
        by = f"cni {self.verb} by plugin {self.binary}"
        return f"{by} for sandbox {self.container_id}" if self.container_id else by

    def environment(self) -> dict[bytes, bytes]:
        """Return the environment of the plugin: the server's, because plugins run programs such as iptables, and CNI's.

        The values are bytes, so that the server's environment is not decoded and encoded for each run.
        """
        own = {
            "CNI_COMMAND": self.verb,
            "CNI_CONTAINERID": self.container_id,
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": self.ifname,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.args),
            "CNI_PATH": os.pathsep.join(map(str, self.bin_dirs)),
        }
        return {**os.environb, **{os.fsencode(name): os.fsencode(value) for name, value in own.items()}}


class _ErrorObject(msgspec.Struct):
    """The error object of a failing plugin (section 5). All fields are optional: a partial message beats none."""

    code: int = 0
    msg: str = ""
    details: str = ""


def run_plugin(call: Call, *, config: JsonObject, timeout: float) -> bytes:
    """Run a plugin and return its output.

    Raise PluginError if it fails, and FailedPrecondition if it cannot be started. Raise DeadlineExceeded after
    `timeout` seconds, and DeadlineExceeded or Cancelled with the current scope; then the plugin is killed with its
    children.
    """
    with timed(Kind.CNI, call.binary.name, call.verb):
        return _run(call, config=config, timeout=timeout)


def _run(call: Call, *, config: JsonObject, timeout: float) -> bytes:
    try:
        outcome = run_bounded(
            call.binary,
            environment=call.environment(),
            stdin=msgspec.json.encode(config),
            timeout=timeout,
            what=call.what,
        )
    except ResourceExhausted as flood:
        raise PluginError(call, msg=f"printed more than {STDOUT_LIMIT} bytes, killed") from flood
    except OSError as error:
        raise FailedPrecondition(f"{call.what}: cannot be started: {reason_of(error)}") from error
    if outcome.returncode != 0:
        raise failure_of(call, outcome)
    return outcome.stdout


def run_add(call: Call, *, config: JsonObject, timeout: float) -> JsonObject:
    """Run a plugin and decode its result; see `run_plugin` for errors."""
    return result_of(call, run_plugin(call, config=config, timeout=timeout))


def result_of(call: Call, stdout: bytes) -> JsonObject:
    """Decode the output of a plugin as a result. Raise PluginError if it is not a JSON object."""
    try:
        result = msgspec.json.decode(stdout)
    except (ValueError, RecursionError) as error:
        raise PluginError(call, msg=f"printed no JSON: {_quote(stdout)}") from error
    if not isinstance(result, dict):
        raise PluginError(call, msg=f"printed no result object: {_quote(stdout)}")
    return result


def failure_of(call: Call, outcome: Outcome) -> PluginError:
    """Return an error with the message of a failed plugin."""
    ended = _how_it_ended(outcome.returncode)
    if not outcome.stdout.strip():
        return PluginError(call, msg=f"{ended} and printed no error", stderr=outcome.stderr)
    try:
        reported = msgspec.json.decode(outcome.stdout, type=_ErrorObject)
    except (ValueError, RecursionError):
        reported = _ErrorObject()
    if not reported.msg:
        msg = f"{ended} and printed no CNI error: {_quote(outcome.stdout)}"
        return PluginError(call, msg=msg, stderr=outcome.stderr)
    return PluginError(call, msg=reported.msg, code=reported.code, details=reported.details, stderr=outcome.stderr)


def _how_it_ended(returncode: int) -> str:
    return f"exited with code {returncode}" if returncode > 0 else f"was killed by signal {-returncode}"


def _quote(data: bytes) -> str:
    text = data[: QUOTED_CHARACTERS * 4].decode(errors="replace").encode("unicode_escape").decode()
    return f"'{text}'" if len(text) <= QUOTED_CHARACTERS else f"'{text[:QUOTED_CHARACTERS]}'..."


def _last_lines(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().split("\n")
    return " | ".join(line.strip() for line in lines[-STDERR_LINES:])[-MAX_MESSAGE_CHARACTERS:]
