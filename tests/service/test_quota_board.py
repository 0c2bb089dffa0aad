"""Quotas that several workers share."""

import itertools

import pytest

from service import callers, quota_board
from service.callers import Caller, Quota
from service.errors import QuotaExceeded
from service.quota_board import PERIOD_S, QuotaBoard, create_board

RATE = 1000.0
BATCH = 64


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(callers, "time", clock)
    monkeypatch.setattr(quota_board, "time", clock)
    return clock


class Workers:
    """The quotas of one caller in several workers."""

    def __init__(self, count: int) -> None:
        self.memory = create_board(count)
        self.count = count
        self.callers = [Caller("a", 1, Quota(RATE)) for _ in range(count)]
        self.boards = [QuotaBoard(self.memory, number, count) for number in range(count)]
        self.sample()

    def sample(self) -> None:
        for board, caller in zip(self.boards, self.callers, strict=True):
            board.sample([caller])

    def quota(self, number: int) -> Quota:
        quota = self.callers[number].quota
        assert quota is not None
        return quota

    def restart(self, number: int) -> None:
        self.callers[number] = Caller("a", 1, Quota(RATE))
        self.boards[number] = QuotaBoard(self.memory, number, self.count)
        self.boards[number].sample([self.callers[number]])

    def try_charge(self, number: int) -> int:
        try:
            self.quota(number).check()
        except QuotaExceeded:
            return 0
        self.quota(number).charge(BATCH)
        return BATCH


@pytest.mark.parametrize("count", [1, 2, 4])
def test_quota_is_that_of_one_server(clock: Clock, count: int) -> None:
    workers = Workers(count)
    workers.quota(0).charge(int(RATE * callers.BURST_S))  # the burst of a caller that was idle
    for _ in range(4):
        clock.now += PERIOD_S
        workers.sample()
    used, start, turns = -workers.quota(0).level, clock.now, itertools.cycle(range(count))
    while clock.now < start + 10:
        used += sum(workers.try_charge(next(turns)) for _ in range(5))
        clock.now += 0.005
        if int(clock.now / 0.005) % 5 == 0:
            workers.sample()
    assert used == pytest.approx(10 * RATE, abs=0.01 * 10 * RATE + count * BATCH)


def test_charge_of_one_worker_stops_the_others(clock: Clock) -> None:
    workers = Workers(2)
    workers.quota(0).charge(int(RATE * 20))
    assert workers.try_charge(1) == BATCH
    workers.sample()
    workers.sample()
    assert workers.try_charge(1) == 0


def test_returned_tokens_reach_the_others(clock: Clock) -> None:
    workers = Workers(2)
    workers.quota(0).charge(500)
    workers.sample()
    workers.sample()
    workers.quota(0).charge(-500)
    workers.sample()
    workers.sample()
    assert workers.quota(1).level == RATE * callers.BURST_S


def test_restarted_worker_knows_the_debt(clock: Clock) -> None:
    workers = Workers(2)
    workers.quota(0).charge(int(RATE * 30))
    workers.sample()
    workers.sample()
    workers.restart(1)
    assert workers.quota(1).level == workers.quota(0).level < 0
    workers.sample()
    assert workers.quota(0).level == workers.quota(1).level


def test_debt_that_a_dead_worker_left_has_been_refilled(clock: Clock) -> None:
    workers = Workers(3)
    workers.quota(2).charge(int(RATE * 30))
    workers.sample()
    workers.sample()
    assert workers.quota(1).level == -20 * RATE
    clock.now += 40
    for number in (0, 1):  # the third one has died
        workers.boards[number].sample([workers.callers[number]])
    workers.restart(1)
    assert workers.quota(1).level == workers.quota(0).level == RATE * callers.BURST_S


def test_worker_that_learns_of_a_caller_later_grants_no_second_burst(clock: Clock) -> None:
    """Workers read a changed file of keys within seconds of each other."""
    workers = Workers(2)
    for board in workers.boards:
        board.sample([])
    added = Caller("b", 1, Quota(RATE))
    workers.boards[0].sample([added])
    assert added.quota is not None
    added.quota.charge(int(RATE * 12))
    workers.boards[0].sample([added])
    clock.now += 1
    later = Caller("b", 1, Quota(RATE))
    workers.boards[1].sample([later])
    assert later.quota is not None
    assert later.quota.level == added.quota.level == -RATE


def test_caller_that_leaves_and_returns_starts_anew(clock: Clock) -> None:
    workers = Workers(2)
    workers.quota(0).charge(700)
    workers.sample()
    for board in workers.boards:
        board.sample([])
    workers.callers = [Caller("a", 1, Quota(RATE)) for _ in range(2)]
    workers.sample()
    workers.sample()
    assert workers.quota(1).level == RATE * callers.BURST_S
