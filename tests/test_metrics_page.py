"""docs/metrics.md has a row for each metric."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from shim.daemon import telemetry
from shim.stats.descriptors import EVERY
from shim.stats.metric import ContainerMetric, Figures, PodMetric

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
PODS, SERVER = PAGE.split("\n## ")[1:3]


def rows(part: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_metric_of_pods_has_its_row(metric: ContainerMetric[Figures] | PodMetric) -> None:
    labels = ", ".join(f"`{label}`" for label in metric.labels)

    assert f"| `{metric.name}` | {labels} | {metric.help} |\n" in PODS


def test_each_row_is_of_a_metric() -> None:
    assert rows(PODS) == [metric.name for metric in EVERY]


def test_the_metrics_of_the_server_have_their_rows() -> None:
    named = re.findall(r"(Counter)?(?:MetricFamily)?\(\s*\"(pydockershim_\w+)\"", Path(telemetry.__file__).read_text())
    durations = {f"{name}_seconds" for name, _ in telemetry._NAMES.values()}
    infos = re.findall(r"InfoMetricFamily\(\"(\w+)\"", Path(telemetry.__file__).read_text())
    families = {f"{name}_total" if kind else name for kind, name in named if f"{name}_seconds" not in durations}
    process = {
        sample.name for family in ProcessCollector(registry=CollectorRegistry()).collect() for sample in family.samples
    }

    assert set(rows(SERVER)) == durations | families - {*infos} | {f"{name}_info" for name in infos} | process
