"""Metrics shared by several processes: values in memory that outlives the processes, one slot each, and their sums.

A slot is anonymous memory created by the supervisor. A worker stores one double per series in its slot, so nothing is
lost when the worker is killed, and its replacement continues the counters. Only one process writes to a slot at a time,
and a record counts once it is complete, so no locks between processes are needed.
"""

import json
import logging
import mmap
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

from prometheus_client import values
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

MAX_SERIES = 2**18
"""Records are never freed: this many hold 120 busy models, or 250 idle ones, over the life of a server."""
MAX_KEY_BYTES = 2**27
HEADER_BYTES = 4096
VALUES_END = HEADER_BYTES + 8 * MAX_SERIES
KEYS_START = VALUES_END + MAX_SERIES
SIZE = KEYS_START + MAX_KEY_BYTES
"""Size of a slot in bytes. Untouched pages take no memory."""
GAUGE = "gauge"

Key = tuple[str, str, str, str, tuple[tuple[str, str], ...], str]
"""Type, multiprocess mode, family, name, labels and description of a series."""


log = logging.getLogger("attendant.metrics")


class Cell(IntEnum):
    """The doubles at the start of a slot."""

    SERIES = 0
    """Number of complete records."""
    KEYS_END = 1
    """End of the keys, in bytes from `KEYS_START`."""
    BEATS = 2
    """Heartbeats of the event loop."""
    CLOSED = 3
    """Number of closed REST connections among those passed to the worker."""


class Slot:
    """The metric memory of one process. `create` it in the supervisor, and open its descriptor in a worker."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        view = memoryview(self._memory)
        self.cells = view[:HEADER_BYTES].cast("d")
        self.values = view[HEADER_BYTES:VALUES_END].cast("d")
        self.live = view[VALUES_END:KEYS_START]
        self._keys: list[Key] = []
        self._end = 0
        self._indices: dict[Key, int] = {}
        self._owned: set[int] = set()
        self._lock = threading.RLock()
        self._is_full = False
        self.sealed = False
        """True after `seal`: deleted series keep their values."""

    @classmethod
    def create(cls) -> "Slot":
        descriptor = os.memfd_create("attendant-slot", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SIZE)
        return cls(descriptor)

    def use(self) -> None:
        """Store the values of all metrics that this process creates later."""

        def make_value(*series: Any, multiprocess_mode: str = "") -> SharedValue:
            kind, family, name, labels, label_values, description = series
            pairs = tuple(zip(labels, label_values, strict=True))
            return SharedValue(self, (kind, multiprocess_mode, family, name, pairs, description))

        values.ValueClass = make_value  # the hook of prometheus_client's own multiprocess mode

    def seal(self) -> None:
        """Preserve all values when the process exits and deletes its series."""
        self.sealed = True

    def reset(self) -> None:
        """Remove the values of an exited process, except counters and histograms."""
        for index, key in enumerate(self.keys()):
            if key[0] == GAUGE:
                self.live[index] = 0
        self.cells[Cell.BEATS] = self.cells[Cell.CLOSED] = 0

    def forget(self, label: str, known: Collection[str]) -> None:
        """Remove series that an earlier process has left, with a value of this label that is not `known`."""
        for index, (*_, labels, _) in enumerate(self.keys()):
            if index not in self._owned and any(name == label and value not in known for name, value in labels):
                self.live[index] = 0

    def add(self, cell: Cell) -> None:
        """Add 1 to a cell."""
        self.cells[cell] += 1

    def keys(self) -> Sequence[Key]:
        """Return the keys of all records."""
        with self._lock:
            if len(self._keys) < (count := int(self.cells[Cell.SERIES])):
                start, end = KEYS_START + self._end, KEYS_START + int(self.cells[Cell.KEYS_END])
                lines = self._memory[start:end].splitlines(keepends=True)
                lines = lines[: count - len(self._keys)]  # the process may have appended more since
                self._keys += map(_parse, lines)
                self._end += sum(map(len, lines))
            return self._keys

    def claim(self, key: Key) -> int | None:
        """Reserve a value for this process and return its index; None if the slot is full.

        A counter continues from the previous process's value.
        """
        with self._lock:
            if not self._indices:
                self._indices = {known: index for index, known in enumerate(self.keys())}
            index = self._indices.get(key)
            if index is None or index in self._owned:  # a removed value may still be referenced
                index = self._append(key)
                if index is None:
                    return None
                self._indices[key] = index
            if key[0] == GAUGE or not self.live[index]:
                self.values[index] = 0.0
            self._owned.add(index)
            self.live[index] = 1
            return index

    def release(self, index: int) -> None:
        """Remove a value whose label set was removed."""
        if not self.sealed:
            self.live[index] = 0
            self._owned.discard(index)

    def _append(self, key: Key) -> int | None:
        line = json.dumps(key).encode() + b"\n"
        index, start = int(self.cells[Cell.SERIES]), int(self.cells[Cell.KEYS_END])
        if index >= MAX_SERIES or start + len(line) > MAX_KEY_BYTES:
            if not self._is_full:
                self._is_full = True
                log.error("metrics memory full, new models and callers have no metrics until the server restarts")
            return None
        self._memory[KEYS_START + start : KEYS_START + start + len(line)] = line
        self.cells[Cell.KEYS_END] = start + len(line)
        self.cells[Cell.SERIES] = index + 1  # written last: now the record is complete
        return index


def _parse(line: bytes) -> Key:
    kind, mode, family, name, labels, description = json.loads(line)
    return kind, mode, family, name, tuple((label, value) for label, value in labels), description


class SharedValue:
    """A float in a slot, a replacement for prometheus_client's `MutexValue`. It does not support exemplars."""

    _multiprocess = False

    def __init__(self, slot: Slot, key: Key) -> None:
        self._slot = slot
        self._index = slot.claim(key)
        self._values = slot.values if self._index is not None else memoryview(bytearray(8)).cast("d")
        self._place = self._index or 0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._index is not None:
            self._slot.release(self._index)

    def inc(self, amount: float) -> None:
        with self._lock:
            self._values[self._place] += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        self._values[self._place] = value

    def get(self) -> float:
        return self._values[self._place]

    def set_exemplar(self, exemplar: Any) -> None:
        pass

    def get_exemplar(self) -> None:
        return None


