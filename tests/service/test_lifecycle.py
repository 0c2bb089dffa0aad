"""What the doors hold: no engine before it is loaded, none once the server refuses."""

import pytest
from prometheus_client import CollectorRegistry

from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.errors import QueueFull, Unavailable
from service.lifecycle import Lifecycle, Status
from service.metrics import Metrics
from tests.service.conftest import fast_queue, open_house


@pytest.fixture
def host() -> Lifecycle:
    return Lifecycle(Metrics(CollectorRegistry()))


def sample(host: Lifecycle, name: str) -> float | None:
    return host._metrics.registry.get_sample_value(name)


def test_a_host_that_starts_is_alive_but_not_ready(host: Lifecycle) -> None:
    """Requests are refused with a reason that says to try again."""
    assert (host.status, host.alive, host.ready, host.loaded) == (Status.STARTING, True, False, False)
    with pytest.raises(Unavailable, match="loading") as refused:
        _ = host.engine
    assert refused.value.reason == "starting"


async def test_a_ready_host_gives_its_engine(host: Lifecycle, engine: Engine) -> None:
    """And the metric says so."""
    host.become_ready(engine)
    assert host.engine is engine
    assert (host.ready, host.loaded, sample(host, "attendant_ready")) == (True, True, 1)


async def test_a_host_is_as_crowded_as_its_engine(model: LoadedModel) -> None:
    """And not at all before it has one."""
    async with open_house(model, max_queue_tokens=100) as house:
        assert not Lifecycle(house.metrics).near_capacity
        assert not house.host.near_capacity
        with fast_queue(house).reserve(100):
            assert house.host.near_capacity
            with pytest.raises(QueueFull):
                house.engine.check_room(8)
        house.engine.check_room(8)


async def test_a_draining_host_serves_until_it_refuses(host: Lifecycle, engine: Engine) -> None:
    """Balancers need a moment to look away."""
    host.become_ready(engine)
    host.start_draining()
    assert host.engine is engine
    assert (host.ready, host.alive) == (False, True)
    assert (sample(host, "attendant_ready"), sample(host, "attendant_draining")) == (0, 1)
    host.reject_new()
    with pytest.raises(Unavailable, match="stopping") as refused:
        _ = host.engine
    assert refused.value.reason == "draining"


def test_a_failed_host_is_not_alive(host: Lifecycle) -> None:
    """So that whoever watches starts another."""
    host.fail()
    assert (host.status, host.alive, host.ready) == (Status.FAILED, False, False)


async def test_closing_without_an_engine_is_nothing(host: Lifecycle) -> None:
    """As when told to stop while loading."""
    await host.close()
