"""Fair shares between callers, with a virtual clock: time is shared by caller, however many requests each has."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.artifact.packing import TokenLimit
from service.callers import ANONYMOUS, Caller, Quota
from service.engine.scheduling import Admission, Cost, LaneBacklog
from service.errors import QueueFull, QuotaExceeded
from tests.conftest import EXAMPLES
from tests.service.engine.fake_backend import FakeBackend, ItemQueue, cost_of

QUANTUM = 512
ROUNDS = 60

CALLER = st.tuples(st.integers(2, 50), st.integers(1, 30), st.integers(1, 4 * QUANTUM))
"""Requests that are queued at a time, tasks per request, and the largest task."""
CALLERS = st.lists(CALLER, min_size=2, max_size=5)


class Load:
    """Callers that send the next request as soon as one has finished. A task is (caller, request, size).

    With `busy`, requests have more tasks, so that work of every caller is always queued.
    """

    def __init__(
        self,
        callers: list[tuple[int, int, int]],
        seed: int,
        *,
        busy: bool = False,
        weights: Sequence[int] = (),
    ) -> None:
        self._owners = [Caller(str(number), weight) for number, weight in enumerate(weights or [1] * len(callers))]
        self.queue = ItemQueue(QUANTUM)
        self.served: Counter[int] = Counter()
        self.finished: Counter[int] = Counter()
        self._chance = random.Random(seed)
        self._callers = [
            (requests, max(tasks, 4 * QUANTUM // largest) if busy else tasks, largest)
            for requests, tasks, largest in callers
        ]
        self._missing: dict[int, int] = {}
        self._sent = 0
        for caller, (requests, _, _) in enumerate(callers):
            for _ in range(requests):
                self.send(caller)

    def send(self, caller: int) -> None:
        _, tasks, largest = self._callers[caller]
        number, self._sent = self._sent, self._sent + 1
        sizes = [self._chance.randint(max(1, largest // 2), largest) for _ in range(tasks)]
        self._missing[number] = tasks
        self.queue.put(
            [(caller, number, size) for size in sizes], [cost_of(size) for size in sizes], caller=self._owners[caller]
        )

    def run_batch(self) -> None:
        batch, dropped = self.queue.take(TokenLimit(QUANTUM), 64)
        assert batch
        assert not dropped
        for caller, number, size in batch:
            self.served[caller] += size
            self._missing[number] -= 1
            if not self._missing[number]:
                self.finished[caller] += 1
                self.send(caller)


@settings(deadline=None, max_examples=EXAMPLES // 2)
@given(st.lists(st.tuples(CALLER, st.integers(1, 8)), min_size=2, max_size=4), st.booleans(), st.integers(0, 1000))
def test_callers_share_by_their_weights_whatever_they_send(
    weighted: list[tuple[tuple[int, int, int], int]], equal: bool, seed: int
) -> None:
    callers, weights = [caller for caller, _ in weighted], [1 if equal else weight for _, weight in weighted]
    load = Load(callers, seed, busy=True, weights=weights)
    while sum(load.served.values()) < ROUNDS * sum(weights) * QUANTUM:
        load.run_batch()
    shares = [load.served[caller] / weight for caller, weight in enumerate(weights)]
    # A turn may exceed the deficit by a request's turn, which is a quantum and a task, and be cut short by as much.
    largest = max(size for _, _, size in callers)
    assert max(shares) - min(shares) <= 4 * (QUANTUM + largest)


@settings(deadline=None, max_examples=EXAMPLES // 2)
@given(st.integers(1, 500), st.integers(1, 64), st.integers(0, 1000))
def test_sentence_waits_for_one_turn_of_each_other_caller(requests: int, tasks: int, seed: int) -> None:
    """Another caller's requests delay a sentence by its turn, not by their number."""
    load = Load([(requests, tasks, 60), (3, 256, 256)], seed)
    for _ in range(5):
        load.run_batch()
    for _ in range(20):
        sentence = load.queue.put([(9, -1, 20)], [cost_of(20)], caller=Caller("sentences"))
        load._missing[-1] = 2  # never finished: it is sent once
        batches = 0
        while sentence in load.queue:
            load.run_batch()
            batches += 1
        assert batches <= 4


