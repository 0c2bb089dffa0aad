"""A real Prometheus scrapes a server under a known load; rules and dashboard must work on the result."""

import math
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.certificates import Identity
from tests.conftest import RunningServer, start_server, stop_server
from tests.deploy.conftest import find_tool
from tests.deploy.known_load import KnownLoad
from tests.deploy.monitoring import (
    FOREIGN,
    all_panels,
    dashboard_queries,
    is_foreign,
    metrics_in,
    read_rules,
    records,
)
from tests.deploy.prometheus import Prometheus, run_prometheus, substitute
from tests.keys import named_key

pytestmark = pytest.mark.slow

LOAD_S = 4
PATIENCE_S = 30


@dataclass
class Monitored:
    """Prometheus, the server it scrapes, and the completed load."""

    prometheus: Prometheus
    server: RunningServer
    load: KnownLoad
    results: dict[str, list[tuple[dict[str, str], float]]]
    """Results of the dashboard queries and of the recorded series under load."""
    ca: Path
    """PEM file with the CA of the server."""


@pytest.fixture(scope="module")
def monitored(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    folder = tmp_path_factory.mktemp("prometheus")
    ca, cert, key, keys = (folder / name for name in ("ca.crt", "tls.crt", "tls.key", "keys"))
    authority = Identity.make_ca("ca")
    identity = authority.issue("localhost")
    for path, content in ((ca, authority.pem), (cert, identity.pem), (key, identity.key_pem)):
        path.write_bytes(content)
    keys.write_text(named_key("search", "key"))
    server = start_server(
        model_dir=default_artifact, max_queue_tokens=1024, tls_cert_file=cert, tls_key_file=key, api_keys_file=keys
    )
    try:
        with run_prometheus(server, folder, ca) as prometheus:
            wait_for(lambda: [value for _, value in prometheus.query("up")] == [1])
            queries = {*map(substitute, dashboard_queries()), *(rule.name for rule in records())}
            with KnownLoad(server, ca, "key") as load:
                wait_for(lambda: load.sufficient)
                time.sleep(LOAD_S)
                results = run_queries(prometheus, {query for query in queries if not is_foreign(query)})
            yield Monitored(prometheus, server, load, results, ca)
    finally:
        stop_server(server)


def run_queries(prometheus: Prometheus, queries: set[str]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the results, repeating queries that have no value yet: a busy machine delays scrapes."""
    results = {query: prometheus.query(query) for query in queries}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not all(map(has_numbers, results.values())):
        time.sleep(1)
        results |= {query: prometheus.query(query) for query, result in results.items() if not has_numbers(result)}
    return results


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; Prometheus lags behind by a scrape and an evaluation."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_target_is_up_with_the_labels_of_the_rules(monitored: Monitored) -> None:
    wait_for(lambda: [value for _, value in monitored.prometheus.query("up")] == [1])
    ((labels, _),) = monitored.prometheus.query("up")
    assert (labels["job"], labels["namespace"], labels["pod"]) == ("attendant", "attendant", "attendant-0")


def test_metric_labels_survive_the_labels_of_the_target(monitored: Monitored) -> None:
    """The operator adds an "endpoint" label, and metrics have one, too."""
    series = monitored.prometheus.query("attendant_requests_total")
    assert {"/v1/encode", "/v1/attend"} <= {labels["endpoint"] for labels, _ in series}
    assert not [labels for labels, _ in series if any(name.startswith("exported_") for name in labels)]


def test_scraped_responses_match_the_clients(monitored: Monitored) -> None:
    query = "attendant_requests_total > 0"

    def scraped() -> dict[tuple[str, str, str], float]:
        return {
            (labels["api"], labels["endpoint"].rsplit("/", 1)[-1], labels["code"]): value
            for labels, value in monitored.prometheus.query(query)
        }

    wait_for(lambda: scraped() == monitored.load.responses)
    assert len(monitored.load.responses) >= 10


def test_scraped_rejections_match_the_clients(monitored: Monitored) -> None:
    def rejected(reason: str) -> float:
        ((_, value),) = monitored.prometheus.query(f'sum(attendant_rejected_requests_total{{reason="{reason}"}})')
        return value

    load = monitored.load
    wait_for(lambda: rejected("invalid") == load.count("422", "400", "404", "INVALID_ARGUMENT"))
    wait_for(lambda: rejected("queue_full") == load.count("429", "RESOURCE_EXHAUSTED"))
    assert load.count("429", "RESOURCE_EXHAUSTED") >= 3
    assert rejected("draining") == 0


def test_both_lanes_and_truncation_are_counted(monitored: Monitored) -> None:
    load = monitored.load

    def requests(lane: str) -> float:
        query = f'sum(attendant_stage_duration_seconds_count{{stage="postprocess", lane="{lane}"}})'
        ((_, value),) = monitored.prometheus.query(query)
        return value

    explained = load.responses["rest", "attend", "200"]
    assert explained >= 3
    wait_for(lambda: requests("explain") >= explained)
    assert requests("fast") >= load.responses["openai", "embeddings", "200"]
    ((_, truncated),) = monitored.prometheus.query("sum(attendant_truncated_inputs_total)")
    assert truncated >= 3


def test_every_metric_of_rules_and_dashboard_exists(monitored: Monitored) -> None:
    expressions = [*dashboard_queries(), *(rule.expression for rule in read_rules())]
    used = set().union(*map(metrics_in, expressions))
    assert {name for name in used if not name.startswith(FOREIGN)} <= monitored.prometheus.metric_names()


def test_every_rule_is_healthy(monitored: Monitored) -> None:
    groups = monitored.prometheus.get("rules")["groups"]
    rules = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(rules) == {rule.name for rule in read_rules()}
    assert set(rules.values()) == {"ok"}


@pytest.mark.parametrize("record", [rule.name for rule in records()])
def test_recorded_series_has_values_under_load(monitored: Monitored, record: str) -> None:
    assert has_numbers(monitored.results[record])


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(target["expr"], id=f"{panel['title']}: {target['legendFormat']}")
        for panel in all_panels()
        for target in panel["targets"]
        if not is_foreign(target["expr"])
    ],
)
def test_dashboard_query_has_values_under_load(monitored: Monitored, query: str) -> None:
    assert has_numbers(monitored.results[substitute(query)])


def has_numbers(result: list[tuple[dict[str, str], float]]) -> bool:
    return any(not math.isnan(value) for _, value in result)


def test_variables_of_the_dashboard_have_values(monitored: Monitored) -> None:
    for label, value in (("namespace", "attendant"), ("pod", "attendant-0")):
        assert monitored.prometheus.get(f"label/{label}/values", **{"match[]": "attendant_ready"}) == [value]


def test_metrics_pass_promtool_without_remarks(monitored: Monitored) -> None:
    text = httpx.get(monitored.server.admin + "/metrics", verify=ssl.create_default_context(cafile=monitored.ca)).text
    command = [find_tool("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_samples_stay_far_below_the_limit_of_a_scrape(monitored: Monitored) -> None:
    """The server of one model has used few of its routes; the limit counts eight models that have used all."""
    ((_, samples),) = monitored.prometheus.query("scrape_samples_scraped")
    assert samples <= 2000
