"""Stalled batches in simulated time, and their effect on a lane's health."""

import threading

from prometheus_client import CollectorRegistry

from service.engine.lane import MIN_STALL_S, STALL_FACTOR, Watchdog
from service.metrics import Metrics
from tests.service.engine.fake_backend import FakeBackend
from tests.service.engine.lane_cases import StartLane, hold


def test_batch_stalls_after_a_multiple_of_its_expected_time() -> None:
    watchdog = Watchdog()
    watchdog.start(expected_s=2.0)
    watchdog.observe(STALL_FACTOR * 2.0)
    assert watchdog.stalled == 0
    watchdog.observe(0.1)
    assert watchdog.stalled == 1
    watchdog.stop()
    assert watchdog.stalled == 0


def test_short_batch_stalls_after_the_minimum_time() -> None:
    watchdog = Watchdog()
    watchdog.start(expected_s=0.001)
    watchdog.observe(MIN_STALL_S)
    assert watchdog.stalled == 0
    watchdog.observe(0.1)
    assert watchdog.stalled == 1


def test_batches_of_several_threads_are_counted() -> None:
    watchdog, entered, leave = Watchdog(), threading.Barrier(3), threading.Event()

    def run() -> None:
        watchdog.start(0.0)
        entered.wait(20)
        leave.wait(20)
        watchdog.stop()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait(20)
    watchdog.observe(MIN_STALL_S + 1)
    assert watchdog.stalled == 2
    leave.set()
    for thread in threads:
        thread.join()
    assert watchdog.stalled == 0


async def test_lane_with_a_stuck_worker_is_stalled_until_the_batch_returns(start_lane: StartLane) -> None:
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    lane = start_lane(backend, metrics=metrics)
    held = await hold(lane, backend)
    lane.watchdog.observe(MIN_STALL_S)
    assert not lane.stalled
    lane.watchdog.observe(1.0)
    assert lane.stalled
    labels = {"lane": "test", "model": "m"}
    assert metrics.registry.get_sample_value("attendant_stalled_batches", labels) == 1
    assert metrics.registry.get_sample_value("attendant_lane_up", labels) == 1
    backend.gate.set()
    assert await held == [10]
    await lane.drain()
    assert not lane.stalled
