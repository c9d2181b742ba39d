"""A pytest plugin for runs whose workers (pytest-xdist) are isolated from each other: `make test`.

A worker is started through `python -m integration.node run`. So each worker has a separate node with separate engines,
and no worker sees the effects of another worker's tests.
"""

import gc
import os
import re
import secrets
from collections import Counter
from collections.abc import Generator, Iterable, Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling
from xdist.workermanage import WorkerController

from integration.node import control_groups

_ENGINE = re.compile(r"[\[-](20\.10|26|28-containerd|28|29-containerd)[\]-]")
_TOGETHER = ("integration/networking/", "integration/packages/")
"""Folders whose files share an expensive fixture: a separate Docker, the packages."""
SECONDS = {
    "tests/daemon/test_serve.py": 60,
    "tests/fuzz/test_fuzz.py": 60,
    "tests/hostfs/test_client.py": 40,
    "tests/logs/test_supervisor.py": 20,
    "tests/streaming/test_bounds.py": 20,
    "integration/by_hand/test_identity.py": 30,
    "integration/by_hand/test_verbs.py": 80,
    "integration/chaos/test_chaos.py": 40,
    "integration/fields/test_daemon_defaults.py": 35,
    "integration/image/test_images.py": 90,
    "integration/logs/test_restart.py": 55,
    "integration/logs/test_rotation.py": 35,
    "integration/networking/": 200,
    "integration/operating/test_migration.py": 25,
    "integration/packages/": 110,
    "integration/pods/test_cni_directory.py": 60,
    "integration/pods/test_exec_sync.py": 30,
    "integration/pods/test_exit_storms.py": 30,
    "integration/pods/test_interruptions.py": 90,
    "integration/pods/test_leaked_shims.py": 25,
    "integration/pods/test_one_shim.py": 60,
    "integration/stats/test_against_kernel.py": 70,
    "integration/stats/test_stats.py": 55,
    "integration/streaming/test_ends.py": 35,
    "integration/view/test_hanging.py": 80,
    "integration/view/test_isolation.py": 30,
    "integration/view/test_restarts.py": 130,
    "integration/view/test_sick_images.py": 40,
}
"""Seconds on an engine, roughly, for files whose number of tests says nothing about their duration."""
_OF_TEST = 0.3
"""Seconds of a test in any other file of integration tests."""
_OF_UNIT_TEST = 0.05
_LONG = 20.0
"""Scopes that take more seconds than this are not kept for the end, where other workers would wait for them."""
_START = 15.0
"""Seconds of tests that justify the start of one more engine."""


class EngineScheduling(LoadScopeScheduling):
    """Gives a worker all files of one engine in turn, longest first, because the start of an engine is expensive.

    When no file of that engine is left, the worker goes on with the engine that has most work left. Short files that
    need no engine come last, so that all workers end at about the same time.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._engine_of: dict[WorkerController, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = {name: seconds(name, len(tests)) for name, tests in self.workqueue.items()}
        engine = self._engine_of.pop(node, "")
        chosen = choose(waiting, engine=engine, others=self._engine_of.values())
        self._engine_of[node] = engine_of(chosen) or engine
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


def choose(waiting: Mapping[str, float], *, engine: str, others: Iterable[str]) -> str:
    """Return the scope that a worker runs next, of the scopes in `waiting` with their seconds.

    `engine` is the engine that the worker started last, `others` are the engines of other workers; "" means none.
    """
    left: dict[str, float] = {}
    for name, takes in waiting.items():
        of = engine_of(name)
        if of or takes >= _LONG:
            left[of] = left.get(of, 0.0) + takes
    workers = Counter(others)
    share = {of: total / (1 + workers[of]) for of, total in left.items()}
    worth = [of for of in share if not of or share[of] >= _START or not workers[of]]
    of = engine if engine and engine in left else max(worth, key=share.__getitem__, default="")
    return max([name for name in waiting if engine_of(name) == of] or waiting, key=waiting.__getitem__)


def scope(nodeid: str) -> str:
    """Return the scope of a test: its tests run in their order, in one worker."""
    path, _, name = nodeid.partition("::")
    engine = _ENGINE.search(name) if path.startswith("integration/") else None
    place = next((folder for folder in _TOGETHER if path.startswith(folder)), path)
    return f"{place} {engine[1]}" if engine else place


def engine_of(scope: str) -> str:
    """Return the engine of a scope; empty if its tests need none."""
    return scope.partition(" ")[2]


def seconds(scope: str, tests: int) -> float:
    """Return the approximate seconds of `tests` tests of a scope."""
    path = scope.partition(" ")[0]
    return SECONDS.get(path, tests * (_OF_TEST if path.startswith("integration/") else _OF_UNIT_TEST))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Replace the scheduling that `--dist` names."""
    return EngineScheduling(config, log)


def pytest_xdist_setupnodes() -> None:
    """Give all workers the same hash seed, since they must collect the same test ids, some of which come from sets.

    Also let Go programs collect garbage less often: Docker 20.10 starts a Go program for each network namespace, and
    garbage collection takes a third of its time.
    """
    os.environ.setdefault("PYTHONHASHSEED", str(secrets.randbelow(1 << 32)))
    os.environ.setdefault("GOGC", "400")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection during test collection: it takes a third of the time, and tests are never freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let workers repeat a test without the counter that pytest-rerunfailures keeps in the controller.

    They would ask for it by TCP, but the controller is in another network namespace. The counter matters only for a
    test whose worker died; this scheduler cannot reschedule such a test, so it fails anyway.
    """
    reruns = config.pluginmanager.getplugin("rerunfailures")
    if hasattr(config, "workerinput") and reruns is not None:
        reruns.ClientStatusDB = lambda _port, _token: reruns.StatusDB()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Fail if an isolated node has left cgroups, the only resource that nodes share."""
    groups = [] if hasattr(session.config, "workerinput") else control_groups.of_children()
    yield
    if left := [str(group) for group in groups if group.exists()]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"cgroups left by an isolated run: {', '.join(left)}")
