import pytest

from integration.conformance.scenario import chosen
from integration.kind.scenarios import LEFT_OUT, engine_name, selected
from integration.node.commands import NodeError

OVERLAY = {"DriverStatus": [["Backing Filesystem", "extfs"]]}
CONTAINERD = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


def test_each_excluded_scenario_exists() -> None:
    assert {each.name for each in chosen("")} >= LEFT_OUT


def test_scenarios_that_disturb_the_node_do_not_run() -> None:
    names = {each.name for each in chosen(selected())}

    assert names == {each.name for each in chosen("") if not each.alone} - LEFT_OUT
    assert len(names) > len(LEFT_OUT)


@pytest.mark.parametrize(
    ("info", "version", "name"),
    [
        (OVERLAY, "28.5.2+dfsg4", "28"),
        (CONTAINERD, "28.5.2+dfsg4", "28-containerd"),
        (OVERLAY, "20.10.24+dfsg1", "20.10"),
        ({"DriverStatus": None}, "28.0.0", "28"),
    ],
)
def test_results_of_a_node_are_filed_under_its_engine(info: dict[str, object], version: str, name: str) -> None:
    assert engine_name(info, version) == name


def test_results_of_an_engine_without_a_column_are_not_filed() -> None:
    with pytest.raises(NodeError, match=r"Docker 27\.1\.0 is none of"):
        engine_name(OVERLAY, "27.1.0")