class Aggregate(Collector):
    """Collects the metrics of all slots as one process: sums, except for gauges in mode `livemin` or `livemax`."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def collect(self, names: Collection[str] = ()) -> Iterable[Metric]:
        """Return the metrics with these names, or all."""
        totals: dict[Key, float] = {}
        for slot in self._slots:
            for index, key in enumerate(slot.keys()):
                if slot.live[index] and (not names or key[2] in names):
                    value = slot.values[index]
                    totals[key] = _combine(key[1], totals[key], value) if key in totals else value
        families: dict[str, Metric] = {}
        buckets: dict[str, dict[tuple[tuple[str, str], ...], list[Sample]]] = {}
        for (kind, _, family, name, labels, description), value in totals.items():
            metric = families.setdefault(family, Metric(family, description, kind))
            if kind == "histogram":
                child = labels[:-1] if name.endswith("_bucket") else labels
                buckets.setdefault(family, {}).setdefault(child, []).append(Sample(name, dict(labels), value))
            else:
                metric.samples.append(Sample(name, dict(labels), value))
        for family, children in buckets.items():
            for labels, samples in children.items():
                families[family].samples += _cumulate(family, labels, samples)
        return families.values()


def _combine(mode: str, total: float, value: float) -> float:
    return min(total, value) if mode == "livemin" else max(total, value) if mode == "livemax" else total + value


def _cumulate(family: str, labels: tuple[tuple[str, str], ...], samples: Sequence[Sample]) -> Iterator[Sample]:
    """Return the samples of a histogram, given the counts per bucket in the order of their bounds."""
    count = 0.0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            count += sample.value
            yield sample._replace(value=count)
    yield Sample(f"{family}_count", dict(labels), count)
    yield from (sample for sample in samples if sample.name.endswith("_sum"))
