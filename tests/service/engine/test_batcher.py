"""The batcher with plain functions for a model: who runs with whom, when, and what each caller gets."""

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from model.packing import choose
from service.engine.batcher import Batcher, Plan
from service.errors import QueueFull, Unavailable
from service.metrics import Metrics

FOREVER = math.inf
PATIENCE_S = 20  # only how long a broken test hangs

Start = Callable[..., Batcher[int, int]]


class Bench:
    """A `run` that multiplies by ten, notes its rows, fails on negative items, and can be held at a gate."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.rows.append(list(items))
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [item * 10 for item in items]

    async def hold(self, batcher: Batcher[int, int], item: int = 1) -> "asyncio.Future[list[int]]":
        """Occupy one worker with one item, and return once it runs."""
        self.gate.clear()
        future = batcher.submit([item], [1], FOREVER)
        assert await asyncio.to_thread(self.entered.acquire, True, PATIENCE_S)
        return future


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def start(bench: Bench) -> AsyncIterator[Start]:
    """Make batchers that are closed after the test."""
    started: list[Batcher[int, int]] = []

    def make(
        run: Callable[[Sequence[int]], list[int]] = bench,
        *,
        workers: int = 1,
        shared: int = 8,
        max_queue_tokens: int = 1000,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Batcher[int, int]:
        choose_row = partial(choose, shared=shared)
        options.setdefault("run_wide", run)
        plan = Plan("test", run, choose_row, lambda items: 64, workers, max_queue_tokens, **options)
        started.append(Batcher(plan, metrics or Metrics(CollectorRegistry())))
        return started[-1]

    yield make
    bench.gate.set()
    for batcher in started:
        await batcher.close()


async def test_an_idle_worker_starts_at_once(start: Start, bench: Bench) -> None:
    """One item runs alone though the row has room and nobody else comes."""
    assert await start().submit([7], [1], FOREVER) == [70]
    assert bench.rows == [[7]]


async def test_rows_fill_themselves_under_load(start: Start, bench: Bench) -> None:
    """What arrived while the worker was busy shares rows up to the limit, in order of arrival."""
    batcher = start()
    held = await bench.hold(batcher)
    waiting = [batcher.submit([item], [2], FOREVER) for item in range(10)]
    bench.gate.set()
    assert await asyncio.gather(*waiting) == [[item * 10] for item in range(10)]
    assert bench.rows[1:] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert await held == [10]


async def test_the_oldest_is_always_in_the_next_row(start: Start, bench: Bench) -> None:
    """However sizes fall, no item is overtaken for ever."""
    batcher = start()
    await bench.hold(batcher)
    sizes = [random.Random(5).randint(1, 12) for _ in range(300)]
    waiting = batcher.submit(range(300), sizes, FOREVER)
    bench.gate.set()
    await waiting
    left = set(range(300))
    for row in bench.rows[1:]:
        assert min(left) in row
        left -= set(row)
    assert not left


async def test_a_job_gets_its_results_in_its_own_order(start: Start, bench: Bench) -> None:
    """Though large items run later than small ones that came after them."""
    batcher = start()
    await bench.hold(batcher)
    jobs = [batcher.submit([n, n + 1, n + 2, n + 3], [3, 7, 2, 8], FOREVER) for n in range(0, 40, 4)]
    bench.gate.set()
    assert await asyncio.gather(*jobs) == [[10 * item for item in range(n, n + 4)] for n in range(0, 40, 4)]


async def test_jobs_share_a_row(start: Start, bench: Bench) -> None:
    """A row takes from several requests at once."""
    batcher = start()
    await bench.hold(batcher)
    jobs = [batcher.submit([2, 3], [1, 1], FOREVER), batcher.submit([4], [1], FOREVER)]
    bench.gate.set()
    assert await asyncio.gather(*jobs) == [[20, 30], [40]]
    assert bench.rows[1:] == [[2, 3, 4]]


async def test_workers_run_side_by_side(start: Start) -> None:
    """Two idle workers split what comes, instead of one taking it all."""
    barrier = threading.Barrier(2)

    def run(items: Sequence[int]) -> list[int]:
        barrier.wait(PATIENCE_S)
        return list(items)

    assert await start(run, workers=2).submit([1, 2], [2, 2], FOREVER) == [1, 2]


async def test_what_fits_one_row_is_run_wide_when_nothing_else_runs(start: Start, bench: Bench) -> None:
    """By all threads at once; whatever comes meanwhile waits, and then is shared by the workers."""
    wide: list[list[int]] = []

    def run_wide(items: Sequence[int]) -> list[int]:
        wide.append(list(items))
        return bench(items)

    metrics = Metrics(CollectorRegistry())
    batcher = start(workers=2, shared=8, run_wide=run_wide, wide_threads=2, wide_tokens=8, metrics=metrics)
    first = await bench.hold(batcher)
    later = [batcher.submit([item], [5], FOREVER) for item in (2, 3, 4)]
    await asyncio.sleep(0)
    bench.gate.set()
    assert await asyncio.gather(first, *later) == [[10], [20], [30], [40]]
    assert wide[0] == [1]
    # Three times five are more than eight: the two workers run narrow rows, and only the last may be alone again.
    assert sorted(bench.rows[:3]) == [[1], [2], [3]]
    assert len(wide) == 1 or wide[1:] == [[4]]


async def test_a_wide_row_leaves_no_thread_for_another(start: Start, bench: Bench) -> None:
    """And busy seconds count each of its threads."""
    metrics = Metrics(CollectorRegistry())
    batcher = start(workers=2, wide_threads=2, wide_tokens=8, metrics=metrics)
    first = await bench.hold(batcher)
    second = batcher.submit([2], [1], FOREVER)
    assert batcher._running == 2
    bench.gate.set()
    assert (await first, await second) == ([10], [20])
    assert bench.rows == [[1], [2]]
    busy = metrics.registry.get_sample_value("attendant_inference_busy_seconds_total", {"lane": "test"})
    inference = metrics.registry.get_sample_value(
        "attendant_stage_duration_seconds_sum", {"stage": "inference", "lane": "test"}
    )
    assert inference
    assert busy == pytest.approx(2 * inference)


async def test_what_comes_together_runs_together(start: Start, bench: Bench) -> None:
    """Requests of one turn of the loop share a row, though a worker is idle when the first of them is queued."""
    batcher = start()
    found = [batcher.submit([item], [1], FOREVER) for item in (1, 2, 3)]
    assert await asyncio.gather(*found) == [[10], [20], [30]]
    assert bench.rows == [[1, 2, 3]]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_worker_rests_while_more_urgent_work_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Once a row, and only then; what waits behind it is run all the same."""
    rests: list[float] = []
    monkeypatch.setattr("service.engine.batcher.time.sleep", rests.append)
    batcher = start(gives_way=lambda: busy, shared=1)
    assert await batcher.submit([1, 2, 3], [1, 1, 1], FOREVER) == [10, 20, 30]
    await batcher.close()
    assert len(rests) == (3 if busy else 0)
    assert all(rest > 0 for rest in rests)


