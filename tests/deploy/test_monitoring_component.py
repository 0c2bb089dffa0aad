"""The monitoring component builds and matches the code, and Grafana can load the dashboard."""

import itertools
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.components.monitoring.generate import generated_files
from service.metrics import LATENCY_S, PROCESS_SERIES, SERIES_PER_MODEL
from tests.deploy.conftest import run_tool
from tests.deploy.monitoring import (
    FOREIGN,
    MONITORING,
    RULES,
    all_panels,
    dashboard_queries,
    known_metrics,
    metrics_in,
    read_dashboard,
    read_rules,
)

UNITS = {"short", "none", "s", "bytes", "decmbytes", "percent", "percentunit", "reqps", "ops", "celsius"}
DATASOURCE = {"const": {"type": "prometheus", "uid": "${datasource}"}}
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig", "options"],
    "properties": {
        "type": {"enum": ["timeseries", "stat", "table"]},
        "title": {"type": "string", "minLength": 3},
        "description": {"type": "string", "pattern": r"\.$"},
        "datasource": DATASOURCE,
        "gridPos": {
            "type": "object",
            "required": ["h", "w", "x", "y"],
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "legendFormat", "datasource"],
                "properties": {"refId": {"pattern": "^[A-Z]$"}, "datasource": DATASOURCE},
            },
        },
        "fieldConfig": {
            "properties": {
                "defaults": {"required": ["unit"], "properties": {"unit": {"enum": sorted(UNITS)}}},
                "overrides": {"const": []},
            }
        },
    },
}


def test_generated_files_are_up_to_date() -> None:
    for path, content in generated_files().items():
        assert path.read_text() == content, f"{path}: run python -m tests.check_generated --write"


def test_prometheus_rule_has_the_groups_of_the_rules_file() -> None:
    rule = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


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


def test_pod_monitor_has_only_fields_of_the_operator() -> None:
    """The API server would silently drop a misspelled field."""
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert set(monitor["spec"]) == {"jobLabel", "sampleLimit", "selector", "podMetricsEndpoints"}
    assert set(endpoint) == {"port", "path", "interval", "scrapeTimeout", "relabelings"}
    assert all(set(relabeling) == {"action", "regex"} for relabeling in endpoint["relabelings"])


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


def test_dashboard_has_the_rows_and_variables() -> None:
    dashboard = read_dashboard()
    assert dashboard["schemaVersion"] >= 39
    assert [panel["title"].split(" ")[0] for panel in dashboard["panels"] if panel["type"] == "row"] == [
        "Service", "Traffic", "Queue,", "Replicas", "GPU",
    ]  # fmt: skip
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "namespace", "pod"]


@pytest.mark.parametrize("panel", all_panels(), ids=lambda panel: panel["title"])
def test_panel_has_unit_description_and_legends(panel: dict[str, Any]) -> None:
    jsonschema.validate(panel, PANEL)
    assert all(target["legendFormat"] or panel["type"] == "table" for target in panel["targets"])
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)


@pytest.mark.parametrize("panel", all_panels(), ids=lambda panel: panel["title"])
def test_panel_legend_uses_labels_of_its_query(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            grouped = re.findall(r" by \(([^)]*)\)", target["expr"])
            assert any(label in names.split(", ") for names in grouped) or label in ("pod", "gpu")


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    rows = [panel for panel in read_dashboard()["panels"] if panel["type"] == "row"]
    identifiers = [panel["id"] for panel in (*rows, *all_panels())]
    assert len(set(identifiers)) == len(identifiers)
    cells = [cell for panel in (*rows, *all_panels()) for cell in grid_cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def grid_cells(position: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(position["x"], position["x"] + position["w"])
    return list(itertools.product(columns, range(position["y"], position["y"] + position["h"])))


def test_latency_objective_is_a_bucket_and_in_one_rule() -> None:
    """Overlays patch the rule at this path (deploy/runbook.md)."""
    rules = [rule for rule in read_rules() if 'le="' in rule.expression]
    assert [rule.name for rule in rules] == ["namespace:attendant_slow_requests:rate5m"]
    position = [rule["record"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]].index(rules[0].name)
    assert f"/spec/groups/0/rules/{position}/expr" in (MONITORING.parents[1] / "runbook.md").read_text()
    assert {float(limit) for limit in re.findall(r'le="([\d.]+)"', rules[0].expression)} <= set(LATENCY_S)
