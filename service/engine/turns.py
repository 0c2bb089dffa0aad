"""Turns of several models at the same inference threads."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Admits batches of several lanes to `streams` streams, in proportion to the time that each lane has used.

    Each model has threads of its own for all streams, because a runtime binds threads to a compiled model. Without
    turns, a model under load leaves another one a fraction of each core, and a batch that runs on several threads waits
    for the slowest of them. With turns, a batch waits for at most one batch per stream of other models, and then has
    its threads to itself. A lane that is alone gets every turn at once.

    The next turn goes to the waiting lane that has used the least time, as in stride scheduling (Waldspurger and Weihl,
    1995). A lane that was idle starts at the time of the others, so that it has no claim on past time.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._changed = threading.Condition()
        self._used_s: dict[object, float] = {}
        self._waiting: dict[object, int] = {}
        self._running: dict[object, int] = {}

    @contextmanager
    def take(self, lane: object) -> Iterator[None]:
        """Wait for a turn of `lane`, which lasts until the block ends."""
        with self._changed:
            if lane not in self._running and lane not in self._waiting:
                active = [self._used_s[other] for other in (*self._running, *self._waiting)]
                self._used_s[lane] = max(self._used_s.get(lane, 0.0), min(active, default=0.0))
            _add(self._waiting, lane, 1)
            try:
                while not self._may_run(lane):
                    self._changed.wait()
            finally:
                _add(self._waiting, lane, -1)
            _add(self._running, lane, 1)
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._changed:
                self._used_s[lane] += time.perf_counter() - started
                _add(self._running, lane, -1)
                if self._waiting:
                    self._changed.notify_all()

    def _may_run(self, lane: object) -> bool:
        others = (self._running.keys() | self._waiting.keys()) - {lane}
        if all(self._used_s[lane] <= self._used_s[other] for other in others):
            return True
        return sum(self._running.values()) < self._streams and not self._waiting.keys() - {lane}


def _add(counts: dict[object, int], lane: object, number: int) -> None:
    """Add to a count, and remove it at 0."""
    counts[lane] = counts.get(lane, 0) + number
    if not counts[lane]:
        del counts[lane]