async def test_too_few_results_are_an_error(start: Start) -> None:
    """A run that loses an item is a bug that callers hear of, not a wrong answer."""
    with pytest.raises(RuntimeError, match="gave 0 results"):
        await start(lambda items: []).submit([1], [1], FOREVER)


async def test_one_bad_item_of_32_fails_alone(start: Start, bench: Bench) -> None:
    """Its 31 mates get their answers, after few more runs."""
    batcher = start(shared=32)
    await bench.hold(batcher)
    jobs = [batcher.submit([-1 if item == 19 else item], [1], FOREVER) for item in range(32)]
    bench.gate.set()
    found = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(found.pop(19), ValueError)
    assert found == [[item * 10] for item in range(32) if item != 19]
    assert len(bench.rows[1:]) <= 11  # the row, and two halves of it five times


async def test_a_bad_item_fails_its_whole_job(start: Start) -> None:
    """A request is answered as a whole or not at all."""
    with pytest.raises(ValueError, match="negative"):
        await start().submit([1, -1, 2], [1, 1, 1], FOREVER)


async def test_cancelled_jobs_never_run(start: Start, bench: Bench) -> None:
    """A caller who leaves takes its items out of the queue, whose mates run on."""
    metrics = Metrics(CollectorRegistry())
    batcher = start(metrics=metrics)
    await bench.hold(batcher)
    gone, stays = batcher.submit([2, 3], [1, 1], FOREVER), batcher.submit([4], [1], FOREVER)
    gone.cancel()
    bench.gate.set()
    assert await stays == [40]
    assert bench.rows[1:] == [[4]]
    assert metrics.registry.get_sample_value("attendant_cancelled_total", {"where": "queue"}) == 2


async def test_cancelling_a_running_job_is_harmless(start: Start, bench: Bench) -> None:
    """Its result is thrown away and counted."""
    metrics = Metrics(CollectorRegistry())
    batcher = start(metrics=metrics)
    held = await bench.hold(batcher)
    held.cancel()
    bench.gate.set()
    assert await batcher.submit([2], [1], FOREVER) == [20]
    assert metrics.registry.get_sample_value("attendant_cancelled_total", {"where": "batch"}) == 1


async def test_expired_jobs_never_run(start: Start, bench: Bench) -> None:
    """A deadline that passed in the queue drops the job."""
    batcher = start()
    await bench.hold(batcher)
    late, timely = batcher.submit([2], [1], time.monotonic()), batcher.submit([3], [1], FOREVER)
    bench.gate.set()
    assert await timely == [30]
    assert bench.rows[1:] == [[3]]
    late.cancel()


async def test_a_full_queue_refuses_at_once(start: Start, bench: Bench) -> None:
    """With a time after which to try again; what waits already is not touched."""
    batcher = start(max_queue_tokens=10)
    await bench.hold(batcher)
    waiting = batcher.submit([2], [8], FOREVER)
    with pytest.raises(QueueFull, match="8 tokens of 10") as refused, batcher.reserve(3):
        pass
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s > 0
    with batcher.reserve(2):
        assert batcher.waiting_tokens == 10
    bench.gate.set()
    assert await waiting == [20]


