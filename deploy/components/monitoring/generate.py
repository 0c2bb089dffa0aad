"""Generated files in this folder. `python -m tests.check_generated` compares them with their sources."""

import textwrap
from pathlib import Path

from deploy.components.monitoring.dashboard.grafana import render
from deploy.components.monitoring.dashboard.replica_rows import GPU, QUEUE, REPLICAS
from deploy.components.monitoring.dashboard.request_rows import OBJECTIVES, TRAFFIC

FOLDER = Path(__file__).parent
RULES = FOLDER / "rules.yaml"
HEADER = """\
# Generated from rules.yaml by `python -m tests.check_generated --write`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: attendant
  namespace: attendant
  labels:
    app.kubernetes.io/name: attendant
spec:
"""


def render_prometheus_rule() -> str:
    """Return a PrometheusRule with the groups in rules.yaml.

    Its `spec` has the format of a rules file, so the text only needs indentation.
    """
    rules = RULES.read_text()
    return HEADER + textwrap.indent(rules[rules.index("groups:") :], "  ")


def render_dashboard() -> str:
    return render(
        "Attendant",
        "attendant",
        "Service level, traffic, queues, replicas and GPUs of Attendant.",
        (OBJECTIVES, TRAFFIC, QUEUE, REPLICAS, GPU),
    )


def generated_files() -> dict[Path, str]:
    """Return the expected content of every generated file in this folder."""
    return {
        FOLDER / "prometheusrule.yaml": render_prometheus_rule(),
        FOLDER / "dashboard.json": render_dashboard(),
    }
