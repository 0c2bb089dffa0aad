"""A real Prometheus that scrapes a test server according to the shipped PodMonitor and rules, at short intervals."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import RunningServer
from tests.deploy.conftest import find_tool
from tests.deploy.monitoring import MONITORING, rules_text
from tests.deploy.replicas import free_ports

WINDOW = "10s"
"""Replaces every window in the rules and $__rate_interval. It covers ten scrapes."""
START_TIMEOUT_S = 30
VARIABLES = {"$namespace": "attendant", "$pod": ".*", "$__rate_interval": WINDOW}


class Prometheus:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def get(self, path: str, **parameters: str) -> Any:
        response = self._client.get(f"/api/v1/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        result = self.get("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def metric_names(self) -> set[str]:
        return set(self.get("label/__name__/values"))

    def close(self) -> None:
        self._client.close()


def substitute(expression: str) -> str:
    """Return a dashboard query with Grafana's variables filled in."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def prometheus_config(server: RunningServer, rules: Path, ca: Path) -> dict[str, Any]:
    """Return the configuration that the Prometheus operator would generate, with a loopback target."""
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    name = spec["selector"]["matchLabels"][spec["jobLabel"]]
    # The operator adds these labels to every target.
    labels = {"namespace": "attendant", "pod": "attendant-0", "container": name, "endpoint": endpoint["port"]}
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": name,
                "honor_labels": endpoint.get("honorLabels", False),
                "metrics_path": endpoint["path"],
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "sample_limit": spec["sampleLimit"],
                "scheme": "https",
                "tls_config": {"ca_file": str(ca)},
                "static_configs": [{"targets": [server.admin.removeprefix("https://")], "labels": labels}],
                "relabel_configs": [
                    {snake_case(key): value for key, value in relabeling.items()}
                    for relabeling in endpoint["relabelings"]
                ],
            }
        ],
    }


def snake_case(name: str) -> str:
    return re.sub(r"([A-Z])", lambda letter: "_" + letter[1].lower(), name)


def short_rules() -> str:
    """Return the shipped rules with short windows, short offsets and a short evaluation interval."""
    rules = re.sub(r"\[\d+[mhd]\]", f"[{WINDOW}]", rules_text())
    return re.sub(r"offset \d+[mhd]", "offset 1s", rules).replace("interval: 30s", "interval: 1s")


@contextmanager
def run_prometheus(server: RunningServer, folder: Path, ca: Path) -> Iterator[Prometheus]:
    """Run Prometheus on a free loopback port, storing its data in `folder`. `ca`: PEM file with the server's CA."""
    rules, config, log = folder / "rules.yaml", folder / "prometheus.yaml", folder / "prometheus.log"
    rules.write_text(short_rules())
    config.write_text(yaml.safe_dump(prometheus_config(server, rules, ca)))
    (port,) = free_ports(1)
    command = [
        find_tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/-/ready", log)
            yield prometheus
        finally:
            prometheus.close()
            process.terminate()
            process.wait(timeout=START_TIMEOUT_S)


def wait_until_ready(url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"prometheus did not become ready: {log.read_text()}")