async def test_reserved_room_counts(start: Start) -> None:
    """Requests that are still being tokenised hold their room."""
    batcher = start(max_queue_tokens=10)
    with batcher.reserve(6), pytest.raises(QueueFull), batcher.reserve(6):
        pass
    assert batcher.waiting_tokens == 0


async def test_an_empty_queue_takes_a_request_larger_than_itself(start: Start) -> None:
    """Else it could never be served."""
    batcher = start(max_queue_tokens=10)
    with batcher.reserve(50), pytest.raises(QueueFull), batcher.reserve(1):
        pass


async def test_it_is_crowded_when_it_is_nearly_full(start: Start) -> None:
    """Above nine tenths; asking for room holds none."""
    batcher = start(max_queue_tokens=10)
    with batcher.reserve(9):
        assert not batcher.crowded
        batcher.check_room(1)
        batcher.check_room(1)
        with batcher.reserve(1):
            assert batcher.crowded
            with pytest.raises(QueueFull):
                batcher.check_room(1)
    assert not batcher.crowded


async def test_a_failed_reservation_is_given_back(start: Start) -> None:
    """Whatever goes wrong between admission and the queue."""
    batcher = start()
    with pytest.raises(KeyError), batcher.reserve(5):
        raise KeyError
    assert batcher.waiting_tokens == 0


async def test_nothing_is_left_after_many_mixed_outcomes(start: Start, bench: Bench) -> None:
    """Answered, failed, cancelled and expired jobs all give back what they held, and gauges return to 0."""
    metrics = Metrics(CollectorRegistry())
    batcher, chance = start(workers=2, max_queue_tokens=10**6, metrics=metrics), random.Random(3)
    jobs = []
    for item in range(1, 300):
        with batcher.reserve(4):
            late, bad = chance.random() < 0.2, chance.random() < 0.1
            deadline = time.monotonic() if late else FOREVER
            jobs.append(batcher.submit([-item if bad else item], [chance.randint(1, 9)], deadline))
        if chance.random() < 0.3:
            jobs.pop().cancel()
    await batcher.drain()
    assert batcher.waiting_tokens == 0
    for name in ("texts", "tokens", "utilization"):
        assert metrics.registry.get_sample_value(f"attendant_queue_{name}", {"lane": "test"}) == 0
    unanswered = [job for job in jobs if job.cancel()]  # the expired ones: their callers watch the clock themselves
    answered = [job for job in jobs if not job.cancelled()]
    assert all(job.exception() is None or isinstance(job.exception(), ValueError) for job in answered)
    assert len(unanswered) > 10 < len(answered)


async def test_drain_waits_for_what_waits_and_runs(start: Start, bench: Bench) -> None:
    """It returns after the last item, not before."""
    batcher = start()
    await bench.hold(batcher)
    waiting = batcher.submit([2, 3], [8, 8], FOREVER)
    drained = asyncio.create_task(batcher.drain())
    await asyncio.wait({drained}, timeout=0)
    assert not drained.done()
    bench.gate.set()
    await drained
    assert bench.rows == [[1], [2], [3]]
    assert await waiting == [20, 30]


async def test_closing_fails_what_waits_and_ends_the_threads(start: Start, bench: Bench) -> None:
    """The row that runs is finished; what waits hears that the server stops; nothing new is taken."""
    batcher = start(workers=2)
    bench.gate.set()
    held = await bench.hold(batcher)
    second = await bench.hold(batcher)
    waiting = batcher.submit([2], [1], FOREVER)
    closing = asyncio.create_task(batcher.close())
    with pytest.raises(Unavailable, match="stopped before this ran"):
        await waiting
    bench.gate.set()
    await closing
    assert [await held, await second] == [[10], [10]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("attendant-test-")]
    with pytest.raises(Unavailable, match="stopping"):
        batcher.submit([3], [1], FOREVER)
    with pytest.raises(Unavailable, match="stopping"), batcher.reserve(1):
        pass


def test_a_result_for_a_closed_loop_is_harmless(bench: Bench) -> None:
    """The worker shrugs and takes the next row."""
    metrics = Metrics(CollectorRegistry())

    async def leave_work_behind() -> Batcher[int, int]:
        plan = Plan("test", bench, partial(choose, shared=1), lambda items: 64, 1, 1000, run_wide=bench)
        batcher: Batcher[int, int] = Batcher(plan, metrics)
        await bench.hold(batcher)
        batcher.submit([2], [1], FOREVER)
        return batcher

    batcher = asyncio.run(leave_work_behind())
    bench.gate.set()
    assert bench.entered.acquire(timeout=PATIENCE_S)  # the second row runs: delivering the first did no harm
    asyncio.run(batcher.close())
    assert bench.rows == [[1], [2]]
