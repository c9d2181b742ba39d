"""The server's pod metrics compared with cAdvisor's, as recorded from a kubelet with both."""

import re
from pathlib import Path

import pytest

from integration.conformance.cadvisor import Series, labels_of, read
from shim.stats.descriptors import BASE_LABELS, EVERY

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
KEPT = list(read())
OF_PODS = ("container", "pause")
BOTH = [(series, cadvisor, server) for series, cadvisor, server in KEPT if cadvisor is not None and server is not None]


@pytest.mark.parametrize(
    ("series", "cadvisor", "server"), BOTH, ids=[f"{each[0].metric}-{each[0].of}" for each in BOTH]
)
def test_labels_equal_cadvisors(series: Series, cadvisor: tuple[str, ...], server: tuple[str, ...]) -> None:
    assert server == cadvisor, series


def test_the_server_describes_every_served_metric() -> None:
    described = {metric.name: tuple(sorted((*BASE_LABELS, *metric.labels))) for metric in EVERY}
    served = {series.metric: server for series, _, server in KEPT if series.of in OF_PODS and server is not None}
    assert len(served) > 40
    assert served.items() <= described.items()


def test_the_page_names_missing_metrics() -> None:
    there = {metric.name for metric in EVERY}
    there |= {series.metric for series, _, server in KEPT if server is not None}
    of_node = {series.metric for series, _, _ in KEPT} - {series.metric for series, _, _ in KEPT if series.of != "node"}
    missing = {series.metric for series, _, _ in KEPT} - there
    unlabelled = {series.metric for series, cadvisor, _ in KEPT if cadvisor is not None and "id" not in cadvisor}

    paragraph = PAGE.partition("takes from cAdvisor these are missing")[2]
    named = set(re.findall(r"`(\w+)`", paragraph.partition("\n\n")[0]))

    # Disks of the whole node are counted with the node's other series.
    assert named == missing - (of_node - unlabelled)


def test_series_are_told_apart_by_their_subject() -> None:
    text = """# TYPE a counter
a{container="main",image="i",namespace="n"} 1
a{container="",image="p",namespace="n"} 1
a{container="POD",image="p",namespace="n",more=""} 1
a{container="",image="",namespace="n"} 1
# TYPE b counter
b_total{container="",image="",namespace=""} 1
"""
    base = ("container", "image", "namespace")
    assert labels_of(text) == {
        Series("a", "container"): base,
        Series("a", "pause"): ("container", "image", "more", "namespace"),
        Series("a", "pod"): base,
        Series("b_total", "node"): base,
    }
