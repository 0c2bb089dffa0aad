"""Lanes with a fake backend: batching, order, drain and close, failures, stalls, and the two kinds of lane."""

import asyncio
import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from model.artifact.packing import PaddedFill
from service.engine.lane import MIN_STALL_S, STALL_FACTOR, Lane, LaneObserver, Watchdog
from service.engine.scheduling import Admission, HostQueue
from service.engine.tasks import PooledVectors, TextVectors, gather
from service.errors import DeadlineExceeded, Internal, NonFiniteOutput, QueueFull, Unavailable
from service.metrics import Metrics
from tests.service.conftest import ServiceHarness, encode, open_harness
from tests.service.engine.fake_backend import HANG_TIMEOUT_S, FakeBackend, FakeTask
from tests.service.engine.lane_cases import FOREVER, StartLane, hold, send
from tests.shared_models import load_anew


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"attendant_{name}", {"lane": "test", "model": "m"} | labels)


async def test_idle_stream_starts_at_once(start_lane: StartLane) -> None:
    backend = FakeBackend()
    assert await send(start_lane(backend), [7]) == [70]
    assert backend.batches == [[7]]


async def test_request_without_tasks_has_no_results(start_lane: StartLane) -> None:
    """A request for static vectors has no tasks."""
    assert await send(start_lane(FakeBackend()), []) == []


