"""Tests once whether criu can dump processes on this node."""

from collections.abc import Mapping
from pathlib import Path

from shim.base.single_flight import Background
from shim.criu.checkpoint import carry_out, new_work
from shim.criu.order import TrialOrder
from shim.criu.program import describe, find_criu, search_path
from shim.domain.errors import ShimError, Unsupported
from shim.own_exec.own_exec import OwnExec

_DUMPS = "dumps processes"


class CriuSupport:
    """The test and its result, as a text for people. Thread-safe."""

    def __init__(self, own_exec: OwnExec, *, work: Path, environ: Mapping[str, str]) -> None:
        """`work` is a directory for temporary files of the test."""
        self._own_exec = own_exec
        self._work = work
        self._environ = environ
        self._result = ""
        self._trial: Background[None] = Background(self._try, name="criu-trial")

    def describe(self) -> str:
        """Return criu's path, its version, and whether it can dump processes. The first call starts the test."""
        found = describe(self._environ)
        if find_criu(self._environ) is None:
            return found
        if not self._result:
            self._trial.begin()
        return f"{found}: {self._result or 'not tried yet'}"

    def _try(self) -> None:
        order = TrialOrder(path=search_path(self._environ), work=str(new_work(self._work)))
        try:
            carry_out(self._own_exec, order, what="try criu")
            self._result = _DUMPS
        except Unsupported as error:
            self._result = str(error)
        except ShimError:
            pass  # not tested, for example because the exec program does not run yet; the next call tries again
