"""compose.yaml matches the code and the shipped rules, and its load runs against a server."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose import load
from service.config import PREFIX, Settings
from tests.certificates import Identity
from tests.conftest import ROOT, RunningServer, start_server, stop_server
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.monitoring import DASHBOARD, MONITORING, PROMETHEUS_RULE, rules_text
from tests.deploy.replicas import free_ports

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
FOLDER = DEPLOY / "compose"
TLS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "tls.yaml").read_text())["services"]
OPTIONS = Settings()


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_restricted_and_local_and_its_files_exist(name: str) -> None:
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for mount, _, target in (volume.partition(":") for volume in service.get("volumes", []) if volume.startswith(".")):
        assert (ROOT / mount).exists()
        assert target.endswith(":ro")


@pytest.mark.parametrize("added", [(), ("--file", FOLDER / "tls.yaml")])
def test_files_are_valid_for_docker_compose(added: tuple[str, ...]) -> None:
    checked = run_tool("docker-compose", "--file", ROOT / "compose.yaml", *added, "config", "--quiet")
    assert checked.returncode == 0, checked.stderr


def test_tls_file_names_options_and_mounted_files() -> None:
    variables = TLS["attendant"]["environment"]
    options = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert set(variables) <= options
    (mount,) = TLS["attendant"]["volumes"]
    folder = mount.split(":")[1]
    assert all(path.startswith(f"{folder}/") for path in variables.values())
    assert TLS["load"]["environment"]["SSL_CERT_FILE"].startswith(f"{folder}/")
    sources = [mount.split(":")[0] for mount in TLS["prometheus"]["volumes"] if "certs" not in mount]
    assert sources == ["./deploy/compose/prometheus-tls.yaml"]


def test_prometheus_config_with_tls_differs_in_the_scheme_only() -> None:
    plain, tls = (yaml.safe_load((FOLDER / name).read_text()) for name in ("prometheus.yaml", "prometheus-tls.yaml"))
    (job,) = tls["scrape_configs"]
    assert (job.pop("scheme"), set(job.pop("tls_config"))) == ("https", {"ca_file"})
    assert tls == plain


def test_ports_are_the_defaults_of_the_options() -> None:
    ports = [port.removeprefix("127.0.0.1:") for port in SERVICES["attendant"]["ports"]]
    defaults = (OPTIONS.rest_port, OPTIONS.grpc_port, OPTIONS.admin_port)
    assert ports == [f"{port}:{port}" for port in defaults]
    (command,) = (part for part in SERVICES["load"]["command"] if part.startswith("--url="))
    assert command == f"--url=http://attendant:{OPTIONS.rest_port}"


def test_environment_has_valid_options() -> None:
    environment = SERVICES["attendant"]["environment"]
    settings = Settings(**{name.removeprefix(PREFIX).lower(): value for name, value in environment.items()})
    grace_ms = 1000 * int(SERVICES["attendant"]["stop_grace_period"].removesuffix("s"))
    assert settings.drain_timeout_ms < grace_ms


def test_prometheus_and_grafana_mount_the_shipped_rules_and_dashboard() -> None:
    mounts = dict(volume.split(":")[:2] for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"])
    assert mounts[f"./{PROMETHEUS_RULE.relative_to(ROOT)}"] == "/etc/prometheus/prometheusrule.yaml"
    dashboards = yaml.safe_load((FOLDER / "grafana" / "dashboards" / "attendant.yaml").read_text())
    (provider,) = dashboards["providers"]
    assert mounts[f"./{DASHBOARD.relative_to(ROOT)}"].startswith(provider["options"]["path"] + "/")


def test_prometheus_reads_the_rules_that_its_entrypoint_extracts(tmp_path: Path) -> None:
    entrypoint, command = SERVICES["prometheus"]["entrypoint"], SERVICES["prometheus"]["command"]
    extract = entrypoint[2].partition(" && exec prometheus")[0]
    extract = extract.replace("/etc/prometheus/prometheusrule.yaml", str(PROMETHEUS_RULE))
    subprocess.run(["sh", "-c", extract.replace("/prometheus/rules.yaml", str(tmp_path / "rules.yaml"))], check=True)
    assert (tmp_path / "rules.yaml").read_text() == rules_text()
    config = (FOLDER / "prometheus.yaml").read_text()
    assert "--config.file=/etc/prometheus/prometheus.yml" in command
    (tmp_path / "prometheus.yaml").write_text(config.replace("/prometheus/rules.yaml", "rules.yaml"))
    checked = run_tool("promtool", "check", "config", tmp_path / "prometheus.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_config_scrapes_like_the_pod_monitor() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (target,) = job["static_configs"]
    assert job["job_name"] == monitor["selector"]["matchLabels"][monitor["jobLabel"]]
    assert job["sample_limit"] == monitor["sampleLimit"]
    assert config["global"]["scrape_interval"] == endpoint["interval"]
    assert config["global"]["scrape_timeout"] == endpoint["scrapeTimeout"]
    assert target["targets"] == [f"attendant:{OPTIONS.admin_port}"]
    assert set(target["labels"]) == {"namespace", "pod"}


def test_data_source_is_the_prometheus_of_the_compose_file() -> None:
    sources = yaml.safe_load((FOLDER / "grafana" / "datasources" / "prometheus.yaml").read_text())
    (source,) = sources["datasources"]
    ports = [port.rsplit(":", 1)[-1] for port in SERVICES["prometheus"]["ports"]]
    assert source["url"] == f"http://prometheus:{ports[0]}"
    assert source["isDefault"]


@pytest.mark.parametrize(("path", "status"), [("/readyz", 0), ("/nothing", 1)])
def test_health_check_follows_the_status_of_the_probe(server: RunningServer, path: str, status: int) -> None:
    kind, python, *arguments = SERVICES["attendant"]["healthcheck"]["test"]
    assert (kind, python) == ("CMD", "python")
    address = f"http://127.0.0.1:{OPTIONS.admin_port}"
    assert f"{address}/readyz" in arguments[-1]
    arguments[-1] = arguments[-1].replace(address, server.admin).replace("/readyz", path)
    checked = subprocess.run([sys.executable, *arguments], capture_output=True, check=False, timeout=30)
    assert checked.returncode == status


def test_load_sends_valid_requests_at_a_limited_rate(server: RunningServer) -> None:
    command = [sys.executable, "-I", str(FOLDER / "load.py"), f"--url={server.rest}", "--rate=20", "--seconds=3"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 0, finished.stderr
    sent, failed = map(int, re.findall(r"\d+", finished.stdout.splitlines()[-1]))
    assert failed == 0
    assert 10 <= sent <= 61  # fewer on a busy machine


def test_load_counts_requests_that_fail(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "calls", lambda model: iter([("GET", f"/v1/models/{model}", None), ("GET", "/x", None)]))
    assert load.run(server.rest, rate=100, seconds=0) == 1


def test_load_and_health_check_work_with_tls(tiny_artifact: Path, tmp_path: Path) -> None:
    ca = Identity.make_ca("server CA")
    identity = ca.issue("server")
    for name, content in (("ca", ca.pem), ("cert", identity.pem), ("key", identity.key_pem)):
        (tmp_path / name).write_bytes(content)
    server = start_server(model_dir=tiny_artifact, tls_cert_file=tmp_path / "cert", tls_key_file=tmp_path / "key")
    try:
        _, _, *arguments = TLS["attendant"]["healthcheck"]["test"]
        arguments[-1] = arguments[-1].replace(f"https://127.0.0.1:{OPTIONS.admin_port}", server.admin)
        assert server.admin in arguments[-1]
        assert subprocess.run([sys.executable, *arguments], check=False, timeout=30).returncode == 0
        command = [sys.executable, "-I", str(FOLDER / "load.py"), f"--url={server.rest}", "--rate=20", "--seconds=1"]
        # -I ignores the variables of Python, and SSL_CERT_FILE belongs to OpenSSL.
        environment = {"SSL_CERT_FILE": str(tmp_path / "ca")}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert finished.returncode == 0, finished.stderr
    finally:
        stop_server(server)


def test_load_survives_a_lost_connection() -> None:
    (port,) = free_ports(1)
    with contextlib.closing(load.connect(f"http://127.0.0.1:{port}")) as connection:
        assert load.send(connection, "GET", "/v1/model", None) == 0