async def test_batches_fill_under_load(start_lane: StartLane) -> None:
    backend = FakeBackend(max_batch_tokens=8)
    lane = start_lane(backend)
    held = await hold(lane, backend)
    waiting = [send(lane, [item], [2]) for item in range(2, 12)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    backend.gate.set()
    assert await asyncio.gather(*waiting) == [[item * 10] for item in range(2, 12)]
    assert await held == [10]
    assert sorted(map(len, backend.batches[1:])) == [2, 4, 4]


async def test_results_come_in_the_order_of_the_request(start_lane: StartLane) -> None:
    backend = FakeBackend()
    lane = start_lane(backend)
    await hold(lane, backend)
    jobs = [send(lane, [n, n + 1, n + 2, n + 3], [3, 7, 2, 8]) for n in range(20, 60, 4)]
    await asyncio.sleep(0)
    backend.gate.set()
    assert await asyncio.gather(*jobs) == [[10 * item for item in range(n, n + 4)] for n in range(20, 60, 4)]


async def test_concurrent_requests_share_a_batch(start_lane: StartLane) -> None:
    backend = FakeBackend()
    lane = start_lane(backend)
    assert await asyncio.gather(*(send(lane, [item]) for item in (1, 2, 3))) == [[10], [20], [30]]
    assert backend.batches == [[1, 2, 3]]


async def test_free_streams_share_a_request(start_lane: StartLane) -> None:
    backend = FakeBackend(streams=2, max_batch_tokens=64)
    lane = start_lane(backend)
    backend.gate.clear()
    job = send(lane, [1, 2, 3, 4])
    for _ in range(2):
        assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    backend.gate.set()
    assert await job == [10, 20, 30, 40]
    assert sorted(backend.batches) == [[1, 2], [3, 4]]


async def test_next_batch_is_prepared_only_if_it_is_full(start_lane: StartLane) -> None:
    """A partial batch stays open, so that later tasks can join it."""
    backend = FakeBackend(streams=1, max_batch_tokens=4)
    lane = start_lane(backend)
    await hold(lane, backend)
    partial = send(lane, [2, 3])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backend.batches == [[1]]
    full = send(lane, [4, 5])
    assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    assert backend.batches == [[1], [2, 3, 4, 5]]
    backend.gate.set()
    assert (await partial, await full) == ([20, 30], [40, 50])


async def test_batches_below_the_limit_keep_the_padding_of_the_backend(
    start_lane: StartLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long text and many short ones in rows of the same length would be mostly padding."""
    backend = FakeBackend(max_batch_tokens=1024)
    monkeypatch.setattr(backend, "partial_fill", lambda tokens: PaddedFill.partial(tokens, 1024))
    lane, sizes = start_lane(backend), [1, 300, *[2] * 50]
    assert await send(lane, list(range(100, 152)), sizes) == [10 * item for item in range(100, 152)]
    assert len(backend.batches) > 1
    for batch in backend.batches:
        rows = [sizes[item - 100] for item in batch]
        assert len(rows) * max(rows) <= 4 / 3 * sum(rows)
    backend.batches.clear()
    assert await send(lane, [1, 2, 3], [10, 9, 8]) == [10, 20, 30]
    assert backend.batches == [[1, 2, 3]]


async def test_batches_are_short_while_short_requests_arrive_beside_long_ones(start_lane: StartLane) -> None:
    """A full batch runs for 80 ms; a request of one task for 10 ms, so it counts as short."""
    backend = FakeBackend(max_batch_tokens=8, token_seconds=0.01)
    lane = start_lane(backend, max_queue_ms=10_000)
    held = await hold(lane, backend)
    bulk = send(lane, list(range(20, 40)))
    with lane.reserve([1], FOREVER):
        short = send(lane, [2])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backend.batches == [[1]]  # no batch is prepared in advance
    backend.gate.set()
    assert await short == [20]
    await asyncio.gather(held, bulk)
    assert backend.batches[1] == [20, 21]
    assert backend.batches[2][0] == 2
    assert max(map(len, backend.batches[:5])) <= 3  # the rest fits in a full batch or two


async def test_batches_are_full_without_short_requests(start_lane: StartLane) -> None:
    backend = FakeBackend(max_batch_tokens=8, token_seconds=0.01)
    lane = start_lane(backend, max_queue_ms=10_000)
    held = await hold(lane, backend)
    bulk = send(lane, list(range(20, 36)))
    backend.gate.set()
    await asyncio.gather(held, bulk)
    assert [len(batch) for batch in backend.batches] == [1, 8, 8]


async def test_long_tasks_leave_one_stream_to_shorter_ones(start_lane: StartLane) -> None:
    """Even while no shorter task is queued, because one may arrive next."""
    backend = FakeBackend(streams=2, max_batch_tokens=8)
    lane = start_lane(backend)
    backend.gate.clear()
    long = [send(lane, [value], [100]) for value in (1, 2, 3)]
    assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    assert not await asyncio.to_thread(backend.entered.acquire, True, 0.05)
    for value in (4, 5):
        short = send(lane, [value])
        assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
        long.append(short)
    assert backend.batches == [[1], [4], [5]]
    backend.gate.set()
    await asyncio.gather(*long)
    assert backend.batches[3:] == [[2], [3]]


async def test_long_tasks_are_not_starved_by_shorter_ones(start_lane: StartLane) -> None:
    backend = FakeBackend(streams=2, max_batch_tokens=8, token_seconds=1e-4)
    lane = start_lane(backend)
    done = asyncio.Event()

    async def send_short() -> None:
        while not done.is_set():
            await send(lane, [1], [8])

    clients = [asyncio.create_task(send_short()) for _ in range(6)]
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await asyncio.gather(*(send(lane, [value], [200]) for value in (2, 3)))
    done.set()
    await asyncio.gather(*clients)


async def test_running_long_tasks_count_as_wait_of_requests_that_need_their_stream(start_lane: StartLane) -> None:
    """The estimate of a long task is 20 s."""
    backend = FakeBackend(streams=2, max_batch_tokens=8, token_seconds=0.1)
    lane = start_lane(backend)
    backend.gate.clear()
    running = send(lane, [1], [200])
    assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    with lane.reserve([1], FOREVER), lane.reserve([200], FOREVER):
        pass
    with pytest.raises(QueueFull, match=r"deadline \(estimated wait (20000|19\d{3}) ms, run time 20000 ms, "):
        lane.reserve([200], asyncio.get_running_loop().time() + 30)
    backend.gate.set()
    await running
    await lane.drain()
    with lane.reserve([200], asyncio.get_running_loop().time() + 30):
        pass


async def test_long_tasks_use_the_only_stream(start_lane: StartLane) -> None:
    backend = FakeBackend(streams=1, max_batch_tokens=8)
    lane = start_lane(backend)
    assert await asyncio.gather(*(send(lane, [value], [100]) for value in (1, 2))) == [[10], [20]]


async def test_reserved_tokens_count_until_they_are_released(start_lane: StartLane) -> None:
    lane = start_lane(FakeBackend(), max_tokens=10)
    with lane.reserve([6], FOREVER), pytest.raises(QueueFull), lane.reserve([6], FOREVER):
        pass
    with pytest.raises(KeyError), lane.reserve([6], FOREVER):
        raise KeyError
    assert lane.admission.backlog.tokens == 0


async def test_empty_queue_accepts_a_request_larger_than_its_limit(start_lane: StartLane) -> None:
    """Small requests are still admitted alongside it, large ones are not."""
    lane = start_lane(FakeBackend(max_batch_tokens=8), max_tokens=10)
    with lane.reserve([50], FOREVER), lane.reserve([2], FOREVER):
        for tokens in (1, 9):
            with pytest.raises(QueueFull), lane.reserve([tokens], FOREVER):
                pass


async def test_reservations_are_released_after_any_outcome(start_lane: StartLane) -> None:
    """Requests finish, fail, expire or are cancelled."""
    metrics, chance = Metrics(CollectorRegistry()), random.Random(3)
    lane = start_lane(FakeBackend(streams=2), metrics=metrics)
    jobs = []
    for item in range(100, 400):
        expires, bad = chance.random() < 0.2, chance.random() < 0.1
        with lane.reserve([4], FOREVER):
            deadline = 0.0 if expires else FOREVER
            jobs.append(send(lane, [-item if bad else item], [chance.randint(1, 9)], deadline))
        if chance.random() < 0.3:
            jobs.pop().cancel()
        if chance.random() < 0.1:
            await asyncio.sleep(0)
    await asyncio.wait(jobs)
    await lane.drain()
    assert lane.admission.backlog.tokens == 0
    assert lane.admission.utilization(0) == 0
    for name in ("queue_size", "queue_tokens"):
        assert sample(metrics, name) == 0
    finished = [job for job in jobs if not job.cancelled()]
    outcomes = Counter(type(job.exception()) for job in finished)
    assert outcomes.keys() == {NonFiniteOutput, DeadlineExceeded, type(None)}
    assert outcomes[type(None)] > 100


async def test_drain_waits_for_running_and_waiting_tasks(start_lane: StartLane) -> None:
    backend = FakeBackend()
    lane = start_lane(backend)
    await hold(lane, backend)
    waiting = send(lane, [2, 3], [8, 8])
    await asyncio.sleep(0)
    drained = asyncio.create_task(lane.drain())
    await asyncio.wait({drained}, timeout=0)
    assert not drained.done()
    backend.gate.set()
    await drained
    assert sorted(backend.batches) == [[1], [2], [3]]
    assert await waiting == [20, 30]


async def test_closing_fails_waiting_requests_and_ends_the_threads(start_lane: StartLane) -> None:
    backend = FakeBackend(streams=1, max_batch_tokens=64)
    lane = start_lane(backend)
    held = await hold(lane, backend)
    waiting = send(lane, [2])
    await asyncio.sleep(0)
    closing = asyncio.create_task(lane.close())
    with pytest.raises(Unavailable, match="shut down before this request ran"):
        await waiting
    backend.gate.set()
    await closing
    assert await held == [10]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("attendant-test-")]
    with pytest.raises(Unavailable, match="shutting down"):
        lane.submit([FakeTask(3)], FOREVER)
    with pytest.raises(Unavailable, match="shutting down"), lane.reserve([1], FOREVER):
        pass


async def test_closing_does_not_wait_for_a_hanging_backend(
    start_lane: StartLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.lane.JOIN_TIMEOUT_S", 0.0)
    backend = FakeBackend()
    lane = start_lane(backend)
    held = await hold(lane, backend)
    await lane.close()
    assert not held.done()
    backend.gate.set()
    assert await held == [10]


def test_result_for_a_closed_event_loop_is_dropped() -> None:
    backend = FakeBackend(max_batch_tokens=1)

    async def submit_and_leave() -> Lane[FakeTask, int]:
        observer = LaneObserver(Metrics(CollectorRegistry()), "test", "m")
        lane: Lane[FakeTask, int] = Lane(backend, Admission(backend, 2000, 100), observer, HostQueue(2))
        await hold(lane, backend)
        lane.submit([FakeTask(2)], FOREVER)
        await asyncio.sleep(0)
        return lane

    lane = asyncio.run(submit_and_leave())
    backend.gate.set()
    assert backend.entered.acquire(
        timeout=HANG_TIMEOUT_S
    )  # the worker survived the first result and runs the second batch
    asyncio.run(lane.close())
    assert backend.batches == [[1], [2]]


async def test_gauges_do_not_keep_a_closed_lane_and_its_backend() -> None:
    """A model may be replaced by one of the same name without this lane."""
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    observer = LaneObserver(metrics, "test", "m")
    lane: Lane[FakeTask, int] = Lane(backend, Admission(backend, 2000, 100), observer, HostQueue(2))
    assert metrics.registry.get_sample_value("attendant_lane_up", {"lane": "test", "model": "m"}) == 1
    await lane.close()
    closed = weakref.ref(backend)
    del lane, backend
    gc.collect()
    assert closed() is None
    assert metrics.registry.get_sample_value("attendant_lane_up", {"lane": "test", "model": "m"}) == 1  # no alert


# Lanes with a fake backend that fails or loses its session or device, and cancelled or expired requests.


async def test_missing_results_are_an_internal_error(start_lane: StartLane, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr(backend, "run", lambda *arguments: [])
    with pytest.raises(Internal):
        await send(start_lane(backend), [1])


@pytest.mark.parametrize(("bad", "error"), [(-1, NonFiniteOutput), (13, Internal)])
async def test_one_bad_task_of_32_fails_alone(start_lane: StartLane, bad: int, error: type[Exception]) -> None:
    backend = FakeBackend(max_batch_tokens=32)
    lane = start_lane(backend)
    values = [bad if item == 19 else item + 100 for item in range(32)]
    results = await asyncio.gather(*(send(lane, [value]) for value in values), return_exceptions=True)
    assert isinstance(results.pop(19), error)
    assert results == [[item * 10] for item in values if item != bad]
    assert len(backend.batches) <= 11  # the whole batch, then two halves in each of five bisections
    assert backend.reopened == 0


async def test_bad_task_fails_its_request(start_lane: StartLane) -> None:
    with pytest.raises(NonFiniteOutput):
        await send(start_lane(FakeBackend()), [1, -1, 2])


async def test_lost_session_is_replaced_once_and_the_batch_succeeds(start_lane: StartLane) -> None:
    backend = FakeBackend()
    lane = start_lane(backend)
    backend.session_lost = True
    assert await send(lane, [1, 2]) == [10, 20]
    assert (backend.reopened, len(backend.batches)) == (1, 2)
    assert lane.healthy


async def test_batches_that_fail_on_the_same_session_all_succeed(start_lane: StartLane) -> None:
    """The second one to recover finds a new session. Its only task is not at fault."""
    backend = FakeBackend(streams=2, max_batch_tokens=1)
    lane = start_lane(backend)
    backend.gate.clear()
    jobs = [send(lane, [value]) for value in (1, 2)]
    for _ in range(2):
        assert await asyncio.to_thread(backend.entered.acquire, True, HANG_TIMEOUT_S)
    backend.session_lost = True
    backend.gate.set()
    assert await asyncio.gather(*jobs) == [[10], [20]]
    assert backend.reopened == 1


async def test_lost_device_fails_the_lane_in_two_runs(start_lane: StartLane) -> None:
    """Bisecting a batch of 1,000 would take 2,000 runs."""
    backend = FakeBackend(max_batch_tokens=2000, max_batch_size=2000)
    lane = start_lane(backend)
    backend.device_lost = True
    first, second = send(lane, list(range(100, 1100))), send(lane, [1])
    for job in (first, second):
        with pytest.raises(Unavailable, match="backend failed"):
            await job
    assert (backend.reopened, len(backend.batches)) == (1, 1)
    assert not lane.healthy
    with pytest.raises(Unavailable, match="backend failed"), lane.reserve([1], FOREVER):
        pass
    with pytest.raises(Unavailable, match="backend failed"):
        lane.submit([FakeTask(1)], FOREVER)


async def test_dead_worker_makes_the_lane_unhealthy(start_lane: StartLane, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.set())
    lane = start_lane(FakeBackend())
    assert lane.healthy
    monkeypatch.setattr(lane.queue, "select_batch", lambda *arguments: 1 / 0)
    job = send(lane, [1])
    assert await asyncio.to_thread(raised.wait, HANG_TIMEOUT_S)
    for thread in lane._threads:
        await asyncio.to_thread(thread.join, HANG_TIMEOUT_S)
    assert not lane.healthy
    job.cancel()


async def test_cancelled_requests_never_run(start_lane: StartLane) -> None:
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    lane = start_lane(backend, metrics=metrics)
    await hold(lane, backend)
    cancelled, other = send(lane, [2, 3]), send(lane, [4])
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert lane.admission.backlog.tokens == 1  # the other request's
    backend.gate.set()
    assert await other == [40]
    assert backend.batches[1:] == [[4]]
    assert metrics.registry.get_sample_value("attendant_cancelled_inputs_total", {"stage": "queue", "model": "m"}) == 2


async def test_result_of_a_cancelled_request_is_counted(start_lane: StartLane) -> None:
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    lane = start_lane(backend, metrics=metrics)
    held = await hold(lane, backend)
    held.cancel()
    await asyncio.wait([held])
    backend.gate.set()
    assert await send(lane, [2]) == [20]
    assert metrics.registry.get_sample_value("attendant_cancelled_inputs_total", {"stage": "batch", "model": "m"}) == 1


async def test_expired_requests_never_run(start_lane: StartLane) -> None:
    backend = FakeBackend()
    lane = start_lane(backend)
    await hold(lane, backend)
    expired, other = send(lane, [2], deadline=0.0), send(lane, [3])
    await asyncio.sleep(0)
    backend.gate.set()
    assert await other == [30]
    assert backend.batches[1:] == [[3]]
    expired.cancel()


# Stalled batches in simulated time, and their effect on a lane's health.


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


# The fast lane and the explain lane: routing, independence, and the lazy session of the explain lane.

TEXT = "He cashed a check at the bank."


async def test_fast_lane_runs_the_last_layer_only(harness: ServiceHarness) -> None:
    """The explain lane runs one text per batch."""
    for layers in ((-1,), (6,)):
        await encode(harness.engine, TEXT, layers=layers)
    assert (harness.batches_run, harness.sample("attendant_batch_size_count", lane="explain")) == (2, 0)
    await encode(harness.engine, TEXT, TEXT, layers=(3,))
    assert (harness.batches_run, harness.sample("attendant_batch_size_count", lane="explain")) == (2, 2)


async def test_explain_session_opens_at_the_first_request(harness: ServiceHarness) -> None:
    """Most servers never use it, and its weights take memory."""
    model = load_anew(harness.settings)
    async with open_harness(model) as opened:
        await encode(opened.engine, TEXT)
        assert "_session" not in vars(model.explain)
        await encode(opened.engine, TEXT, layers=(0,))
        assert "_session" in vars(model.explain)


async def test_explain_lane_yields_to_the_fast_lane(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast lane never yields."""
    fast, explain = harness.engine.fast_lane, harness.engine.explain_lane
    assert explain is not None
    assert fast._yields_to is None
    yields_to = explain._yields_to
    assert yields_to is not None
    assert not yields_to()
    monkeypatch.setattr(type(fast), "has_queued_tasks", property(lambda lane: lane is fast))
    assert yields_to()


async def test_both_lanes_agree_on_the_last_layer(harness: ServiceHarness) -> None:
    """The tolerance depends on the fast lane's precision."""
    fast = (await encode(harness.engine, TEXT, outputs=("tokens",))).results[0].token_vectors
    both = await encode(harness.engine, TEXT, outputs=("tokens",), layers=(5, 6), layer_reduce="stack")
    explain = both.results[0].token_vectors
    assert fast is not None
    assert explain is not None
    tolerance = 1e-5 if harness.engine.info.precision == "float32" else 0.1
    np.testing.assert_allclose(explain[1], fast, atol=tolerance)
    assert both.precision == "float32"


# Results of a request that several batches computed.


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.integers(0, 3)))
def test_results_follow_the_order_of_the_tasks(batches: list[int], mixed: set[int]) -> None:
    """A batch returns rows of one matrix, or one result per task if it also computed token vectors."""
    rows = np.arange(2.0 * len(batches), dtype=np.float32).reshape(-1, 2)
    parts: list[tuple[Sequence[int], Sequence[TextVectors]]] = []
    for batch in sorted(set(batches)):
        places = [place for place, number in enumerate(batches) if number == batch]
        vectors = PooledVectors(rows[places])
        parts.append((places, [*vectors] if batch in mixed else vectors))
    results = gather(parts)
    assert len(results) == len(batches)
    assert [result.pooled.tolist() for result in results] == rows[:, None].tolist()
    assert isinstance(results, PooledVectors) == mixed.isdisjoint(batches)
