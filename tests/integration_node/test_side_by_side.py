import pytest

from integration.side_by_side import scope


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/base/test_spawn.py::test_input", "tests/base/test_spawn.py"),
        ("tests/base/test_spawn.py::test_input[28]", "tests/base/test_spawn.py"),
        ("integration/pods/test_stop.py::test_stop[20.10]", "Docker Engine 20.10, pods"),
        ("integration/image/test_images.py::test_pull[28-containerd-404-{}]", "Docker Engine 28-containerd, the rest"),
        ("integration/image/test_images.py::test_pull[28-404]", "Docker Engine 28, the rest"),
        ("integration/streaming/test_exec.py::test_exec[websocket-28]", "Docker Engine 28, the rest"),
        (
            "integration/chaos/test_chaos.py::test_a_node_whose_parts_fail[28-containerd-2]",
            "Docker Engine 28-containerd, the rest",
        ),
        ("integration/view/test_reads.py::test_reads[28-containerd]", "Docker Engine 28-containerd, pods"),
        ("integration/bench/test_figures.py::test_a_rank[lower of one]", "no engine"),
        ("integration/bench/test_figures.py::test_a_rank[1288]", "no engine"),
        ("integration/chaos/test_plan.py::test_a_plan", "no engine"),
    ],
)
def test_halves_of_the_tests_of_an_engine_stay_together_and_unit_tests_go_by_file(test: str, expected: str) -> None:
    assert scope(test) == expected
