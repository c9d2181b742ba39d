from collections.abc import Iterator

import pytest

from integration.side_by_side import choose, engine_of, scope, seconds


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/base/test_spawn.py::test_input", "tests/base/test_spawn.py"),
        ("tests/base/test_spawn.py::test_input[28]", "tests/base/test_spawn.py"),
        ("integration/pods/test_stop.py::test_stop[20.10]", "integration/pods/test_stop.py 20.10"),
        (
            "integration/image/test_images.py::test_pull[28-containerd-404-{}]",
            "integration/image/test_images.py 28-containerd",
        ),
        ("integration/image/test_images.py::test_pull[28-404]", "integration/image/test_images.py 28"),
        ("integration/streaming/test_exec.py::test_exec[websocket-28]", "integration/streaming/test_exec.py 28"),
        ("integration/chaos/test_chaos.py::test_a[28-containerd-2]", "integration/chaos/test_chaos.py 28-containerd"),
        ("integration/networking/test_gc.py::test_gc[28]", "integration/networking/ 28"),
        ("integration/packages/test_deb.py::test_a_removal", "integration/packages/"),
        ("integration/bench/test_figures.py::test_a_rank[lower of one]", "integration/bench/test_figures.py"),
        ("integration/bench/test_figures.py::test_a_rank[1288]", "integration/bench/test_figures.py"),
    ],
)
def test_tests_of_a_file_and_an_engine_stay_together(test: str, expected: str) -> None:
    assert scope(test) == expected
    assert engine_of(expected) == expected.partition(" ")[2]


def run(waiting: dict[str, float], *, workers: int) -> Iterator[tuple[float, int, str]]:
    """Simulate workers; a scope's name sets its duration. Yields start time, worker and name of each scope."""
    free = dict.fromkeys(range(workers), 0.0)
    engines: dict[int, str] = {}
    while waiting:
        worker = min(free, key=free.__getitem__)
        others = [engine for each, engine in engines.items() if each != worker]
        name = choose(waiting, engine=engines.get(worker, ""), others=others)
        yield free[worker], worker, name
        engines[worker] = engine_of(name) or engines.get(worker, "")
        free[worker] += waiting.pop(name)


def test_workers_end_together_and_few_engines_are_started() -> None:
    scopes: dict[str, float] = {f"integration/pods/test_{n}.py {e}": n for n in range(1, 30) for e in ("28", "20.10")}
    scopes |= {f"integration/image/test_{n}.py 28-containerd": n for n in range(1, 15)}
    scopes |= {f"tests/test_{n}.py": n / 10 for n in range(400)}
    began = list(run(dict(scopes), workers=4))

    ends = [max(at + scopes[name] for at, each, name in began if each == worker) for worker in range(4)]
    assert max(ends) - min(ends) < 2
    started = [[engine_of(name) for _, each, name in began if each == worker] for worker in range(4)]
    switches = sum(1 for names in started for engine in dict.fromkeys(filter(None, names)))
    assert switches <= 7
    assert sorted(name for _, _, name in began) == sorted(scopes)


def test_a_long_scope_with_few_tests_runs_first() -> None:
    waiting = {name: seconds(name, 5) for name in ("integration/view/test_restarts.py 28", "integration/a.py 28")}
    assert choose(waiting | {"integration/b.py 28": 9.0}, engine="28", others=["28"]).startswith("integration/view")


def test_an_engine_is_not_started_for_the_last_tests_of_another_worker() -> None:
    waiting = {"integration/pods/test_stop.py 28": 3.0, "tests/test_cli.py": 1.0}
    assert choose(waiting, engine="20.10", others=["28"]) == "tests/test_cli.py"
    assert choose(waiting, engine="28", others=["28"]) == "integration/pods/test_stop.py 28"
    assert choose(waiting, engine="20.10", others=["20.10"]) == "integration/pods/test_stop.py 28"
    del waiting["tests/test_cli.py"]
    assert choose(waiting, engine="20.10", others=["28"]) == "integration/pods/test_stop.py 28"
