"""Budgets of memory: shares of holders, and reservations that end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import MemoryShareExceeded, Overloaded, ServiceError
from service.memory import MemoryBudget, Reservation

LIMIT = 1000


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, LIMIT), st.booleans()), max_size=40))
def test_no_holder_gets_more_than_is_free(steps: list[tuple[str, int, bool]]) -> None:
    """Whatever was accepted before, the others can still use what one holder leaves."""
    budget = MemoryBudget(LIMIT, "responses")
    open_ones: list[tuple[str, Reservation]] = []
    for holder, size, ends in steps:
        if ends and open_ones:
            open_ones.pop(0)[1].close()
        others = sum(item.size for name, item in open_ones if name != holder)
        own = sum(item.size for name, item in open_ones if name == holder)
        reservation = Reservation(budget, holder)
        try:
            reservation.grow(size)
        except ServiceError:
            assert own + others
            assert own + size > LIMIT - own - others
        else:
            assert own + others == 0 or own + size <= LIMIT - own - others
            open_ones.append((holder, reservation))
    assert budget.used == sum(item.size for _, item in open_ones)
    for _, reservation in open_ones:
        reservation.close()
        reservation.close()
    assert budget.used == 0


def test_rejections_tell_the_share_of_a_caller_from_the_limit() -> None:
    budget = MemoryBudget(LIMIT, "responses")
    budget.acquire("a", 450)
    with pytest.raises(MemoryShareExceeded) as share:
        budget.acquire("a", 200)
    assert share.value.message == (
        "Too many pending responses of this caller (450 bytes in use, 200 requested, 100 available). Finish sending "
        "requests and read their responses, then retry."
    )
    budget.acquire("b", 200)
    with pytest.raises(Overloaded):
        budget.acquire("b", 400)


def test_closed_reservation_reserves_nothing() -> None:
    """A thread may still prepare a request that was cancelled."""
    budget = MemoryBudget(LIMIT, "responses")
    reservation = Reservation(budget, "a")
    reservation.grow(400)
    with pytest.raises(Overloaded):
        budget.acquire("b", 700)
    reservation.set(300)
    assert budget.used == 300
    reservation.close()
    reservation.grow(500)
    reservation.set(500)
    assert budget.used == 0
