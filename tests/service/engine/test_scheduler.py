"""Lanes over a backend of plain numbers: who runs with whom, when, and what each request gets."""

import asyncio
import math
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from service.engine.admission import Admission
from service.engine.scheduler import Lane
from service.errors import Internal, NonFiniteOutput, QueueFull, Unavailable
from service.metrics import Metrics
from tests.service.engine.fake_backend import PATIENCE_S, FakeBackend, FakeTask

FOREVER = math.inf
Start = Callable[..., Lane[FakeTask, int]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Create lanes that are closed after the test."""
    started: list[tuple[Lane[FakeTask, int], FakeBackend]] = []

    def make(backend: FakeBackend, *, max_tokens: int = 10**6, metrics: Metrics | None = None, **options: Any) -> Any:
        admission = Admission(backend.warm_up(), 2000, max_tokens)
        lane = Lane("test", backend, admission, metrics or Metrics(CollectorRegistry()), **options)
        started.append((lane, backend))
        return lane

    yield make
    for lane, backend in started:
        backend.gate.set()
        await lane.close()


def send(
    lane: Lane[FakeTask, int], values: Sequence[int], sizes: Sequence[int] | None = None, deadline: float = FOREVER
) -> "asyncio.Task[list[int]]":
    tasks = [FakeTask(value, size) for value, size in zip(values, sizes or [1] * len(values), strict=True)]
    return asyncio.create_task(lane.wait(lane.submit(tasks, deadline)))


async def hold(lane: Lane[FakeTask, int], backend: FakeBackend, value: int = 1) -> "asyncio.Task[list[int]]":
    """Occupy one stream with one task, and return once it runs."""
    backend.gate.clear()
    held = send(lane, [value])
    assert await asyncio.to_thread(backend.entered.acquire, True, PATIENCE_S)
    return held


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"attendant_{name}", {"lane": "test"} | labels)


async def test_idle_stream_starts_at_once(start: Start) -> None:
    backend = FakeBackend()
    assert await send(start(backend), [7]) == [70]
    assert backend.batches == [[7]]


async def test_request_without_tasks_has_no_results(start: Start) -> None:
    """As a request of static vectors alone."""
    assert await send(start(FakeBackend()), []) == []


async def test_batches_fill_under_load(start: Start) -> None:
    backend = FakeBackend(max_batch_tokens=8)
    lane = start(backend)
    held = await hold(lane, backend)
    waiting = [send(lane, [item], [2]) for item in range(2, 12)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    backend.gate.set()
    assert await asyncio.gather(*waiting) == [[item * 10] for item in range(2, 12)]
    assert await held == [10]
    assert sorted(map(len, backend.batches[1:])) == [2, 4, 4]


async def test_results_come_in_the_order_of_the_request(start: Start) -> None:
    backend = FakeBackend()
    lane = start(backend)
    await hold(lane, backend)
    jobs = [send(lane, [n, n + 1, n + 2, n + 3], [3, 7, 2, 8]) for n in range(20, 60, 4)]
    await asyncio.sleep(0)
    backend.gate.set()
    assert await asyncio.gather(*jobs) == [[10 * item for item in range(n, n + 4)] for n in range(20, 60, 4)]


async def test_requests_that_come_together_run_together(start: Start) -> None:
    backend = FakeBackend()
    lane = start(backend)
    assert await asyncio.gather(*(send(lane, [item]) for item in (1, 2, 3))) == [[10], [20], [30]]
    assert backend.batches == [[1, 2, 3]]


async def test_free_streams_share_a_request(start: Start) -> None:
    backend = FakeBackend(streams=2, max_batch_tokens=64)
    lane = start(backend)
    backend.gate.clear()
    job = send(lane, [1, 2, 3, 4])
    for _ in range(2):
        assert await asyncio.to_thread(backend.entered.acquire, True, PATIENCE_S)
    backend.gate.set()
    assert await job == [10, 20, 30, 40]
    assert sorted(backend.batches) == [[1, 2], [3, 4]]


async def test_next_batch_is_prepared_only_if_it_is_full(start: Start) -> None:
    """A partial batch would be closed too early: tasks that come meanwhile could not join it."""
    backend = FakeBackend(streams=1, max_batch_tokens=4)
    lane = start(backend)
    await hold(lane, backend)
    partial = send(lane, [2, 3])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backend.batches == [[1]]
    full = send(lane, [4, 5])
    assert await asyncio.to_thread(backend.entered.acquire, True, PATIENCE_S)
    assert backend.batches == [[1], [2, 3, 4, 5]]
    backend.gate.set()
    assert (await partial, await full) == ([20, 30], [40, 50])


@pytest.mark.parametrize("busy", [True, False])
async def test_worker_pauses_while_more_urgent_work_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("service.engine.scheduler.time.sleep", pauses.append)
    lane = start(FakeBackend(max_batch_tokens=1), yields_to=lambda: busy)
    assert await send(lane, [1, 2, 3]) == [10, 20, 30]
    await lane.close()
    assert len(pauses) == (3 if busy else 0)
    assert all(pause > 0 for pause in pauses)


async def test_missing_results_are_an_internal_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr(backend, "run", lambda tasks: [])
    with pytest.raises(Internal):
        await send(start(backend), [1])


@pytest.mark.parametrize(("bad", "error"), [(-1, NonFiniteOutput), (13, Internal)])
async def test_one_bad_task_of_32_fails_alone(start: Start, bad: int, error: type[Exception]) -> None:
    backend = FakeBackend(max_batch_tokens=32)
    lane = start(backend)
    values = [bad if item == 19 else item + 100 for item in range(32)]
    results = await asyncio.gather(*(send(lane, [value]) for value in values), return_exceptions=True)
    assert isinstance(results.pop(19), error)
    assert results == [[item * 10] for item in values if item != bad]
    assert len(backend.batches) <= 11  # the batch, and two halves of it five times
    assert backend.reopened == 0


async def test_bad_task_fails_its_whole_request(start: Start) -> None:
    with pytest.raises(NonFiniteOutput):
        await send(start(FakeBackend()), [1, -1, 2])


async def test_lost_session_is_replaced_once_and_the_batch_succeeds(start: Start) -> None:
    backend = FakeBackend()
    lane = start(backend)
    backend.session_lost = True
    assert await send(lane, [1, 2]) == [10, 20]
    assert (backend.reopened, len(backend.batches)) == (1, 2)
    assert lane.healthy


async def test_lost_device_fails_the_lane_in_two_runs(start: Start) -> None:
    """Not in two runs per task: a batch of 1,000 took 2,000 of them."""
    backend = FakeBackend(max_batch_tokens=2000, max_batch_size=2000)
    lane = start(backend)
    backend.device_lost = True
    first, second = send(lane, list(range(100, 1100))), send(lane, [1])
    for job in (first, second):
        with pytest.raises(Unavailable, match="backend failed"):
            await job
    assert (backend.reopened, len(backend.batches)) == (1, 1)
    assert not lane.healthy
    with pytest.raises(Unavailable, match="backend failed"), lane.reserve(1, FOREVER):
        pass
    with pytest.raises(Unavailable, match="backend failed"):
        lane.submit([FakeTask(1)], FOREVER)


async def test_dead_worker_makes_the_lane_unhealthy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.set())
    lane = start(FakeBackend())
    assert lane.healthy
    monkeypatch.setattr(lane._queue, "select_batch", lambda *arguments: 1 / 0)
    job = send(lane, [1])
    assert await asyncio.to_thread(raised.wait, PATIENCE_S)
    for thread in lane._threads:
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not lane.healthy
    job.cancel()


async def test_cancelled_requests_never_run(start: Start) -> None:
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    lane = start(backend, metrics=metrics)
    await hold(lane, backend)
    gone, stays = send(lane, [2, 3]), send(lane, [4])
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    backend.gate.set()
    assert await stays == [40]
    assert backend.batches[1:] == [[4]]
    assert metrics.registry.get_sample_value("attendant_cancelled_total", {"where": "queue"}) == 2


async def test_result_of_a_cancelled_request_is_counted(start: Start) -> None:
    metrics, backend = Metrics(CollectorRegistry()), FakeBackend()
    lane = start(backend, metrics=metrics)
    held = await hold(lane, backend)
    held.cancel()
    await asyncio.wait([held])
    backend.gate.set()
    assert await send(lane, [2]) == [20]
    assert metrics.registry.get_sample_value("attendant_cancelled_total", {"where": "batch"}) == 1


async def test_expired_requests_never_run(start: Start) -> None:
    backend = FakeBackend()
    lane = start(backend)
    await hold(lane, backend)
    late, timely = send(lane, [2], deadline=0.0), send(lane, [3])
    await asyncio.sleep(0)
    backend.gate.set()
    assert await timely == [30]
    assert backend.batches[1:] == [[3]]
    late.cancel()


async def test_reserved_tokens_count_until_they_are_released(start: Start) -> None:
    lane = start(FakeBackend(), max_tokens=10)
    with lane.reserve(6, FOREVER), pytest.raises(QueueFull), lane.reserve(6, FOREVER):
        pass
    with pytest.raises(KeyError), lane.reserve(6, FOREVER):
        raise KeyError
    assert lane.admission.backlog.tokens == 0


async def test_empty_queue_accepts_a_request_larger_than_its_limit(start: Start) -> None:
    lane = start(FakeBackend(), max_tokens=10)
    with lane.reserve(50, FOREVER), pytest.raises(QueueFull), lane.reserve(1, FOREVER):
        pass


async def test_nothing_is_left_after_many_mixed_outcomes(start: Start) -> None:
    """Finished, failed, cancelled and expired requests all release what they held."""
    metrics, chance = Metrics(CollectorRegistry()), random.Random(3)
    lane = start(FakeBackend(streams=2), metrics=metrics)
    jobs = []
    for item in range(100, 400):
        late, bad = chance.random() < 0.2, chance.random() < 0.1
        with lane.reserve(4, FOREVER):
            deadline = 0.0 if late else FOREVER
            jobs.append(send(lane, [-item if bad else item], [chance.randint(1, 9)], deadline))
        if chance.random() < 0.3:
            jobs.pop().cancel()
        if chance.random() < 0.1:
            await asyncio.sleep(0)
    await lane.drain()
    expired = [job for job in jobs if not job.done()]
    for job in expired:
        job.cancel()
    await asyncio.wait(jobs)
    assert lane.admission.backlog.tokens == 0
    for name in ("queue_texts", "queue_tokens", "queue_utilization"):
        assert sample(metrics, name) == 0
    answered = [job for job in jobs if not job.cancelled()]
    assert all(isinstance(job.exception(), NonFiniteOutput | None) for job in answered)
    assert len(answered) > 100


async def test_drain_waits_for_running_and_waiting_tasks(start: Start) -> None:
    backend = FakeBackend()
    lane = start(backend)
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


async def test_closing_fails_waiting_requests_and_ends_the_threads(start: Start) -> None:
    backend = FakeBackend(streams=1, max_batch_tokens=64)
    lane = start(backend)
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
    with pytest.raises(Unavailable, match="shutting down"), lane.reserve(1, FOREVER):
        pass


async def test_closing_does_not_wait_for_a_hanging_backend(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.scheduler.JOIN_TIMEOUT_S", 0.0)
    backend = FakeBackend()
    lane = start(backend)
    held = await hold(lane, backend)
    await lane.close()
    assert not held.done()
    backend.gate.set()
    assert await held == [10]


def test_result_for_a_closed_event_loop_is_dropped() -> None:
    backend = FakeBackend(max_batch_tokens=1)

    async def leave_work_behind() -> Lane[FakeTask, int]:
        lane: Lane[FakeTask, int] = Lane("test", backend, Admission(1e6, 2000, 100), Metrics(CollectorRegistry()))
        await hold(lane, backend)
        lane.submit([FakeTask(2)], FOREVER)
        await asyncio.sleep(0)
        return lane

    lane = asyncio.run(leave_work_behind())
    backend.gate.set()
    assert backend.entered.acquire(timeout=PATIENCE_S)  # the second batch runs: delivering the first did no harm
    asyncio.run(lane.close())
    assert backend.batches == [[1], [2]]
