"""What the doors hold: no engine before it is loaded, none once the server refuses."""

import pytest
from prometheus_client import CollectorRegistry

from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.errors import QueueFull, Unavailable
from service.lifecycle import Lifecycle, Status
from service.metrics import Metrics
from tests.service.conftest import fast_lane, open_house


@pytest.fixture
def host() -> Lifecycle:
    return Lifecycle(Metrics(CollectorRegistry()))


def sample(host: Lifecycle, name: str) -> float | None:
    return host._metrics.registry.get_sample_value(name)


def test_lifecycle_is_alive_but_not_ready_when_starting(host: Lifecycle) -> None:
    """Requests are refused with a reason that says to try again."""
    assert (host.status, host.alive, host.ready, host.loaded) == (Status.STARTING, True, False, False)
    with pytest.raises(Unavailable, match="loading") as refused:
        _ = host.engine
    assert refused.value.reason == "starting"


async def test_lifecycle_returns_its_engine_when_ready(host: Lifecycle, engine: Engine) -> None:
    """And the metric says so."""
    host.become_ready(engine)
    assert host.engine is engine
    assert (host.ready, host.loaded, sample(host, "attendant_ready")) == (True, True, 1)


async def test_lifecycle_is_near_capacity_with_its_engine(model: LoadedModel) -> None:
    """And not at all before it has one."""
    async with open_house(model, max_queue_tokens=100) as house:
        assert not Lifecycle(house.metrics).near_capacity
        assert not house.host.near_capacity
        with fast_lane(house).reserve(100):
            assert house.host.near_capacity
            with pytest.raises(QueueFull):
                house.engine.check_capacity(8)
        house.engine.check_capacity(8)


async def test_lifecycle_serves_while_draining_until_it_rejects(host: Lifecycle, engine: Engine) -> None:
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


def test_lifecycle_is_not_alive_when_failed(host: Lifecycle) -> None:
    """So that whoever watches starts another."""
    host.fail()
    assert (host.status, host.alive, host.ready) == (Status.FAILED, False, False)


async def test_closing_without_an_engine_is_nothing(host: Lifecycle) -> None:
    """As when told to stop while loading."""
    await host.close()


async def test_lifecycle_is_unhealthy_with_its_engine(
    host: Lifecycle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog of the app then fails it: neither ready nor alive."""
    assert host.healthy
    host.become_ready(engine)
    assert host.healthy
    monkeypatch.setattr(engine._fast, "_failure", RuntimeError("device lost"))
    assert not host.healthy
    host.fail()
    assert (host.ready, host.alive) == (False, False)
