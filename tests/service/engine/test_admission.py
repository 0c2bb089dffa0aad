"""Admission by estimated queue time: the estimate, its limits, and the measured service rate."""

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.admission import Admission, ServiceRate, estimate_tokens
from service.errors import QueueFull

NEVER = math.inf


def admission(
    *waiting: int, rate: float = 1000.0, max_queue_ms: int = 2000, max_tokens: int = 10**6, quantum: int = 1
) -> Admission:
    result = Admission(rate, max_queue_ms, max_tokens, quantum)
    for tokens in waiting:
        result.backlog.add(tokens)
    return result


def test_empty_queue_admits_any_size() -> None:
    admission(max_tokens=10).check(10**6, time.monotonic())


def test_wait_counts_large_requests_up_to_the_size_of_the_own_request() -> None:
    """Round robin processes at most 16 tokens of another request before a request of 16 tokens finishes."""
    assert admission(60_000).wait_s(16) == pytest.approx(0.016)
    assert admission(60_000, 60_000).wait_s(30_000) == pytest.approx(60)


def test_request_is_rejected_when_its_estimated_wait_exceeds_the_limit() -> None:
    full = admission(*[100] * 25)
    with pytest.raises(QueueFull, match=r"estimated wait 2500 ms, limit 2000 ms") as caught:
        full.check(100, NEVER)
    assert caught.value.retry_after_s == pytest.approx(0.5)
    full.check(20, NEVER)


def test_wait_limit_of_a_large_request_includes_its_own_time() -> None:
    """Otherwise a large request would only be accepted if the queue is almost empty."""
    admission(5000).check(4000, NEVER)


def test_request_is_rejected_when_its_deadline_is_too_close() -> None:
    with pytest.raises(QueueFull, match="Queue too long for the deadline"):
        admission(*[100] * 10).check(100, time.monotonic() + 0.5)
    admission(*[100] * 10).check(100, time.monotonic() + 60)


def test_queued_tokens_are_limited_at_any_rate() -> None:
    full = admission(*[20] * 4, 10, rate=1e9, max_tokens=100, quantum=20)
    with pytest.raises(QueueFull, match=r"90 tokens queued, 11 requested, limit 100"):
        full.check(11, NEVER)
    full.check(10, NEVER)


@given(st.integers(1, 10**6), st.integers(1, 480))
def test_large_request_never_locks_out_small_ones(large: int, small: int) -> None:
    admission(large, rate=1e9, max_tokens=262_144, quantum=480).check(small, NEVER)


@given(st.lists(st.integers(481, 10**6), min_size=1, max_size=20), st.integers(1, 480))
def test_large_requests_leave_room_for_small_ones(sizes: list[int], small: int) -> None:
    limits = admission(rate=1e9, max_tokens=262_144, quantum=480)
    admitted = 0
    for size in sizes:
        with contextlib.suppress(QueueFull):
            limits.check(size, NEVER)
            limits.backlog.add(size)
            admitted += 1
    limits.check(small, NEVER)
    assert admitted >= min(len(sizes), 3)


def test_estimated_tokens_are_at_most_the_limit_per_input() -> None:
    assert estimate_tokens([16_000] * 120, 256) == 120 * 256
    assert estimate_tokens([1] * 256, 256, prompt_tokens=4095) == 256 * 256
    assert estimate_tokens([40], 256, prompt_tokens=5) == 2 + 5 + 10


def test_utilization_is_the_wait_of_a_small_request() -> None:
    assert admission().utilization == 0
    assert admission(*[16] * 125, rate=1000).utilization == pytest.approx(1)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("service.engine.admission.time.perf_counter", lambda: self.now)


def test_rate_follows_a_saturated_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rate = Clock(monkeypatch), ServiceRate(1000)
    rate.observe(100, saturated=True)
    for _ in range(400):
        clock.now += 0.02
        rate.observe(100, saturated=True)
    assert rate.tokens_per_second == pytest.approx(5000, rel=0.05)


def test_rate_is_correct_after_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average that starts at 0 would make Retry-After ten times too long."""
    clock, rate = Clock(monkeypatch), ServiceRate(1000)
    rate.observe(100, saturated=True)
    clock.now += 0.1
    rate.observe(100, saturated=True)
    assert rate.tokens_per_second == pytest.approx(1000)


def test_rate_ignores_an_idle_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches on an idle server are slow per token and do not measure its capacity."""
    clock, rate = Clock(monkeypatch), ServiceRate(1000)
    for _ in range(100):
        clock.now += 1
        rate.observe(8, saturated=False)
    assert rate.tokens_per_second == 1000


def test_one_pause_of_the_process_changes_the_rate_little(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rate = Clock(monkeypatch), ServiceRate(5000)
    rate.observe(500, saturated=True)
    clock.now += 30
    rate.observe(500, saturated=True)
    assert rate.tokens_per_second > 0.8 * 5000


def test_rate_follows_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate must adapt within ten seconds, although each batch counts as at most four times slower than it."""
    clock, rate = Clock(monkeypatch), ServiceRate(5000)
    rate.observe(500, saturated=True)
    for _ in range(10):
        clock.now += 1
        rate.observe(500, saturated=True)
    assert rate.tokens_per_second == pytest.approx(500, rel=0.2)
