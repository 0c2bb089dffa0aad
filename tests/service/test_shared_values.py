"""Values of metrics in shared memory: they survive their process, and their sum reads like one process."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.metrics import LARGEST, SMALLEST, SUM, Metrics
from service.shared_values import Aggregate, Cell, Slot


def scrape(*slots: Slot) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Aggregate(slots))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def make_counter(slot: Slot) -> Counter:
    slot.use()
    return Counter("spoons", "Spoons.", ["kind"], registry=None)


def test_counters_of_two_processes_are_added() -> None:
    slots = Slot.create(), Slot.create()
    for amount, slot in enumerate(slots, start=1):
        counter = make_counter(slot)
        counter.labels("tea").inc(amount)
        slot.seal()  # so that the values stay when the counter is deleted
    assert scrape(*slots) == {'spoons_total{kind="tea"}': 3}


def test_counter_continues_in_the_process_that_replaces_a_killed_one() -> None:
    slot = Slot.create()
    killed = make_counter(slot)  # it is not deleted: a killed process deletes nothing
    killed.labels("tea").inc(2)
    slot.reset()
    replacement = make_counter(Slot(slot.descriptor))
    replacement.labels("tea").inc()
    assert scrape(slot) == {'spoons_total{kind="tea"}': 3}


def test_series_of_models_that_were_removed_meanwhile_disappear() -> None:
    slot = Slot.create()
    killed = make_counter(slot)
    for kind in ("tea", "soup"):
        killed.labels(kind).inc()
    slot.reset()
    own = Slot(slot.descriptor)
    replacement = make_counter(own)
    replacement.labels("jam").inc()
    own.forget("kind", {"tea"})
    assert scrape(slot) == {'spoons_total{kind="tea"}': 1, 'spoons_total{kind="jam"}': 1}


def test_series_created_during_a_scrape_appears_in_the_next() -> None:
    """The other process has written the record, but not yet the number of records."""
    slot = Slot.create()
    reader = Slot(slot.descriptor)
    counter = make_counter(slot)
    counter.labels("tea").inc(1)
    counter.labels("soup").inc(2)
    slot.cells[Cell.SERIES] -= 1
    assert scrape(reader) == {'spoons_total{kind="tea"}': 1}
    slot.cells[Cell.SERIES] += 1
    counter.labels("jam").inc(3)
    assert scrape(reader) == {f'spoons_total{{kind="{kind}"}}': n for n, kind in enumerate(("tea", "soup", "jam"), 1)}


def test_gauge_of_a_killed_process_disappears() -> None:
    slot = Slot.create()
    slot.use()
    gauge = Gauge("cups", "Cups.", registry=None, multiprocess_mode=SUM)
    gauge.set(3)
    assert scrape(slot) == {"cups": 3}
    slot.reset()
    assert scrape(slot) == {}


@pytest.mark.parametrize(("mode", "expected"), [(SUM, 7), (LARGEST, 5), (SMALLEST, 2)])
def test_gauges_combine_as_declared(mode: str, expected: float) -> None:
    slots = Slot.create(), Slot.create()
    gauges = []
    for slot, value in zip(slots, (2, 5), strict=True):
        slot.use()
        gauge = Gauge("cups", "Cups.", registry=None, multiprocess_mode=mode)  # type: ignore[arg-type]
        gauge.set(value)
        gauges.append(gauge)
    assert scrape(*slots) == {"cups": expected}


def test_histogram_is_that_of_all_observations_in_one_process() -> None:
    parent = Histogram("seconds", "Seconds.", ["lane"], registry=(registry := CollectorRegistry()), buckets=(1, 2))
    usual, shared, parents = parent.labels("fast"), [], []
    slots = Slot.create(), Slot.create()
    for slot in slots:
        slot.use()
        parents.append(Histogram("seconds", "Seconds.", ["lane"], registry=None, buckets=(1, 2)))
        shared.append(parents[-1].labels("fast"))
    for place, seconds in enumerate((0.5, 1.5, 1.25, 9)):
        for histogram in (usual, shared[place % 2]):
            histogram.observe(seconds)
    expected = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    together = CollectorRegistry()
    together.register(Aggregate(slots))
    assert generate_latest(together).decode().splitlines() == expected


def test_removed_label_set_is_gone_and_starts_from_0_again() -> None:
    slot = Slot.create()
    counter = make_counter(slot)
    counter.labels("tea").inc(4)
    counter.remove("tea")
    assert scrape(slot) == {}
    counter.labels("tea").inc()
    assert scrape(slot) == {'spoons_total{kind="tea"}': 1}


def test_functions_of_gauges_are_stored() -> None:
    slot = Slot.create()
    slot.use()
    metrics = Metrics(CollectorRegistry())
    metrics.connections.set_function(lambda: 5)
    metrics.queue_size.labels("fast", "m").set_function(lambda: 6)
    metrics.read_functions()
    exposed = scrape(slot)
    assert exposed["attendant_http_connections"] == 5
    assert exposed['attendant_queue_size{lane="fast",model="m"}'] == 6


def test_values_beyond_the_capacity_are_not_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.shared_values.MAX_SERIES", 1)
    slot = Slot.create()
    counter = make_counter(slot)
    for kind in ("tea", "soup"):
        counter.labels(kind).inc()
    assert scrape(slot) == {'spoons_total{kind="tea"}': 1}
