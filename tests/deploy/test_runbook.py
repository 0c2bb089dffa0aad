"""The runbook has one complete entry per alert, and only mentions existing options and metrics."""

import re
from pathlib import Path

import yaml

from service.config import PREFIX, Settings
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.monitoring import FOREIGN, alerts, known_metrics, metrics_in

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