@settings(deadline=None, max_examples=EXAMPLES // 2)
@given(CALLERS, st.integers(0, 1000))
def test_every_request_of_every_caller_finishes(callers: list[tuple[int, int, int]], seed: int) -> None:
    load = Load(callers, seed)
    load.send = lambda caller: None  # type: ignore[method-assign]
    while load.queue.size:
        load.run_batch()
    assert load.finished == Counter({caller: requests for caller, (requests, _, _) in enumerate(callers)})
    assert load.queue.clear() == []
    assert load.queue.backlog.tokens == load.queue.us == 0


def test_one_caller_is_served_like_a_queue_without_callers() -> None:
    """A caller alone has no limit: its turns follow each other within a batch."""
    queue = ItemQueue(8)
    for name in "abcd":
        queue.put([f"{name}1", f"{name}2"], [cost_of(8)] * 2, caller=Caller("only"))
    assert queue.take(TokenLimit(64), 64)[0] == ["a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2"]


def test_callers_alternate_by_turn() -> None:
    queue = ItemQueue(8)
    for name in "abcd":
        queue.put([name], [cost_of(8)], caller=Caller("many"))
    queue.put(["x1", "x2", "x3"], [cost_of(8)] * 3, caller=Caller("one"))
    assert queue.take(TokenLimit(64), 64)[0] == ["a", "x1", "b", "x2", "c", "x3", "d"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000)), max_size=40), st.integers(1, 5000))
def test_wait_of_a_caller_is_at_most_that_of_all(requests: list[tuple[int, int]], us: int) -> None:
    """The backlogs of callers add up, and are forgotten once they are empty."""
    backlog, callers = LaneBacklog(1000), [Caller(str(number), number + 1) for number in range(4)]
    for number, cost in requests:
        backlog.count(Cost(cost, cost), callers[number])
    for caller in callers:
        own = [cost for number, cost in requests if callers[number] is caller]
        assert backlog.held_by(caller) == sum(min(cost, 1000) for cost in own)
        ahead = backlog.us_ahead_for(caller, us, QUANTUM)
        assert ahead <= backlog.us_ahead_of(us)
        weights = [other.weight for other in callers if other is not caller]
        assert own or ahead <= sum(max(QUANTUM, us * weight // caller.weight) for weight in weights)
    for number, cost in requests:
        backlog.count(Cost(cost, cost), callers[number], -1)
    assert (backlog.us, [backlog.held_by(caller) for caller in callers]) == (0, [0] * 4)


def test_flood_leaves_capacity_to_other_callers() -> None:
    """A caller may hold half of the queue; another one is admitted, with the wait of its own share."""
    flood, other = Caller("flood"), Caller("other")
    backend = FakeBackend(streams=2, max_batch_tokens=512, token_seconds=1e-4)
    admission = Admission(backend, 2000, 40_000)
    forever = math.inf

    def admit(caller: Caller) -> int:
        count = 0
        with pytest.raises(QueueFull) as raised:  # noqa: PT012
            while True:
                admission.check(admission.cost([100]), forever, caller=caller)
                admission.backlog.count(admission.cost([100]), caller)
                count += 1
        assert raised.value.retry_after_s is not None
        return count

    assert admit(flood) == 200  # half of 40,000 tokens
    alone, beside = Cost(100, 10_000), admission.wait_s(Cost(100, 10_000), other)
    assert beside <= 2 * admission.run_s(admission.quantum)
    assert admission.wait_s(alone, flood) > 0.9
    assert admission.pause_s(flood) == 0  # it delays nobody
    assert admit(other) > 90
    assert 0 < admission.pause_s(flood) <= 1
    assert admission.pause_s(ANONYMOUS) == 0


def test_quota_allows_a_burst_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("service.callers.time.monotonic", lambda: now)
    quota, sent = Quota(100), []
    for step in range(600):
        now = step / 10
        if not quota.delay_s:
            quota.check()
            quota.charge(250)
            sent.append(now)
    assert 100 * 60 <= 250 * len(sent) <= 100 * (60 + 10) + 250
    assert len([moment for moment in sent if moment < 0.5]) == 5
    quota.charge(10_000)
    with pytest.raises(QuotaExceeded, match=r"Quota exceeded \(100 tokens per second\)") as raised:
        quota.check()
    assert raised.value.retry_after_s == pytest.approx(quota.delay_s)
    assert raised.value.pause_s == 1
