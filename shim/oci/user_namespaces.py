"""Checks whether pods can have user namespaces on this node."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

import shim.oci_runtime
from shim.base.atomic_files import failing_as
from shim.base.single_flight import Background
from shim.base.spawn import run_bounded
from shim.dockerd.facts import EngineFacts
from shim.dockerd.image_store import store_root
from shim.dockerd.runc import ORDERED_RUNTIME, ORDERS_OPTION
from shim.domain.errors import ShimError
from shim.engine.answers import EngineInfo
from shim.oci_runtime.command import SELF_TEST

INSTALL = "pydockershim install --docker"
_DRIVERS = ("overlay2", "overlayfs")
_PROGRAM = Path(shim.oci_runtime.__file__).with_name("__main__.py")
_TEST_SECONDS = 30.0

log = structlog.get_logger(__name__)


def orders_directory(info: EngineInfo) -> Path | None:
    """Return the directory of orders in Docker's entry of the server's OCI runtime; None if Docker has no entry."""
    runtime = (info.runtimes or {}).get(ORDERED_RUNTIME)
    match runtime and runtime.runtime_args:
        case [option, directory] if option == ORDERS_OPTION and directory.startswith("/"):
            return Path(directory)
        case _:
            return None


class _Tested(NamedTuple):
    """The tested image store and directories, and the result."""

    places: tuple[Path, ...]
    problem: str
    """Empty if the test succeeded."""


class UserNamespaces:
    """Support for user namespaces: Docker's settings, and a test of the kernel on the file systems of containers.

    The first query starts the test in the background, once for each image store. Thread-safe.
    """

    def __init__(self, facts: EngineFacts, *, files: Path) -> None:
        """Start no test yet. `files` is the directory of the pods' resolv.conf files; it may be missing."""
        self._facts = facts
        self._files = files
        self._tested: _Tested | None = None
        self._test = Background(self._run, name="test-userns")

    def known_problem(self) -> str:
        """Return why pods cannot have user namespaces, without waiting for the test; "" if they can."""
        problem = self._latest()
        if problem is None:
            self._test.begin()
            return "the test of this node is still running"
        return problem

    def problem(self) -> str:
        """Wait for the test, and return why pods cannot have user namespaces; "" if they can."""
        problem = self._latest()
        return self._test.join(what="wait for the test of user namespaces").problem if problem is None else problem

    def _latest(self) -> str | None:
        """Return the known problem, "" for none; None while Docker's current store has not been tested."""
        info = self._facts.info()
        if problem := _setting(info):
            return problem
        tested = self._tested
        return tested.problem if tested is not None and tested.places == self._places(info) else None

    def _run(self) -> _Tested:
        """Test, and keep the result. A test that could not be run on a busy node is repeated at the next query."""
        places = self._places(self._facts.info())
        try:
            tested = self._tested = _Tested(places, _test(places))
        except ShimError as error:
            tested = _Tested(places, str(error))
        if tested.problem:
            log.warning("pods cannot have user namespaces", reason=tested.problem)
        return tested

    def _places(self, info: EngineInfo) -> tuple[Path, ...]:
        """Return the image store, and the directories of the server's and Docker's files in each container."""
        files = next(path for path in (self._files, *self._files.parents) if path.is_dir())
        return store_root(info, pids=()), files, Path(info.docker_root_dir)


def _setting(info: EngineInfo) -> str:
    """Return the setting of Docker that rules out user namespaces; "" if there is none."""
    options = {name for option in info.security_options or () for name in option.split(",")}
    if orders_directory(info) is None:
        return f"Docker has no OCI runtime {ORDERED_RUNTIME}: {INSTALL} adds it"
    if "name=userns" in options:
        return "Docker uses the same user namespace for all containers (userns-remap)"
    if info.driver not in _DRIVERS:
        return f"Docker's storage driver is {info.driver}, not {' or '.join(_DRIVERS)}"
    return ""


def _test(places: Sequence[Path]) -> str:
    """Return why the kernel or a file system cannot do it; "" if they can. Raise ShimError if there is no answer."""
    with failing_as("test user namespaces"):
        outcome = run_bounded(
            Path(sys.executable),
            arguments=["-IS", str(_PROGRAM), SELF_TEST, *map(str, places)],
            environment={},
            stdin=b"",
            timeout=_TEST_SECONDS,
            what="test user namespaces",
        )
    if outcome.returncode == 0:
        return ""
    return outcome.stderr.decode(errors="replace").strip() or f"the test ended with {outcome.returncode}"
