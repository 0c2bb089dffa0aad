"""The monitoring component builds, and its rules and dashboard use metrics that exist."""

import json
import re

import pytest
import yaml

from service.metrics import LATENCY_S, PROCESS_SERIES, SERIES_PER_MODEL
from tests.deploy.conftest import run_tool
from tests.deploy.monitoring import (
    FOREIGN,
    MONITORING,
    dashboard_queries,
    known_metrics,
    metrics_in,
    read_dashboard,
    read_rules,
    rules_text,
)


def test_component_builds_with_dashboard_and_objects() -> None:
    built = run_tool("kubectl", "kustomize", MONITORING)
    assert built.returncode == 0, built.stderr
    objects = {item["kind"]: item for item in yaml.safe_load_all(built.stdout)}
    assert set(objects) == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    dashboard = objects["ConfigMap"]
    assert dashboard["metadata"]["name"] == "attendant-dashboard"
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["attendant.json"]) == read_dashboard()
    assert len(built.stdout) < 262_144  # limit of the annotation that kubectl apply writes


def test_pod_monitor_selects_the_admin_port_of_the_pods() -> None:
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"] == {"app.kubernetes.io/name": "attendant"}
    assert monitor["sampleLimit"] >= 8 * SERIES_PER_MODEL + PROCESS_SERIES
    assert (endpoint["port"], endpoint["path"]) == ("admin", "/metrics")
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("15s", "10s")
    assert {"action": "labeldrop", "regex": "endpoint"} in endpoint["relabelings"]


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule.expression for rule in read_rules())])
def test_query_uses_metrics_that_exist(query: str) -> None:
    names = metrics_in(query)
    assert names
    assert {name for name in names if not name.startswith(FOREIGN)} <= known_metrics()


def test_dashboard_and_rules_use_nearly_every_metric() -> None:
    """Nobody sees a metric without a panel or a rule."""
    used = set().union(*(metrics_in(query) for query in (*dashboard_queries(), *(r.expression for r in read_rules()))))
    stems = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in used}
    assert {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in known_metrics()} - stems == set()


def test_latency_objective_is_a_bucket_and_in_one_rule() -> None:
    """Overlays patch the rule at this path (deploy/runbook.md)."""
    rules = [rule for rule in read_rules() if 'le="' in rule.expression]
    assert [rule.name for rule in rules] == ["namespace:attendant_slow_requests:rate5m"]
    position = [rule["record"] for rule in yaml.safe_load(rules_text())["groups"][0]["rules"]].index(rules[0].name)
    assert f"/spec/groups/0/rules/{position}/expr" in (MONITORING.parents[1] / "runbook.md").read_text()
    assert {float(limit) for limit in re.findall(r'le="([\d.]+)"', rules[0].expression)} <= set(LATENCY_S)
