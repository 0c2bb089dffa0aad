"""Means between two readings of the server's own metrics."""

from prometheus_client import CollectorRegistry, generate_latest

from service.metrics import STAGES as SERVED
from service.metrics import Metrics
from tests.bench.stages import STAGES, Reading


def test_means_are_of_what_happened_between_two_readings_in_the_fast_lane() -> None:
    metrics = Metrics(CollectorRegistry())
    for lane in ("fast", "explain"):
        metrics.create_lane(lane)
    queue = metrics.stage_seconds.labels("queue", "fast")
    queue.observe(9.0)
    before = Reading.of(generate_latest(metrics.registry).decode())
    queue.observe(0.010)
    queue.observe(0.030)
    metrics.stage_seconds.labels("inference", "explain").observe(5.0)
    found = Reading.of(generate_latest(metrics.registry).decode()).means_since(before)
    assert set(found) == {"queue"}
    assert abs(found["queue"] - 20.0) < 1e-6


def test_every_stage_of_the_server_is_read() -> None:
    assert set(STAGES) == set(SERVED)
