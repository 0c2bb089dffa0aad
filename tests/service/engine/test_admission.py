"""Admission: estimated costs and queue times, their limits, and the wait for the event loop or a thread."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from attendant_client.types import CompareRequest, EncodeRequest, Input, Occurrence
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Manifest
from service.callers import Caller
from service.engine.engine import PREPARATION_THREADS
from service.engine.scheduling import INLINE_COST, LOOP_TURNS, UNIT_S, Admission, HostQueue, Speed
from service.errors import DeadlineExceeded, QueueFull
from service.operations.compare import compare_cost
from service.operations.encode import build_results, encode_cost
from service.operations.inputs import count_characters, describe_cost, estimate_tokens
from tests.service.conftest import GOLDEN, ServiceHarness, encode, encode_request, open_harness
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


# Requests that wait for the event loop or a preparation thread: estimates, and rejections over the limit.

LARGE = INLINE_COST + 1
TURN_S = 30.0
"""A turn of the event loop after which no request is admitted for minutes."""


def test_idle_process_has_no_wait() -> None:
    assert HostQueue(2).wait_s() == 0


class LoopClock:
    """A clock in place of time.perf_counter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("service.engine.scheduling.time.perf_counter", lambda: self.now)

    def turn(self, host: HostQueue, seconds: float) -> None:
        self.now += seconds
        host.turns.observe(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


def test_wait_falls_with_the_time_since_the_last_of_two_long_turns(clock: LoopClock) -> None:
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


def test_one_pause_does_not_count_whoever_measures_it(clock: LoopClock) -> None:
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


def test_wait_for_a_thread_follows_the_measured_speed(clock: LoopClock) -> None:
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


# Estimated request cost: small requests are prepared on the event loop, others in a thread.

ALL_OUTPUTS = ("pooled", "tokens", "words", "static")
ALL_LAYERS = tuple(range(7))
SENTENCE = "He sat down on the bank of the river and watched the water flow by, as he had done every summer."


def cost(request: EncodeRequest, manifest: Manifest, prompt_length: int) -> int:
    return encode_cost(request, manifest, prompt_length, count_characters(request.inputs))


@pytest.mark.parametrize(
    "request_",
    [
        encode_request(GOLDEN),
        encode_request(*[SENTENCE] * 12),
        encode_request(GOLDEN, outputs=("tokens", "words"), layers=(-1,)),
        encode_request("word " * 40, outputs=("words",)),
    ],
)
def test_small_requests_are_prepared_on_the_event_loop(request_: EncodeRequest, manifest: Manifest) -> None:
    assert cost(request_, manifest, 0) <= INLINE_COST


@pytest.mark.parametrize(
    ("texts", "fields", "prompt_length"),
    [
        (["a"] * 2048, {}, 0),
        (["a"] * 256, {"outputs": ALL_OUTPUTS}, 0),
        (["a"] * 16, {"outputs": ALL_OUTPUTS, "layers": ALL_LAYERS}, 0),
        (["word " * 250], {"outputs": ("tokens", "words"), "layers": ALL_LAYERS, "layer_reduce": "mean"}, 0),
        (["word " * 2000], {}, 0),
        (["a"] * 64, {}, 200),
        ([Input("word " * 250, spans=((0, 4),) * 1024)], {"outputs": ("spans",)}, 0),
    ],
)
def test_requests_over_one_millisecond_are_prepared_in_a_thread(
    manifest: Manifest, texts: list[Any], fields: dict[str, Any], prompt_length: int
) -> None:
    request = encode_request(*texts, **({"layers": (-1,)} | fields))
    assert cost(request, manifest, prompt_length) > INLINE_COST


def test_cost_of_listing_tokens_and_of_comparing_words_counts_items() -> None:
    inputs = encode_request(*["a"] * 64).inputs
    assert describe_cost(inputs) > INLINE_COST > describe_cost(inputs[:4])
    occurrences = tuple(Occurrence(GOLDEN, word_index=1) for _ in range(64))
    assert compare_cost(CompareRequest(occurrences), list(inputs[:1]), 7) > INLINE_COST
    assert compare_cost(CompareRequest(occurrences[:4]), list(inputs[:1]), 7) < INLINE_COST


async def test_results_of_many_inputs_are_built_in_a_thread(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, build = [], build_results

    def record_thread(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return build(*arguments)

    monkeypatch.setattr("service.operations.encode.build_results", record_thread)
    await encode(harness.engine, "a")
    await encode(harness.engine, *["a"] * 256)
    assert [thread is threading.current_thread() for thread in threads] == [True, False]
