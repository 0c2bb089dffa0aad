"""Lanes with a fake backend that fails or loses its session or device, and cancelled or expired requests."""

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from service.errors import Internal, NonFiniteOutput, Unavailable
from service.metrics import Metrics
from tests.service.engine.fake_backend import HANG_TIMEOUT_S, FakeBackend, FakeTask
from tests.service.engine.lane_cases import FOREVER, StartLane, hold, send


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
