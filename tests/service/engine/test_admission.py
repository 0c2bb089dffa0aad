"""Admission by estimated queue time: the estimate, its limits, and the measured speed."""

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.callers import Caller
from service.engine.scheduling import Admission, Speed
from service.errors import DeadlineExceeded, QueueFull
from service.operations.inputs import estimate_tokens
from tests.service.engine.fake_backend import FakeBackend

NEVER = math.inf


def admission(
    *waiting: int, rate: float = 1000.0, max_queue_ms: int = 2000, max_tokens: int = 10**6, quantum: int = 1
) -> Admission:
    """A lane on which a sequence of N tokens runs for N / `rate` seconds."""
    backend = FakeBackend(max_batch_tokens=quantum, token_seconds=1 / rate)
    result = Admission(backend, max_queue_ms, max_tokens)
    for tokens in waiting:
        result.backlog.add(result.task_cost(tokens))
    return result


def check(limits: Admission, tokens: int, deadline: float = NEVER) -> None:
    limits.check(limits.task_cost(tokens), deadline)


def wait_s(limits: Admission, tokens: int) -> float:
    return limits.wait_s(limits.task_cost(tokens))


def test_empty_queue_admits_any_size() -> None:
    check(admission(max_tokens=10), 10**6)


def test_request_that_would_run_far_beyond_its_deadline_is_rejected_at_once() -> None:
    """Whatever the queue time limit, which applies to the work ahead of a request."""
    check(admission(max_queue_ms=1), 30_000, time.monotonic() + 60)
    check(admission(), 30_000, time.monotonic() + 20)  # the estimate may be too high
    with pytest.raises(DeadlineExceeded, match=r"estimated run time 30000 ms, remaining (10000|9\d{3}) ms"):
        check(admission(), 30_000, time.monotonic() + 10)


def test_longest_task_occupies_one_stream() -> None:
    limits = Admission(FakeBackend(streams=2, max_batch_tokens=480, token_seconds=1e-3), 2000, 10**6)
    cost = limits.task_cost(8000)
    assert limits.own_s(cost, cost.us) == pytest.approx(8)
    assert limits.own_s(limits.cost([1000] * 8), limits.task_cost(1000).us) == pytest.approx(4)


def test_running_long_tasks_count_as_wait() -> None:
    limits = admission()
    cost = limits.task_cost(10)
    limits.check(cost, NEVER, cost.us, blocked_s=1.9)
    with pytest.raises(QueueFull, match="estimated wait 3000 ms") as caught:
        limits.check(cost, NEVER, cost.us, blocked_s=3.0)
    assert caught.value.retry_after_s == pytest.approx(1.0)
    long = limits.task_cost(30_000)
    limits.check(long, time.monotonic() + 70, long.us, blocked_s=30)
    with pytest.raises(QueueFull, match="Server too busy for the deadline"):
        limits.check(long, time.monotonic() + 50, long.us, blocked_s=30)


def test_wait_counts_large_requests_up_to_the_size_of_the_own_request() -> None:
    """Round robin processes at most 16 tokens of another request before a request of 16 tokens finishes."""
    assert wait_s(admission(60_000), 16) == pytest.approx(0.016)
    assert wait_s(admission(60_000, 60_000), 30_000) == pytest.approx(60)


def test_request_is_rejected_when_its_estimated_wait_exceeds_the_limit() -> None:
    full = admission(*[100] * 25)
    with pytest.raises(QueueFull, match=r"estimated wait 2500 ms, limit 2000 ms") as caught:
        check(full, 100)
    assert caught.value.retry_after_s == pytest.approx(0.5)
    check(full, 20)


def test_wait_limit_of_a_large_request_includes_its_own_time() -> None:
    """Otherwise a large request would only be accepted if the queue is almost empty."""
    check(admission(5000), 4000)


def test_request_is_rejected_when_its_deadline_is_too_close() -> None:
    with pytest.raises(QueueFull, match=r"too busy .* wait 1000 ms, run time 100 ms, remaining (500|49\d) ms"):
        check(admission(*[100] * 10), 100, time.monotonic() + 0.5)
    check(admission(*[100] * 10), 100, time.monotonic() + 60)


def test_deadline_shorter_than_the_own_run_time_is_not_lack_of_capacity() -> None:
    """The alert for shed load does not fire for it."""
    with pytest.raises(
        DeadlineExceeded, match=r"too large for the deadline \(estimated run time 100 ms, remaining \d\d "
    ):
        check(admission(10), 100, time.monotonic() + 0.09)


def test_full_queue_of_a_caller_names_its_own_tokens() -> None:
    full = admission(rate=1e9, max_tokens=100, quantum=100)
    for caller, tokens in ((Caller("other"), 20), (Caller("a"), 30)):
        full.backlog.count(full.task_cost(tokens), caller)
    full.check(full.task_cost(20), NEVER, caller=Caller("a"))
    with pytest.raises(QueueFull, match=r"full for this caller \(30 tokens queued, 21 requested, limit 50\)"):
        full.check(full.task_cost(21), NEVER, caller=Caller("a"))
    full.backlog.count(full.task_cost(40), Caller("third"))
    with pytest.raises(QueueFull, match=r"Queue full \(90 tokens queued, 11 requested, limit 100\)"):
        full.check(full.task_cost(11), NEVER, caller=Caller("a"))


