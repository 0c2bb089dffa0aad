"""Requests that wait for the event loop or a preparation thread: estimates, and rejections over the limit."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from service.engine.engine import PREPARATION_THREADS
from service.engine.scheduling import INLINE_COST, LOOP_TURNS, UNIT_S, HostQueue
from service.errors import QueueFull
from tests.service.conftest import ServiceHarness, open_harness
from tests.service.engine.test_admission import admission

LARGE = INLINE_COST + 1
TURN_S = 30.0
"""A turn of the event loop after which no request is admitted for minutes."""


def test_idle_process_has_no_wait() -> None:
    assert HostQueue(2).wait_s() == 0


class Clock:
    """A clock in place of time.perf_counter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("service.engine.scheduling.time.perf_counter", lambda: self.now)

    def turn(self, host: HostQueue, seconds: float) -> None:
        self.now += seconds
        host.turns.observe(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_wait_falls_with_the_time_since_the_last_of_two_long_turns(clock: Clock) -> None:
    """An idle server accepts requests again, and the estimate is right for those that come meanwhile."""
    host = HostQueue(2)
    clock.turn(host, 0.6)
    assert host.wait_s() == 0
    clock.turn(host, 0.6)
    assert host.wait_s() == pytest.approx(LOOP_TURNS * 0.6)
    clock.now += 0.4
    assert host.wait_s() == pytest.approx(LOOP_TURNS * 0.6 - 0.4)
    clock.now += 2.1
    assert host.wait_s() == 0


def test_one_pause_does_not_count_whoever_measures_it(clock: Clock) -> None:
    host = HostQueue(2)
    clock.turn(host, TURN_S)
    host.turns.observe(TURN_S)  # by the other lane
    assert host.wait_s() == 0
    clock.now += 3600
    clock.turn(host, TURN_S)  # another pause, long after
    assert host.wait_s() == 0


def test_cancelled_work_does_not_count_as_speed() -> None:
    host, cost = HostQueue(2), round(3 / UNIT_S)
    with host.running(cost), host.running(cost):
        for _ in range(38):
            with pytest.raises(asyncio.CancelledError), host.running(cost):
                raise asyncio.CancelledError
        assert host.wait_s() == pytest.approx(3)


@pytest.mark.parametrize("seconds", [1e-6, 0.1])
def test_empty_queue_accepts_any_request_after_a_short_turn(seconds: float) -> None:
    limits = admission(rate=1000, max_tokens=512, quantum=480)
    limits.check(limits.cost([5000]), math.inf, host_s=seconds)
    with pytest.raises(QueueFull, match="Server busy"):
        limits.check(limits.cost([5000]), math.inf, host_s=30)


def make_late(host: HostQueue) -> None:
    """Let a host have measured two long turns just now."""
    host.turns._previous_s = host.turns._turn_s = TURN_S
    host.turns._measured = time.perf_counter()


@pytest.mark.parametrize("pending", range(5))
def test_only_large_requests_wait_for_a_thread(pending: int) -> None:
    host, cost = HostQueue(2), 10 * LARGE
    with ExitStack() as stack:
        for _ in range(pending):
            stack.enter_context(host.running(cost))
        assert host.wait_s(LARGE) == pytest.approx(pending * cost * UNIT_S / 2 if pending >= 2 else 0)
        assert host.wait_s(INLINE_COST) == 0
    assert host.wait_s() == 0


def test_wait_for_a_thread_follows_the_measured_speed(clock: Clock) -> None:
    """Work takes a tenth of its estimated time."""
    host, cost = HostQueue(1), round(0.1 / UNIT_S)
    with ExitStack() as stack:
        for _ in range(1000):
            stack.callback(lambda: setattr(clock, "now", clock.now + 0.01))
            stack.enter_context(host.running(cost))
    with host.running(cost), host.running(cost):
        assert host.wait_s() == pytest.approx(0.02, rel=0.05)


@pytest.fixture
def fill_threads(harness: ServiceHarness) -> Callable[[int], tuple[threading.Event, list[asyncio.Task[bool]]]]:
    """A function that queues work for the preparation threads; the event ends it."""

    def fill(jobs: int) -> tuple[threading.Event, list[asyncio.Task[bool]]]:
        leave, deadline, cost = threading.Event(), time.monotonic() + 60, round(3 / UNIT_S)
        run = harness.engine.run
        return leave, [asyncio.create_task(run(cost, deadline, leave.wait, 60)) for _ in range(jobs)]

    return fill


async def test_requests_that_would_wait_for_a_thread_are_rejected(
    harness: ServiceHarness, fill_threads: Callable[[int], tuple[threading.Event, list[asyncio.Task[bool]]]]
) -> None:
    texts = ["money bank grows " * 10] * 40
    large, small = {"inputs": texts}, {"inputs": "bank"}
    leave, jobs = fill_threads(PREPARATION_THREADS)
    await asyncio.sleep(0)
    rejected = await harness.post("/v1/encode", large)
    assert rejected.status_code == 429, rejected.text
    assert "estimated wait 3000 ms, limit 2000 ms" in rejected.json()["error"]["message"]
    assert rejected.headers["retry-after"] == "1"
    assert (await harness.post("/v1/encode", small)).status_code == 200
    assert harness.engine.fast_lane.near_capacity
    assert harness.sample("attendant_queue_utilization", lane="fast") == pytest.approx(1.5)
    leave.set()
    await asyncio.gather(*jobs)
    assert (await harness.post("/v1/encode", large)).status_code == 200
    assert not harness.engine.fast_lane.near_capacity


@pytest.mark.parametrize("path", ["/v1/encode", "/v1/attend"])
async def test_requests_that_would_wait_for_the_loop_are_rejected(harness: ServiceHarness, path: str) -> None:
    host = harness.engine._host
    make_late(host)
    rejected = await harness.post(path, {"inputs": ["bank"]})
    assert rejected.status_code == 429, rejected.text
    assert rejected.json()["error"]["reason"] == "QUEUE_FULL"
    host.turns._turn_s = 0.0001
    assert (await harness.post(path, {"inputs": ["bank"]})).status_code == 200


async def test_turns_of_a_blocked_loop_are_measured(harness: ServiceHarness) -> None:
    """Every request is admitted, and the next one waits while the loop is blocked."""
    host = harness.engine._host
    for _ in range(2):
        request = asyncio.create_task(harness.post("/v1/encode", {"inputs": "bank"}))
        while not harness.engine.fast_lane._wake_scheduled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251  # the loop is to be blocked
        assert (await request).status_code == 200
    assert min(host.turns._previous_s, host.turns._turn_s) >= 0.05


async def test_deadline_includes_the_wait_for_the_loop(model: object) -> None:
    async with open_harness(model, max_queue_ms=600_000) as harness:  # type: ignore[arg-type]
        make_late(harness.engine._host)
        response = await harness.post("/v1/encode", {"inputs": "bank"}, **{"x-request-timeout-ms": "5000"})
        assert response.status_code == 429
        assert "Server too busy for the deadline" in response.json()["error"]["message"]
