"""promtool and the alerts: on the series of alerts_test.yml, and on series recorded from a real server."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from integration.conftest import Images, make_node_dirs, serving
from integration.cri import container_config, pod_config
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node, new_home
from integration.server import Server
from integration.waiting import wait_until

MONITORING = Path(__file__).parents[2] / "packaging/monitoring"
PORT = 9182
LINK = "pods-recorded"
MINUTES = 120
"""Duration of the recorded values: longer than any alert waits."""


@pytest.fixture
def promtool(node: Node) -> Path:
    return node.monitoring.root / "usr/bin/promtool"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A copy of the files, to which a test adds its own."""
    return Path(shutil.copytree(MONITORING, tmp_path / "monitoring"))


def run(promtool: Path, *words: object) -> str:
    reported = subprocess.run(
        [promtool, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert reported.returncode == 0, reported.stdout
    return reported.stdout


def test_prometheus_accepts_the_files(promtool: Path, rules: Path) -> None:
    run(promtool, "check", "config", rules / "prometheus.yml")
    run(promtool, "check", "rules", rules / "alerts.yml")


def test_each_alert_fires_when_it_should(promtool: Path, rules: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", rules / "alerts_test.yml")


def queries() -> list[str]:
    """Return the queries of the dashboard's panels, for all instances and with an interval in place of Grafana's
    variable.
    """
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "5m") for query in found]


def test_prometheus_accepts_each_query_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", file)


def scraped() -> list[Sample]:
    """Return a scrape; empty while the log process is too busy to answer."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return samples if any(sample.name == "pydockershim_logs_up" and sample.value for sample in samples) else []


def recorded() -> list[dict[str, str]]:
    """Return the series of a scrape, each with a constant value for MINUTES, in promtool's format."""
    return [
        {"series": f"{sample.name}{{{labels(sample.labels)}}}", "values": f"{sample.value:g}x{MINUTES}"}
        for sample in wait_until(scraped)
    ]


def labels(own: dict[str, str]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in {"job": "pydockershim", "instance": "a", **own}.items())


def expected(alert: str) -> list[dict[str, Any]]:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    [found] = [case["exp_alerts"] for case in cases if case["alertname"] == alert and case.get("exp_alerts")]
    alerts: list[dict[str, Any]] = found
    return alerts


def check_alerts(promtool: Path, rules: Path, series: list[dict[str, str]], *, firing: Sequence[str]) -> None:
    """Check that exactly these alerts fire on the series."""
    [group] = yaml.safe_load((rules / "alerts.yml").read_text())["groups"]
    cases = [
        {
            "alertname": rule["alert"],
            "eval_time": f"{MINUTES}m",
            "exp_alerts": expected(rule["alert"]) if rule["alert"] in firing else [],
        }
        for rule in group["rules"]
    ]
    up = {"series": 'up{job="pydockershim", instance="a"}', "values": f"1x{MINUTES}"}
    test = {"interval": "1m", "input_series": [up, *series], "alert_rule_test": cases}
    file = rules / "recorded_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}))
    run(promtool, "test", "rules", file)


def test_a_node_with_pods_has_no_alert(engine: Engine, images: Images, node: Node, promtool: Path, rules: Path) -> None:
    dirs = make_node_dirs(node, new_home("recorded"))
    text = conflist(bridge(dirs.cni_leases, subnets=["10.91.0.0/16"], link=LINK))
    (dirs.cni_conf / "10-pods.conflist").write_text(text)
    with own_link(LINK), serving(engine, dirs, metrics_bind_addr=PORT) as served:
        pod = pod_config("recorded")
        sandbox = served.cri.run(pod)
        served.cri.start(served.cri.create(sandbox, container_config("c", image=images.busybox), pod=pod))
        series = recorded()
        served.clear()

    assert any("pydockershim_cni_run_seconds_count" in each["series"] for each in series)
    check_alerts(promtool, rules, series, firing=[])


@pytest.fixture
def without_docker(node: Node) -> Iterator[Server]:
    dirs = make_node_dirs(node, new_home("without-docker"))
    settings = {
        "docker-endpoint": dirs.state.with_name("no-docker.sock"),
        "root-directory": dirs.state,
        "cni-conf-dir": dirs.cni_conf,
        "metrics-bind-addr": PORT,
    }
    server = Server(settings, socket=dirs.socket, log=dirs.state.with_name("server.log"))
    server.start()
    yield server
    server.stop()


@pytest.mark.usefixtures("without_docker")
def test_a_node_without_docker_has_one_alert(promtool: Path, rules: Path) -> None:
    check_alerts(promtool, rules, recorded(), firing=["PydockershimDockerUnreachable"])
