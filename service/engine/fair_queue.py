"""Scheduling order: deficit round robin over requests, in tokens.

Each queued request gets a quantum of tokens per round, so a request of 256 passages delays a short request by a few
batches, not by its full duration, and a stream of short requests cannot starve it. A task larger than the quantum waits
for several rounds. Tasks that do not fit in a batch are passed over, and are first in the next one.
Source: Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round Robin, 1995.

Not thread-safe: the scheduler holds its lock around every call.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from model.packing import BatchFill

Item = TypeVar("Item")

LOOKAHEAD = 16
"""Maximum number of tasks that a batch passes over because they do not fit."""


@dataclass(slots=True, eq=False)
class WaitingRequest(Generic[Item]):
    """A queued request: its pending tasks with their sizes, and its deficit in tokens.

    `in_turn`: its next task did not fit in the batch; its turn continues in the next batch, without a new quantum.
    """

    entries: deque[tuple[int, Item]]
    tokens: int
    is_stale: Callable[[], bool]
    deficit: int = 0
    in_turn: bool = False


class Backlog:
    """Histogram of request sizes in power-of-two bins, so that an estimate takes constant time.

    `held` is the number of tokens that count against the limit of the queue: at most `slice_tokens` per request.
    """

    BINS = 40

    def __init__(self, slice_tokens: int | None = None) -> None:
        self.slice_tokens = slice_tokens
        self.tokens = self.held = 0
        self._counts = [0] * self.BINS
        self._sums = [0] * self.BINS

    def add(self, tokens: int, count: int = 1) -> None:
        """Count a request of `tokens`; with `count=-1`, remove it again."""
        number = tokens.bit_length()
        self._counts[number] += count
        self._sums[number] += count * tokens
        self.tokens += count * tokens
        self.held += count * self.held_tokens(tokens)

    def held_tokens(self, tokens: int) -> int:
        """Return how many tokens of a request count against the limit of the queue."""
        return tokens if self.slice_tokens is None else min(tokens, self.slice_tokens)

    def tokens_ahead_of(self, tokens: int) -> int:
        """Return an upper bound on the tokens that run before a new request of `tokens` has finished.

        The exact value is the sum over queued requests of min(their tokens, `tokens`), which is what round robin
        gives them meanwhile. The bound is at most twice as high: requests in the same bin are treated alike.
        """
        own = tokens.bit_length()
        smaller, larger = sum(self._sums[:own]), sum(self._counts[own + 1 :])
        return smaller + larger * tokens + min(self._sums[own], self._counts[own] * tokens)


class FairQueue(Generic[Item]):
    """Queued requests, served round robin; `quantum` tokens per turn. `backlog` counts them, and other requests."""

    def __init__(self, quantum: int, backlog: Backlog | None = None) -> None:
        self.backlog = backlog or Backlog()
        self.tokens = 0
        self._quantum = quantum
        self._size = 0
        self._ring: OrderedDict[int, WaitingRequest[Item]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of queued tasks."""
        return self._size

    def add(
        self, items: Sequence[Item], sizes: Sequence[int], is_stale: Callable[[], bool] = lambda: False
    ) -> WaitingRequest[Item]:
        """Append a request at the tail. If it `is_stale` when its turn comes, it is dropped."""
        request = WaitingRequest(deque(zip(sizes, items, strict=True)), sum(sizes), is_stale)
        self._ring[id(request)] = request
        self._count(request, len(items), request.tokens)
        return request

    def discard(self, request: WaitingRequest[Item]) -> list[Item]:
        """Remove and return the tasks of a request that have not started."""
        if self._ring.pop(id(request), None) is None:
            return []
        items = [item for _, item in request.entries]
        self._count(request, -len(items), -request.tokens)
        return items

    def clear(self) -> list[Item]:
        """Remove and return every queued task."""
        return [item for request in list(self._ring.values()) for item in self.discard(request)]

    def select_batch(self, fill: BatchFill, max_size: int) -> tuple[list[Item], int]:
        """Remove and return the next batch, and the number of stale tasks that were discarded during selection.

        A task that does not fit is passed over, and is first in the next batch.
        """
        batch: list[Item] = []
        dropped = passed_over = 0
        waiting: list[WaitingRequest[Item]] = []
        while self._ring and fill.free and len(batch) < max_size and passed_over < LOOKAHEAD:
            request = next(iter(self._ring.values()))
            if request.is_stale():
                dropped += len(self.discard(request))
                continue
            if not request.in_turn:
                request.deficit += self._quantum
            entries, before, taken = request.entries, len(batch), 0
            skipped: list[tuple[int, Item]] = []
            while entries and fill.free and len(batch) < max_size and passed_over < LOOKAHEAD:
                size, item = entries[0]
                if size > request.deficit:
                    break  # the deficit is carried to the next round
                entries.popleft()
                if not fill.add(size):
                    skipped.append((size, item))
                    passed_over += 1
                    continue
                batch.append(item)
                taken += size
                request.deficit -= size
            entries.extendleft(reversed(skipped))
            # The batch is full before the turn is: it continues in the next batch.
            request.in_turn = bool(entries) and entries[0][0] <= request.deficit
            self._count(request, before - len(batch), -taken)
            if not entries:
                del self._ring[id(request)]
            elif request.in_turn:
                waiting.append(self._ring.pop(id(request)))
            else:
                self._ring.move_to_end(id(request))
        for request in reversed(waiting):
            self._ring[id(request)] = request
            self._ring.move_to_end(id(request), last=False)
        return batch, dropped

    def _count(self, request: WaitingRequest[Item], tasks: int, tokens: int) -> None:
        """Update the counters after adding tasks to a request, or removing them (negative numbers)."""
        self._size += tasks
        self.tokens += tokens
        if tokens > 0:
            self.backlog.add(request.tokens)
        elif tokens < 0:
            self.backlog.add(request.tokens, -1)
            remaining = request.tokens + tokens
            request.tokens = remaining
            if remaining:
                self.backlog.add(remaining)
