"""A pytest plugin for runs whose workers (pytest-xdist) are isolated from each other: `make test`.

A worker is started through `python -m integration.node run`, so each has a node of its own, with the engines on it, and
what the tests of one do no other sees.
"""

import os
import re
import secrets
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from integration.node.isolation import control_groups_of_children

_ENGINE = re.compile(r"[\[-](20\.10|28-containerd|28)[\]-]")
_OF_PODS = ("integration/pods/", "integration/view/", "integration/networking/")
"""These take half of the time of an engine."""


class EngineScheduling(LoadScopeScheduling):
    """Gives a worker half of the integration tests of an engine, whose start is dear, and unit tests file by file.

    The base class hands out what has most tests first. So all workers begin with an engine, and the files of unit tests
    keep them busy to the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """Name what a test is run together with: tests of one scope stay in their order, in one worker."""
    path, _, name = nodeid.partition("::")
    if not path.startswith("integration/"):
        return path
    if (engine := _ENGINE.search(name)) is None:
        return "no engine"
    return f"Docker Engine {engine[1]}, {'pods' if path.startswith(_OF_PODS) else 'the rest'}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Replace what `--dist` names."""
    return EngineScheduling(config, log)


def pytest_xdist_setupnodes() -> None:
    """Let all workers name tests alike, also those named by a set: they have to collect the same ones."""
    os.environ.setdefault("PYTHONHASHSEED", str(secrets.randbelow(1 << 32)))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let workers repeat a test without the count that pytest-rerunfailures keeps in the controller.

    They would ask for it by TCP, and the controller is in another network namespace. The count matters only for a test
    whose worker has died; this scheduling cannot hand out such a test again in any case, and it fails.
    """
    reruns = config.pluginmanager.getplugin("rerunfailures")
    if hasattr(config, "workerinput") and reruns is not None:
        reruns.ClientStatusDB = lambda _port, _token: reruns.StatusDB()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Fail if a node, which ends with its worker, has left control groups, the one thing that nodes share."""
    groups = [] if hasattr(session.config, "workerinput") else control_groups_of_children()
    yield
    if left := [str(group) for group in groups if group.exists()]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"control groups that an isolated run has left: {', '.join(left)}")
