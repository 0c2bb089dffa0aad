"""The rules, the dashboard and the PodMonitor, parsed for the monitoring tests."""

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from service.metrics import Metrics
from tests.deploy.conftest import DEPLOY

MONITORING = DEPLOY / "components" / "monitoring"
PROMETHEUS_RULE = MONITORING / "prometheusrule.yaml"
DASHBOARD = MONITORING / "dashboard.json"
FOREIGN = ("kube_", "container_", "DCGM_")
"""Metric prefixes of kube-state-metrics, cAdvisor and the DCGM exporter."""
PROCESS = {
    "up", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "process_max_fds",
}  # fmt: skip
"""Metrics that come from Prometheus and its client library."""
METRIC = re.compile(r"\b(?:[a-z_]+:)?(?:attendant|kube|container|process|DCGM)_[A-Za-z0-9_]+(?::[a-z0-9_]+)?|\bup\b")


@dataclass(frozen=True)
class Rule:
    """A recording or alert rule; `expression` is its PromQL."""

    kind: str
    name: str
    expression: str
    fields: dict[str, Any]


def rules_text() -> str:
    """Return the rules file that a PrometheusRule contains below `spec:`, as compose.yaml extracts it."""
    return PROMETHEUS_RULE.read_text().partition("\nspec:\n")[2]


@cache
def read_rules() -> tuple[Rule, ...]:
    groups = yaml.safe_load(rules_text())["groups"]
    return tuple(
        Rule(kind, rule[kind], rule["expr"], rule)
        for group in groups
        for rule in group["rules"]
        for kind in ("record", "alert")
        if kind in rule
    )


def alerts() -> list[Rule]:
    return [rule for rule in read_rules() if rule.kind == "alert"]


def records() -> list[Rule]:
    return [rule for rule in read_rules() if rule.kind == "record"]


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def all_panels() -> list[dict[str, Any]]:
    """Return all dashboard panels, including those in collapsed rows, but not the rows."""
    panels = read_dashboard()["panels"]
    inside = [panel for row in panels if row["type"] == "row" for panel in row["panels"]]
    return [*(panel for panel in panels if panel["type"] != "row"), *inside]


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in all_panels() for target in panel["targets"]]


def metrics_in(text: str) -> set[str]:
    """Return the metrics and recorded series named in PromQL or prose."""
    return set(METRIC.findall(text))


def is_foreign(expression: str) -> bool:
    """Return whether an expression uses another exporter's metrics."""
    return any(name.startswith(FOREIGN) for name in metrics_in(expression))


@cache
def known_metrics() -> frozenset[str]:
    """Return all series that the server exposes or the rules record."""
    metrics = Metrics(CollectorRegistry())
    names = {rule.name for rule in records()} | PROCESS
    for family in metrics.registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return frozenset(names)
