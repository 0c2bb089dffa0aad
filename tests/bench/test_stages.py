"""Mean times between two metrics readings."""

from prometheus_client import CollectorRegistry, generate_latest

from service.metrics import STAGES as SERVED
from service.metrics import Metrics
from tests.bench.stages import STAGES, Reading


def test_means_cover_the_fast_lane_between_two_readings() -> None:
    metrics = Metrics(CollectorRegistry())
    for lane in ("fast", "explain"):
        metrics.create_lane(lane, "m")
    queue = metrics.stage_seconds.labels("queue", "fast", "m")
    queue.observe(9.0)
    before = Reading.of(generate_latest(metrics.registry).decode())
    queue.observe(0.010)
    queue.observe(0.030)
    metrics.stage_seconds.labels("inference", "explain", "m").observe(5.0)
    means = Reading.of(generate_latest(metrics.registry).decode()).means_since(before)
    assert set(means) == {"queue"}
    assert abs(means["queue"] - 20.0) < 1e-6


def test_reading_covers_all_stages_of_the_server() -> None:
    assert set(STAGES) == set(SERVED)
