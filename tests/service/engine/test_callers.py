"""Fair shares between callers, with a virtual clock: time is shared by caller, however many requests each has."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from model.packing import TokenLimit
from service.engine.fair_queue import FairQueue
from tests.service.engine.fake_backend import cost_of

QUANTUM = 512
ROUNDS = 60

CALLERS = st.lists(
    st.tuples(st.integers(2, 50), st.integers(1, 30), st.integers(1, 4 * QUANTUM)), min_size=2, max_size=5
)
"""Per caller: requests that are queued at a time, tasks per request, and the largest task."""


class Load:
    """Callers that send the next request as soon as one has finished. A task is (caller, request, size).

    With `busy`, requests have more tasks, so that work of every caller is always queued.
    """

    def __init__(self, callers: list[tuple[int, int, int]], seed: int, *, busy: bool = False) -> None:
        self.queue: FairQueue[tuple[int, int, int]] = FairQueue(QUANTUM)
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
        self.queue.add(
            [(caller, number, size) for size in sizes], [cost_of(size) for size in sizes], caller=str(caller)
        )

    def run_batch(self) -> None:
        batch, dropped = self.queue.select_batch(TokenLimit(QUANTUM), 64)
        assert batch
        assert not dropped
        for caller, number, size in batch:
            self.served[caller] += size
            self._missing[number] -= 1
            if not self._missing[number]:
                self.finished[caller] += 1
                self.send(caller)


@settings(deadline=None, max_examples=40)
@given(CALLERS, st.integers(0, 1000))
def test_callers_share_equally_whatever_they_send(callers: list[tuple[int, int, int]], seed: int) -> None:
    load = Load(callers, seed, busy=True)
    while sum(load.served.values()) < ROUNDS * len(callers) * QUANTUM:
        load.run_batch()
    shares = [load.served[caller] for caller in range(len(callers))]
    # A turn may exceed the deficit by a request's turn, which is a quantum and a task, and be cut short by as much.
    largest = max(size for _, _, size in callers)
    assert max(shares) - min(shares) <= 4 * (QUANTUM + largest)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 2000), st.integers(1, 64), st.integers(0, 1000))
def test_sentence_waits_for_one_turn_of_each_other_caller(requests: int, tasks: int, seed: int) -> None:
    """Another caller's requests delay a sentence by its turn, not by their number."""
    load = Load([(requests, tasks, 60), (3, 256, 256)], seed)
    for _ in range(5):
        load.run_batch()
    for _ in range(20):
        sentence = load.queue.add([(9, -1, 20)], [cost_of(20)], caller="sentences")
        load._missing[-1] = 2  # never finished: it is sent once
        batches = 0
        while sentence in load.queue:
            load.run_batch()
            batches += 1
        assert batches <= 4


@settings(deadline=None, max_examples=40)
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
    queue: FairQueue[str] = FairQueue(8)
    for name in "abcd":
        queue.add([f"{name}1", f"{name}2"], [cost_of(8)] * 2, caller="only")
    assert queue.select_batch(TokenLimit(64), 64)[0] == ["a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2"]


def test_callers_alternate_by_turn() -> None:
    queue: FairQueue[str] = FairQueue(8)
    for name in "abcd":
        queue.add([name], [cost_of(8)], caller="many")
    queue.add(["x1", "x2", "x3"], [cost_of(8)] * 3, caller="one")
    assert queue.select_batch(TokenLimit(64), 64)[0] == ["a", "x1", "b", "x2", "c", "x3", "d"]
