"""Rules, dashboard and runbook: they use metrics that exist, and each alert fires, stays silent and has an entry."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from service.config import PREFIX, Settings
from service.metrics import LATENCY_S, PROCESS_SERIES, SERIES_PER_MODEL
from tests.deploy.alert_cases import AVAILABLE, CASES, Case, Series
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.monitoring import (
    FOREIGN,
    MONITORING,
    alerts,
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


def test_rules_are_valid(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_text())
    checked = run_tool("promtool", "check", "rules", rules)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alert_cases_cover_every_alert() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in alerts()}


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["1m", "5m"])
def test_alerts_fire_and_stay_silent(tmp_path: Path, interval: str) -> None:
    """Cases that span hours are evaluated every 5 minutes, which takes a fifth of the time."""
    cases = [case for case in CASES if (case.minutes > 60) == (interval == "5m")]
    tests = [promtool_test(case, fires=fires) for case in cases for fires in (True, False)]
    check_with_promtool(tmp_path / "tests.yaml", interval, tests)


def test_only_lost_monitoring_fires_without_any_series(tmp_path: Path) -> None:
    """It must also fire with kube-state-metrics alone, which sees two available replicas."""
    lost = 'ALERTS{alertname="AttendantMonitoringLost", alertstate="firing", severity="page"'
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": "ALERTS",
                    "eval_time": "30m",
                    "exp_samples": [{"labels": f"{lost}{namespace}}}", "value": 1} for namespace in namespaces],
                }
            ],
        }
        for series, namespaces in (({}, [""]), ({AVAILABLE: "2x60"}, ["", ', namespace="attendant"']))
    ]
    check_with_promtool(tmp_path / "tests.yaml", "1m", tests)


def check_with_promtool(path: Path, interval: str, tests: Sequence[Mapping[str, object]]) -> None:
    """Run promtool tests. Without an order of the groups, it evaluates alerts before or after the rules they read."""
    rules = path.with_name("rules.yaml")
    rules.write_text(rules_text())
    order = [group["name"] for group in yaml.safe_load(rules_text())["groups"]]
    definition = {
        "rule_files": [str(rules)],
        "evaluation_interval": interval,
        "group_eval_order": order,
        "tests": tests,
    }
    path.write_text(yaml.safe_dump(definition))
    checked = run_tool("promtool", "test", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def promtool_test(case: Case, *, fires: bool) -> dict[str, object]:
    """Return a promtool test that compares the labels of firing alerts."""
    series: Series = case.fires if fires else case.silent
    labels = ", ".join(f'{name}="{value}"' for name, value in case.labels.items())
    firing = f'ALERTS{{alertname="{case.alert}", alertstate="firing"'
    return {
        "name": f"{case.alert} {'fires' if fires else 'stays silent'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"{firing}}}",
                "eval_time": f"{case.minutes}m",
                "exp_samples": [{"labels": f"{firing}, {labels}}}", "value": 1}] if fires else [],
            }
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_alert_texts_use_labels_that_the_alert_has(case: Case) -> None:
    (alert,) = (alert for alert in alerts() if alert.name == case.alert)
    texts = " ".join(alert.fields["annotations"].values())
    optional = set(re.findall(r"with \$labels\.(\w+)", texts))
    assert set(re.findall(r"\$labels\.(\w+)", texts)) - optional <= set(case.labels)


RUNBOOK = DEPLOY / "runbook.md"
TEXT = RUNBOOK.read_text()
ENTRIES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))
QUERIES = re.findall(r"```promql\n(.*?)\n```", TEXT, flags=re.DOTALL)


def test_runbook_has_one_entry_per_alert() -> None:
    assert list(ENTRIES) == [alert.name for alert in alerts()]


def test_options_of_the_runbook_exist() -> None:
    names = set(re.findall(rf"{PREFIX}([A-Z_]+)", TEXT))
    assert len(names) >= 10
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_metrics_of_the_runbook_exist() -> None:
    names = {name for name in metrics_in(TEXT) if not name.startswith(FOREIGN)}
    assert names <= known_metrics()


def test_queries_of_the_runbook_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"runbook:query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbook", "rules": rules}]}))
    checked = run_tool("promtool", "check", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(QUERIES) == len(ENTRIES)
