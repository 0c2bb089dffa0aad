"""Scheduling order: deficit round robin over callers, then over the requests of each, in microseconds of run time.

Callers share the time by their weights, however many requests each has queued. Each queued request of a caller gets a
quantum per round, so a request of 256 passages delays a short request by a few batches, not by its full duration, and a
stream of short requests cannot starve it. A task larger than the quantum waits for several rounds. Tasks that do not
fit in a batch are passed over, and are first in the next one.
Source: Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round Robin, 1995.

Not thread-safe: the workers hold their lock around every call.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from model.artifact.packing import BatchFill
from service.callers import ANONYMOUS, Caller
from service.engine.backlog import Cost, LaneBacklog

Item = TypeVar("Item")

LOOKAHEAD = 16
"""Maximum number of tasks that a batch passes over because they do not fit."""


@dataclass(slots=True, eq=False)
class WaitingRequest(Generic[Item]):
    """A queued request: its pending tasks, their total cost, and its deficit in microseconds.

    `in_turn`: its turn was cut short, by the end of the batch or of its caller's turn, and continues without a new
    quantum.
    """

    entries: deque[tuple[Cost, Item]]
    cost: Cost
    is_stale: Callable[[], bool]
    caller: Caller
    deficit: int = 0
    in_turn: bool = False


class _Caller(Generic[Item]):
    """The queued requests of one caller, served round robin, and the deficit of the caller in microseconds.

    `in_turn`: its turn has begun. While a batch is selected, `passed` are its first requests, which have no turn in it,
    and `cut_short` says that one of them did not fit.
    """

    __slots__ = ("cut_short", "deficit", "in_turn", "passed", "requests", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.deficit = 0
        self.in_turn = self.cut_short = False
        self.requests: OrderedDict[int, WaitingRequest[Item]] = OrderedDict()
        self.passed: list[WaitingRequest[Item]] = []

    def pass_over(self, request: WaitingRequest[Item]) -> None:
        """Keep a request for the next batch."""
        self.passed.append(self.requests.pop(id(request)))

    def restore(self) -> None:
        """Return the requests that were passed over to their place, the head."""
        self.cut_short = False
        while self.passed:
            request = self.passed.pop()
            self.requests[id(request)] = request
            self.requests.move_to_end(id(request), last=False)


class FairQueue(Generic[Item]):
    """Queued requests, served round robin by caller, and for each caller by request; `quantum` microseconds per turn.

    `backlog` counts them, and others. The queue has `size` tasks, with `tokens` tokens and `us` microseconds.
    `arrivals` requests were added so far.
    """

    def __init__(self, quantum: int, backlog: LaneBacklog | None = None) -> None:
        self.backlog = backlog or LaneBacklog()
        self.size = self.tokens = self.us = self.arrivals = 0
        self._quantum = quantum
        self._callers: OrderedDict[str, _Caller[Item]] = OrderedDict()

    def __contains__(self, request: WaitingRequest[Item]) -> bool:
        """Return whether tasks of a request are queued."""
        caller = self._callers.get(request.caller.name)
        return caller is not None and id(request) in caller.requests

    def add(
        self,
        items: Sequence[Item],
        costs: Sequence[Cost],
        is_stale: Callable[[], bool] = lambda: False,
        caller: Caller = ANONYMOUS,
    ) -> WaitingRequest[Item]:
        """Append a request at the tail of its caller's. If it `is_stale` when its turn comes, it is dropped."""
        request = WaitingRequest(deque(zip(costs, items, strict=True)), Cost.total(costs), is_stale, caller)
        name = caller.name
        if name not in self._callers:
            self._callers[name] = _Caller(caller.weight)
        self._callers[name].requests[id(request)] = request
        self.arrivals += 1
        self.size += len(items)
        self.tokens += request.cost.tokens
        self.us += request.cost.us
        self.backlog.count(request.cost, caller)
        return request

    def discard(self, request: WaitingRequest[Item]) -> list[Item]:
        """Remove and return the tasks of a request that have not started."""
        caller = self._callers.get(request.caller.name)
        if caller is None or caller.requests.pop(id(request), None) is None:
            return []
        if not (caller.requests or caller.passed):
            del self._callers[request.caller.name]
        items = [item for _, item in request.entries]
        request.entries.clear()
        self._remove(request, len(items), request.cost)
        return items

    def clear(self) -> list[Item]:
        """Remove and return every queued task."""
        requests = [request for caller in self._callers.values() for request in caller.requests.values()]
        return [item for request in requests for item in self.discard(request)]

    def select_batch(
        self, fill: BatchFill, max_size: int, quantum: int | None = None, max_us: float = math.inf
    ) -> tuple[list[Item], int]:
        """Remove and return the next batch, and the number of stale tasks that were discarded during selection.

        A task that does not fit is passed over, and is first in the next batch. `quantum` replaces the default.
        Requests whose next task takes more than `max_us` keep their place.
        """
        quantum = self._quantum if quantum is None else quantum
        selection: _Selection[Item] = _Selection(fill, max_size, max_us)
        dropped = 0
        top_weight = max((caller.weight for caller in self._callers.values()), default=1)
        credit = 0  # once the batch has no room for a caller in its turn, others may fill the rest, on credit
        passing: dict[str, _Caller[Item]] = {}  # callers with requests that were passed over
        while self._callers and selection.open:
            name, caller = next(iter(self._callers.items()))
            if not caller.requests:
                passing[name] = self._callers.pop(name)
                continue
            request = next(iter(caller.requests.values()))
            if request.is_stale():
                dropped += len(self.discard(request))
                continue
            on_credit = 0 if caller.cut_short else credit
            if request.entries[0][0].us <= max_us:
                # The largest weight gets the quantum, so that no turn is longer.
                caller_quantum = max(1, quantum * caller.weight // top_weight)
                self._take_turn(caller, request, selection, quantum, caller_quantum, on_credit)
                credit = quantum if caller.cut_short else credit
            else:
                caller.pass_over(request)
            if caller.passed:
                passing[name] = caller
            if not (caller.in_turn or on_credit) and name in self._callers:
                self._callers.move_to_end(name)
        for name, caller in reversed(passing.items()):
            caller.restore()
            if name not in self._callers:
                self._callers[name] = caller
                self._callers.move_to_end(name, last=False)
        return selection.batch, dropped

    def _take_turn(
        self,
        caller: _Caller[Item],
        request: WaitingRequest[Item],
        selection: "_Selection[Item]",
        quantum: int,
        caller_quantum: int,
        credit: int,
    ) -> None:
        """Move tasks of a request to the batch, within its own deficit and the caller's deficit plus credit."""
        first_us = request.entries[0][0].us
        for turn, own_quantum in ((caller, caller_quantum), (request, quantum))[bool(credit) :]:
            if not turn.in_turn:
                turn.deficit += own_quantum
                turn.in_turn = True
            elif not caller.cut_short:  # a turn that continues in another batch may have begun with a larger quantum
                turn.deficit = min(turn.deficit, own_quantum + first_us)
        before = len(selection.batch)
        taken = selection.take(request, caller.deficit + credit)
        caller.deficit -= taken.us
        self._remove(request, len(selection.batch) - before, taken)
        if not request.entries:
            del caller.requests[id(request)]
            if not (caller.requests or caller.passed):
                del self._callers[request.caller.name]
            return
        next_us = request.entries[0][0].us
        if next_us > request.deficit:
            request.in_turn = False
            caller.requests.move_to_end(id(request))
        elif next_us > caller.deficit and not (caller.cut_short or credit):
            caller.in_turn = False
        else:  # the batch is full before the turn of the request, and so that of its caller, is over
            caller.pass_over(request)
            caller.cut_short = True

    def _remove(self, request: WaitingRequest[Item], tasks: int, cost: Cost) -> None:
        """Update the counters after removing tasks of a request."""
        self.size -= tasks
        self.tokens -= cost.tokens
        self.us -= cost.us
        self.backlog.count(request.cost, request.caller, -1)
        if request.entries:
            request.cost = request.cost.minus(cost)
            self.backlog.count(request.cost, request.caller)


class _Selection(Generic[Item]):
    """A batch while its tasks are selected. No task may take more than `max_us`."""

    def __init__(self, fill: BatchFill, max_size: int, max_us: float) -> None:
        self.batch: list[Item] = []
        self.max_us = max_us
        self._fill = fill
        self._max_size = max_size
        self._passed_over = 0

    @property
    def open(self) -> bool:
        """True while the batch may have room."""
        return self._fill.free > 0 and len(self.batch) < self._max_size and self._passed_over < LOOKAHEAD

    def take(self, request: WaitingRequest[Item], limit_us: int) -> Cost:
        """Move tasks of a request to the batch, as far as its deficit and `limit_us` go, and return their cost."""
        entries, tokens, us = request.entries, 0, 0
        skipped: list[tuple[Cost, Item]] = []
        while entries and self.open:
            cost, item = entries[0]
            if cost.us > min(request.deficit, limit_us - us, self.max_us):
                break  # the deficit is carried to the next round
            entries.popleft()
            if self._fill.add(cost.tokens):
                self.batch.append(item)
                request.deficit -= cost.us
                tokens += cost.tokens
                us += cost.us
            else:
                skipped.append((cost, item))
                self._passed_over += 1
        entries.extendleft(reversed(skipped))
        return Cost(tokens, us)
