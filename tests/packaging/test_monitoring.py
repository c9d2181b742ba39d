"""The dashboard and the alerts use metrics and labels in docs/metrics.md, and the page has a remedy for each alert."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "packaging/monitoring"
METRICS = (ROOT / "docs/metrics.md").read_text().split("## Of the server")[1].split("\n## ")[0]
DASHBOARD_PAGE = (ROOT / "docs/dashboard.md").read_text()
OPERATING = (ROOT / "docs/operating.md").read_text()

OF_PROMETHEUS = {"up": {"job", "instance"}}
EVERYWHERE = {"job", "instance"}
"""Labels that the scrape adds."""
WORDS = {"sum", "by", "rate", "increase", "changes", "histogram_quantile", "time", "and", "label_values"}
"""Functions and keywords of PromQL; every other name must be a metric."""


def documented() -> dict[str, set[str]]:
    """Return the labels of each series, by its name."""
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for name, labels, text in re.findall(r"^\| `(\w+)` \|([^|]*)\|(.*)\|$", METRICS, flags=re.MULTILINE):
        named = {*re.findall(r"`(\w+)`", labels)}
        if "histogram" in text:
            found |= {f"{name}_count": named, f"{name}_sum": named, f"{name}_bucket": {*named, "le"}}
        else:
            found[name] = named
    return found


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in json.loads((MONITORING / "dashboard.json").read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"].replace(", instance)", ")")


def parts(expression: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
    """Return the series of an expression with the labels of their selectors, and the labels that it groups by."""
    groups = {label for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.findall(r"\w+", found)}
    bare = re.sub(r"\bby \([^)]*\)|\[[^]]*\]", "", expression)
    series = []
    for name, matchers in re.findall(r"([a-zA-Z_]\w*)\b(?:\{([^}]*)\})?", re.sub(r"\d[\w.]*", "", bare)):
        if name not in WORDS:
            series.append((name, {*re.findall(r"(\w+)\s*[!=]~?\"", matchers)}))
        bare = bare.replace("{" + matchers + "}", "")
    return series, groups


def stripped(expression: str) -> str:
    """Return an expression without braces and their content, which may be any text."""
    return re.sub(r"\"[^\"]*\"", '""', expression)


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda value: str(value)[:40])
def test_only_documented_metrics_and_labels_are_used(where: str, expression: str) -> None:
    known = documented()
    series, groups = parts(stripped(expression))

    assert series, where
    for name, labels in series:
        assert name in known
        assert labels | groups <= known[name] | EVERYWHERE


def test_every_metric_of_the_server_is_on_the_dashboard() -> None:
    used = {
        name for panel in panels() for each in panel.get("targets", []) for name, _ in parts(stripped(each["expr"]))[0]
    }
    bases = {re.sub(r"_(count|sum|bucket)$", "", name) for name in {*documented()} - {*OF_PROMETHEUS}}
    shown = {re.sub(r"_(count|sum|bucket)$", "", name) for name in used}

    as_shares_of_others = {"process_virtual_memory_bytes", "process_max_fds"}
    zero_nearly_always = {"pydockershim_leaked_shims", "pydockershim_leaked_shims_ended_total"}
    assert bases - shown == as_shares_of_others | zero_nearly_always


def test_the_page_of_the_dashboard_describes_each_panel_with_its_queries() -> None:
    for panel in panels():
        if panel["type"] == "row":
            assert f"\n## {panel['title']}\n" in DASHBOARD_PAGE
        else:
            [after] = DASHBOARD_PAGE.split(f"\n**{panel['title']}.** {panel['description']}\n")[1:]
            block = after.split("```\n")[1]
            assert [line.rpartition("    # ")[0] for line in block.splitlines()] == [
                target["expr"] for target in panel["targets"]
            ]


def test_panels_are_complete_and_do_not_overlap() -> None:
    found = panels()
    cells = [
        (x, y)
        for panel in found
        for place in [panel["gridPos"]]
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]

    assert len({panel["id"] for panel in found}) == len(found)
    assert len(cells) == len({*cells})
    assert {x for x, _ in cells} == {*range(24)}
    for panel in found:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_the_page_has_a_remedy_for_each_alert(rule: dict[str, Any]) -> None:
    name = rule["alert"]

    assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operating.md#{name.lower()}"
    assert f"\n#### {name}\n" in OPERATING


def test_the_page_has_no_other_alert() -> None:
    assert re.findall(r"^#### (Pydockershim\w+)$", OPERATING, flags=re.MULTILINE) == [
        each["alert"] for each in alerts()
    ]


def test_each_alert_has_tests_for_firing_and_not_firing() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}

    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names
