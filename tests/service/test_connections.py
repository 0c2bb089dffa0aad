"""Which connections stay when there are too many."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import connections
from service.connections import ConnectionTable, normal_address, parse_networks

LIMIT, PER_ADDRESS = 12, 6
ADDRESSES = [f"10.0.0.{number}" for number in range(4)]


@given(st.lists(st.tuples(st.sampled_from(ADDRESSES), st.sampled_from(["open", "know", "busy", "leave"])), max_size=80))
def test_limits_hold_and_idle_connections_make_room(steps: list[tuple[str, str]]) -> None:
    busy: set[int] = set()
    table: ConnectionTable[int] = ConnectionTable(LIMIT, PER_ADDRESS, (), lambda key: key in busy)
    owners: dict[int, str] = {}
    known: set[int] = set()
    for number, (address, step) in enumerate(steps):
        own = [key for key, owner in owners.items() if owner == address]
        if step != "open":
            for key in own[-1:]:
                if step == "leave":
                    table.remove(key)
                    del owners[key]
                elif step == "busy":
                    busy.add(key)
                else:
                    table.set_known(key)
                    known.add(key)
            continue
        idle_unknown = [key for key in owners if key not in busy | known]
        closed = table.add(number, address)
        owners[number] = address
        if closed is None:
            assert len(table) == len(owners) <= LIMIT
            continue
        assert closed not in busy
        if closed == number:  # nothing idle could make room
            assert not [key for key in idle_unknown if len(own) < PER_ADDRESS or owners[key] == address]
        table.remove(closed)
        del owners[closed]
        assert len(table) == len(owners) <= LIMIT
    assert max(Counter(owners.values()).values(), default=0) <= PER_ADDRESS


def test_idle_connections_of_one_address_do_not_lock_out_others() -> None:
    """Neither unknown ones nor, without keys, known ones. The oldest connection goes first."""
    table: ConnectionTable[int] = ConnectionTable(4, 4)
    for number in range(4):
        assert table.add(number, "10.0.0.1") is None
    assert table.add(4, "10.0.0.2") == 0
    table.remove(0)
    for number in range(1, 5):
        table.set_known(number)
    assert table.add(5, "10.0.0.3") == 1


def test_proxies_and_addresses_of_ipv4_clients() -> None:
    table: ConnectionTable[int] = ConnectionTable(10, 1, parse_networks("10.1.0.0/16, ::1"))
    assert [table.add(number, "::ffff:10.1.2.3") for number in range(3)] == [None, None, None]
    assert [table.add(number, "10.2.0.1") for number in (3, 4)] == [None, 3]
    assert normal_address("::ffff:10.2.0.1") == "10.2.0.1"


def test_idle_unknown_connections_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNKNOWN_IDLE_S", -1)
    table: ConnectionTable[int] = ConnectionTable(10, 10, is_busy=lambda key: key == 2)
    for number in range(3):
        table.add(number, "10.0.0.1")
    table.set_known(0)
    assert table.expired() == [1]