def test_queued_tokens_are_limited_at_any_rate() -> None:
    full = admission(*[20] * 4, 10, rate=1e9, max_tokens=100, quantum=20)
    with pytest.raises(QueueFull, match=r"90 tokens queued, 11 requested, limit 100"):
        check(full, 11)
    check(full, 10)


@given(st.integers(1, 10**6), st.integers(1, 480))
def test_large_request_never_locks_out_small_ones(large: int, small: int) -> None:
    check(admission(large, rate=1e9, max_tokens=262_144, quantum=480), small)


@given(st.lists(st.integers(481, 10**6), min_size=1, max_size=20), st.integers(1, 480))
def test_large_requests_leave_room_for_small_ones(sizes: list[int], small: int) -> None:
    limits = admission(rate=1e9, max_tokens=262_144, quantum=480)
    admitted = 0
    for size in sizes:
        with contextlib.suppress(QueueFull):
            check(limits, size)
            limits.backlog.add(limits.task_cost(size))
            admitted += 1
    check(limits, small)
    assert admitted >= min(len(sizes), 3)


def test_estimated_tokens_are_at_most_the_limit_per_input() -> None:
    assert estimate_tokens([16_000] * 120, 256) == [256] * 120
    assert estimate_tokens([1] * 256, 256, prompt_tokens=4095) == [256] * 256
    assert estimate_tokens([40], 256, prompt_tokens=5) == [2 + 5 + 10]


def test_utilization_is_the_wait_of_a_small_request() -> None:
    assert admission().utilization(0) == 0
    assert admission(*[16] * 125, rate=1000).utilization(0) == pytest.approx(1)
    assert admission(*[16] * 125, rate=1000).utilization(1) == pytest.approx(1.5)


@given(st.lists(st.integers(1, 3000), max_size=60), st.integers(1, 3000), st.floats(0.1, 6))
def test_decisions_follow_the_estimated_wait(waiting: list[int], tokens: int, remaining_s: float) -> None:
    """The whole backlog is tried first, because its sum is known. That must not change a decision."""
    limits = admission(*waiting, quantum=480)
    wait, own = wait_s(limits, tokens), tokens / 1000
    assert limits.backlog.near or limits.utilization(0) <= 0.9
    # The margins are for the time that passes between two readings of the clock.
    if own > 2 * remaining_s + 0.01 and tokens > 480:
        with pytest.raises(DeadlineExceeded):
            check(limits, tokens, time.monotonic() + remaining_s)
    elif own > 2 * remaining_s - 0.01 and tokens > 480:
        pass  # either error, or none
    elif wait > 2 + own or wait + own > remaining_s + 0.01:
        with pytest.raises((QueueFull, DeadlineExceeded)) if waiting else contextlib.nullcontext():
            check(limits, tokens, time.monotonic() + remaining_s)
    elif wait + own < remaining_s - 0.05:
        check(limits, tokens, time.monotonic() + remaining_s)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("service.engine.scheduling.time.perf_counter", lambda: self.now)


def test_speed_follows_a_saturated_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, speed = Clock(monkeypatch), Speed(1)
    speed.observe(0.1, saturated=True)
    for _ in range(400):
        clock.now += 0.02
        speed.observe(0.1, saturated=True)
    assert speed.value == pytest.approx(5, rel=0.05)


def test_speed_is_correct_after_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average that starts at 0 would make Retry-After ten times too long."""
    clock, speed = Clock(monkeypatch), Speed(1)
    speed.observe(0.1, saturated=True)
    clock.now += 0.1
    speed.observe(0.1, saturated=True)
    assert speed.value == pytest.approx(1)


def test_speed_ignores_an_idle_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches on an idle server are slow per token and do not measure its capacity."""
    clock, speed = Clock(monkeypatch), Speed(1)
    for _ in range(100):
        clock.now += 1
        speed.observe(0.008, saturated=False)
    assert speed.value == 1


def test_one_pause_of_the_process_changes_the_speed_little(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, speed = Clock(monkeypatch), Speed(5)
    speed.observe(0.5, saturated=True)
    clock.now += 30
    speed.observe(0.5, saturated=True)
    assert speed.value > 0.8 * 5


def test_speed_follows_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate must adapt within ten seconds, although each batch counts as at most four times slower than it."""
    clock, speed = Clock(monkeypatch), Speed(5)
    speed.observe(0.5, saturated=True)
    for _ in range(10):
        clock.now += 1
        speed.observe(0.5, saturated=True)
    assert speed.value == pytest.approx(0.5, rel=0.2)
