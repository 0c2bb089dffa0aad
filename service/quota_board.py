"""Quotas across workers: each worker publishes the tokens it has charged, and reads the other workers' charges.

There is no lock, because its holder could be killed. Each worker writes to a separate area of memory that the
supervisor owns. An area is a table with four columns of eight bytes: the caller, the tokens charged so far, the bucket
level, from which another worker continues, and the time of that level.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Iterable

from service.callers import Caller, Quota

PERIOD_S = 0.025
"""Time between two samples. Every worker knows of a charge after two periods."""
ROWS = 1024
AREA_BYTES = 4 * 8 * ROWS


def create_board(workers: int) -> int:
    """Return the descriptor of shared memory for this many workers."""
    descriptor = os.memfd_create("attendant-quotas", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * AREA_BYTES)
    return descriptor


class Area:
    """The table of one worker. A row is in use if its caller is not 0."""

    def __init__(self, memory: memoryview) -> None:
        column = 8 * ROWS
        self.callers = memory[:column].cast("Q")
        self.charged = memory[column : 2 * column].cast("d")
        self.levels = memory[2 * column : 3 * column].cast("d")
        self.times = memory[3 * column :].cast("d")

    def find(self, caller: int) -> int | None:
        """Return the row of a caller; with 0, an unused row."""
        return next((row for row, other in enumerate(self.callers) if other == caller), None)


class QuotaBoard:
    """One worker's view of the quotas. Call `sample` at least every 50 ms on the event loop."""

    def __init__(self, descriptor: int, number: int, workers: int) -> None:
        memory = memoryview(mmap.mmap(descriptor, workers * AREA_BYTES))
        areas = [Area(memory[start : start + AREA_BYTES]) for start in range(0, len(memory), AREA_BYTES)]
        self._own = areas.pop(number)
        self._others = areas
        self._quotas: dict[str, SharedQuota] = {}

    def sample(self, callers: Iterable[Caller]) -> None:
        """Publish this worker's charges, and apply the other workers' charges."""
        quotas = {caller.name: caller.quota for caller in callers if caller.quota is not None}
        for name in self._quotas.keys() - quotas.keys():
            self._quotas.pop(name).leave()
        for name, quota in quotas.items():
            shared = self._quotas.get(name)
            if shared is None:
                shared = self._quotas[name] = SharedQuota(name, self._own, self._others)
            shared.sample(quota)


class SharedQuota:
    """The quota of one caller."""

    def __init__(self, name: str, own: Area, others: list[Area]) -> None:
        self._id = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) or 1
        self._own = own
        self._others = others
        self._row = own.find(self._id)
        if self._row is None and (row := own.find(0)) is not None:
            own.charged[row] = own.levels[row] = own.times[row] = 0.0
            own.callers[row], self._row = self._id, row
        self._rows: dict[int, int] = {}
        self._seen = {place: self._charged(place) or 0.0 for place in range(len(others))}
        self._quota: Quota | None = None
        self._written = 0.0

    def sample(self, quota: Quota) -> None:
        """Exchange charges. A new quota starts from the lowest level of the other workers that have the caller."""
        now = time.monotonic()
        if quota is not self._quota:
            if self._quota is not None and self._row is not None:
                self._own.charged[self._row] += self._quota.charged - self._written
            self._quota, self._written = quota, 0.0
            rows = [(area, row) for area in self._others if (row := area.find(self._id)) is not None]
            levels = [area.levels[row] + (now - area.times[row]) * quota.tokens_per_second for area, row in rows]
            if levels and min(levels) < quota.level:
                quota.charge_elsewhere(quota.level - min(levels))
        for place, seen in self._seen.items():
            charged = self._charged(place)
            if charged is not None and charged != seen:
                quota.charge_elsewhere(charged - seen)
            self._seen[place] = charged or 0.0
        if self._row is not None:
            self._own.charged[self._row] += quota.charged - self._written
            self._own.levels[self._row], self._own.times[self._row] = quota.level, now
            self._written = quota.charged

    def leave(self) -> None:
        """Free the row of a removed caller."""
        if self._row is not None:
            self._own.callers[self._row] = 0

    def _charged(self, place: int) -> float | None:
        """Return the tokens that another worker has charged; None if it does not know the caller."""
        area, row = self._others[place], self._rows.get(place)
        if row is None or area.callers[row] != self._id:
            if (row := area.find(self._id)) is None:
                return None
            self._rows[place] = row
        return area.charged[row]
