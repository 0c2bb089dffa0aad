"""The watchdog of a lane: batches and preparations that run far beyond their expected time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STALL_FACTOR = 20.0
"""A batch or preparation that takes this many times its expected time has stalled."""
MIN_STALL_S = 10.0
"""No batch has stalled earlier, in seconds: the first batch of a session also opens it."""


class Watchdog:
    """The running batches of a lane. A thread that is stuck in the runtime cannot report an error.

    The time of a batch is what `observe` adds up, not a difference of two clock readings: a process that was suspended
    has no stalled batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remaining: dict[int, float] = {}

    @contextmanager
    def running(self, expected_s: float) -> Iterator[None]:
        """Watch the calling thread while it runs a batch of this expected duration."""
        thread = threading.get_ident()
        with self._lock:
            self._remaining[thread] = max(MIN_STALL_S, STALL_FACTOR * expected_s)
        try:
            yield
        finally:
            with self._lock:
                del self._remaining[thread]

    def observe(self, seconds: float) -> None:
        """Count `seconds` of run time for every running batch."""
        with self._lock:
            for thread in self._remaining:
                self._remaining[thread] -= seconds

    @property
    def stalled(self) -> int:
        """The number of batches that have stalled."""
        with self._lock:
            return sum(seconds < 0 for seconds in self._remaining.values())
