"""Every alert fires and stays silent in promtool, and says what to do."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.deploy.alert_cases import AVAILABLE, CASES, Case, Series
from tests.deploy.conftest import run_tool
from tests.deploy.monitoring import alerts, rules_text


def test_rules_are_valid(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_text())
    checked = run_tool("promtool", "check", "rules", rules)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alert_cases_cover_every_alert() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in alerts()}


@pytest.mark.parametrize("interval", ["1m", pytest.param("5m", marks=pytest.mark.slow)])
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
