"""Deficit round robin with a virtual clock: no lost tasks, no starvation, and fair shares between callers."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.artifact.packing import BatchShapes, RowFill, TokenLimit
from model.export.sample_texts import sample_sentences
from service.callers import ANONYMOUS, Caller, Quota
from service.engine.backends.openvino import OpenVinoBackend
from service.engine.backends.select import OPENVINO_BATCH_TOKENS
from service.engine.scheduling import Admission, Backlog, Cost, LaneBacklog
from service.errors import QueueFull, QuotaExceeded
from tests.conftest import EXAMPLES
from tests.service.engine.fake_backend import FakeBackend, ItemQueue, cost_of

REQUESTS = st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=40), min_size=1, max_size=20)
BATCH_TOKENS = OPENVINO_BATCH_TOKENS
SHAPES = BatchShapes(300, BATCH_TOKENS, OpenVinoBackend.batch_shapes)
FULL_US = round(1e6 * BATCH_TOKENS * SHAPES.sequence_seconds(64) / 64)
SHORT_US = 12_000


def costs_of(sizes: list[int]) -> list[Cost]:
    return [cost_of(size) for size in sizes]


def drained(queue: ItemQueue, max_tokens: int, max_size: int) -> Iterator[list[tuple[int, int]]]:
    while queue.size:
        batch, dropped = queue.take(TokenLimit(max_tokens), max_size)
        assert batch
        assert not dropped
        yield batch


@given(REQUESTS, st.integers(1, 300), st.integers(1, 64))
def test_every_task_runs_once(requests: list[list[int]], tokens: int, size: int) -> None:
    queue = ItemQueue(256)
    for number, sizes in enumerate(requests):
        queue.put([(number, index) for index in range(len(sizes))], costs_of(sizes))
    completed: list[tuple[int, int]] = []
    for batch in drained(queue, tokens, size):
        assert len(batch) <= size
        assert sum(requests[number][index] for number, index in batch) <= max(
            tokens, requests[batch[0][0]][batch[0][1]]
        )
        completed += batch
    assert sorted(completed) == [
        (number, index) for number, sizes in enumerate(requests) for index in range(len(sizes))
    ]
    assert (queue.size, queue.tokens, queue.us, queue.backlog.tokens) == (0, 0, 0, 0)


@given(REQUESTS, st.data())
def test_counts_stay_exact_when_requests_are_discarded(requests: list[list[int]], data: st.DataObject) -> None:
    queue = ItemQueue(64)
    waiting = [queue.put(list(sizes), costs_of(sizes)) for sizes in requests]
    for _ in range(data.draw(st.integers(0, 5))):
        queue.take(TokenLimit(100), 8)
        job = data.draw(st.sampled_from(waiting))
        assert queue.discard(job) <= len(job.tasks)
        rest = [job for job in waiting if job in queue]
        assert (queue.tokens, queue.us) == Cost.total(job.costs[place] for job in rest for place in job.waiting)
        assert queue.tokens == queue.backlog.tokens
        assert queue.size == sum(len(job.waiting) for job in rest)


class OneByOne(TokenLimit):
    by_total = False


@given(REQUESTS, st.integers(1, 1000), st.integers(1, 64), st.integers(1, 1000))
def test_whole_requests_are_selected_like_single_tasks(
    requests: list[list[int]], tokens: int, size: int, quantum: int
) -> None:
    queues = ItemQueue(quantum), ItemQueue(quantum)
    for number, sizes in enumerate(requests):
        for queue in queues:
            queue.put([(number, index) for index in range(len(sizes))], costs_of(sizes))
    while queues[0].size:
        assert queues[0].take(TokenLimit(tokens), size) == queues[1].take(OneByOne(tokens), size)
    assert not queues[1].size


def test_stale_requests_are_dropped_at_selection() -> None:
    queue = ItemQueue(64)
    queue.put(["stale"] * 3, costs_of([5] * 3), deadline=0.0)
    queue.put(["current"], costs_of([5]))
    assert queue.take(TokenLimit(256), 64) == (["current"], 3)


def test_batches_take_from_several_requests() -> None:
    queue = ItemQueue(8)
    queue.put(["a1", "a2", "a3"], costs_of([4, 4, 4]))
    queue.put(["b1"], costs_of([4]))
    queue.put(["c1"], costs_of([4]))
    assert queue.take(TokenLimit(16), 64)[0] == ["a1", "a2", "b1", "c1"]
    assert queue.take(TokenLimit(16), 64)[0] == ["a3"]


def test_task_that_does_not_fit_is_first_in_the_next_batch() -> None:
    queue = ItemQueue(200)
    queue.put(["small", "large"], costs_of([30, 90]))
    queue.put(["other"], costs_of([60]))
    queue.put(["late"], costs_of([60]))
    assert queue.take(TokenLimit(100), 64)[0] == ["small", "other"]
    assert queue.take(TokenLimit(100), 64)[0][0] == "large"


def test_tasks_that_do_not_fit_do_not_end_the_turn_of_their_request() -> None:
    queue = ItemQueue(200)
    queue.put(["first", "long", "short"], costs_of([60, 90, 40]))
    assert queue.take(TokenLimit(100), 64)[0] == ["first", "short"]
    assert queue.take(TokenLimit(100), 64)[0] == ["long"]


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(1, 5000))
def test_backlog_estimate_is_at_most_twice_the_exact_value(waiting: list[int], own: int) -> None:
    backlog = Backlog()
    for tokens in waiting:
        backlog.add(cost_of(tokens))
    exact = sum(min(tokens, own) for tokens in waiting)
    assert exact <= backlog.us_ahead_of(own) <= 2 * exact
    for tokens in waiting:
        backlog.add(cost_of(tokens), -1)
    assert backlog.us_ahead_of(own) == backlog.tokens == 0


class Simulation:
    """One stream with a virtual clock. A batch runs as long as its shape; `quantum` microseconds are a turn."""

    def __init__(self, quantum: int) -> None:
        self.queue = ItemQueue(FULL_US)
        self.quantum = quantum
        self.now = 0.0
        self.missing: dict[int, int] = {}
        self.finished: dict[int, float] = {}
        self._numbers = iter(range(10**9))

    def submit(self, sizes: list[int]) -> int:
        number = next(self._numbers)
        self.missing[number] = len(sizes)
        costs = [Cost(size, round(1e6 * SHAPES.sequence_seconds(size))) for size in sizes]
        self.queue.put([(number, size) for size in sizes], costs)
        return number

    def run_batch(self) -> None:
        fill = RowFill(SHAPES, self.quantum / 1e6 if self.quantum < FULL_US else math.inf)
        batch, _ = self.queue.take(fill, BATCH_TOKENS, self.quantum)
        self.now += SHAPES.costs.seconds(SHAPES.fit([size for _, size in batch])[0])
        for number, _ in batch:
            self.missing[number] -= 1
            if not self.missing[number]:
                self.finished[number] = self.now


def seconds_alone(sizes: list[int], quantum: int) -> float:
    simulation = Simulation(quantum)
    number = simulation.submit(sizes)
    while number not in simulation.finished:
        simulation.run_batch()
    return simulation.now


@settings(deadline=None, max_examples=EXAMPLES // 4)
@given(st.integers(1, 64), st.integers(0, 1000), st.sampled_from([FULL_US, SHORT_US]))
def test_bulk_request_finishes_beside_any_number_of_sentences(clients: int, seed: int, quantum: int) -> None:
    """Clients send the next sentence as soon as they get a response, so the queue always contains sentences."""
    chance, simulation = random.Random(seed), Simulation(quantum)
    sizes = [chance.randint(96, 256) for _ in range(256)]
    bulk = simulation.submit(sizes)
    waiting = {simulation.submit([chance.randint(3, 60)]) for _ in range(clients)}
    while bulk not in simulation.finished:
        simulation.run_batch()
        finished = {number for number in waiting if number in simulation.finished}
        waiting = (waiting - finished) | {simulation.submit([chance.randint(3, 60)]) for _ in finished}
    # Per round, the bulk request gets a turn, and each client at most one sentence of 60 tokens.
    sentence_us = 1e6 * SHAPES.sequence_seconds(60)
    assert simulation.now <= 1.3 * seconds_alone(sizes, quantum) * (1 + clients * sentence_us / quantum) + 1


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 8), st.integers(0, 1000), st.sampled_from([FULL_US, SHORT_US]))
def test_sentence_waits_at_most_one_turn_of_each_bulk_request(bulk_clients: int, seed: int, quantum: int) -> None:
    chance, simulation = random.Random(seed), Simulation(quantum)
    for _ in range(bulk_clients):
        simulation.submit([chance.randint(96, 256) for _ in range(256)])
    longest = max(quantum / 1e6, SHAPES.costs.seconds(SHAPES.full_shape(256)))
    for _ in range(50):
        simulation.run_batch()
        sentence, started = simulation.submit([chance.randint(3, 60)]), simulation.now
        while sentence not in simulation.finished:
            simulation.run_batch()
        # One turn per bulk request, the sentence's batch, and one partial batch.
        assert simulation.now - started <= (bulk_clients + 2) * 2 * longest


def test_tasks_over_the_limit_keep_their_place() -> None:
    queue = ItemQueue(100)
    queue.put(["long"], [cost_of(500)])
    queue.put(["short", "also long"], [cost_of(60), cost_of(300)])
    queue.put(["last"], [cost_of(70)])
    assert queue.take(TokenLimit(100), 64, max_us=200) == (["short"], 0)
    assert queue.take(TokenLimit(100), 64, max_us=200) == (["last"], 0)
    assert queue.take(TokenLimit(100), 64, max_us=200) == ([], 0)
    assert queue.take(TokenLimit(100), 64) == (["also long"], 0)
    assert queue.take(TokenLimit(100), 64) == (["long"], 0)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([480, 512, 8192]), st.integers(1, 8192), st.integers(1, 64))
def test_requests_share_equally_whatever_the_size_of_their_tasks(quantum: int, large: int, small: int) -> None:
    queue = ItemQueue(quantum)
    rounds = 40 * max(large, quantum)
    queue.put([0] * (rounds // large + 1), [cost_of(large)] * (rounds // large + 1))
    queue.put([1] * (rounds // small + 1), [cost_of(small)] * (rounds // small + 1))
    served = [0, 0]
    while sum(served) < rounds:
        before = queue.us
        batch, _ = queue.take(TokenLimit(quantum), quantum)
        assert len(set(batch)) > 0
        for number in batch:
            served[number] += (large, small)[number]
        assert queue.us == before - sum((large, small)[number] for number in batch)
    assert abs(served[0] - served[1]) <= 2 * (large + quantum)


@pytest.mark.parametrize("max_tokens", [BATCH_TOKENS, 768])
@pytest.mark.parametrize("per_request", [1, 32])
def test_padding_is_small_under_load(per_request: int, max_tokens: int) -> None:
    """With real sentences, less than 3% of the tokens may be padding."""
    sizes = [max(3, len(sentence) // 5) for sentence in sample_sentences(1024)]
    queue = ItemQueue(max_tokens)
    for start in range(0, len(sizes), per_request):
        part = sizes[start : start + per_request]
        queue.put(part, costs_of(part))
    shapes = BatchShapes(256, max_tokens, OpenVinoBackend.batch_shapes)
    padded = batches = 0
    while queue.size:
        batch, _ = queue.take(RowFill(shapes), max_tokens)
        padded += shapes.fit(batch)[0].tokens
        batches += 1
    print(f"{1 - sum(sizes) / padded:.1%} padding, {sum(sizes) / batches:.0f} tokens per batch")
    assert 1 - sum(sizes) / padded < 0.03
    assert sum(sizes) / batches > 0.85 * max_tokens


# Fair shares between callers, with a virtual clock: time is shared by caller, however many requests each has.

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
