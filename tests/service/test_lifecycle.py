"""Process lifecycle: starting, ready, draining, failed, and the engine available in each state."""

import pytest
from prometheus_client import CollectorRegistry

from service.callers import ANONYMOUS
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.models import Models
from service.errors import QueueFull, Unavailable
from service.lifecycle import Lifecycle, Status
from service.metrics import Metrics
from tests.service.conftest import fast_lane, open_harness


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle(Metrics(CollectorRegistry()))


def sample(lifecycle: Lifecycle, name: str) -> float | None:
    return lifecycle._metrics.registry.get_sample_value(name)


def test_lifecycle_is_alive_but_not_ready_when_starting(lifecycle: Lifecycle) -> None:
    assert (lifecycle.status, lifecycle.alive, lifecycle.ready, lifecycle.loaded) == (
        Status.STARTING,
        True,
        False,
        False,
    )
    with pytest.raises(Unavailable, match="loading") as raised:
        _ = lifecycle.models
    assert raised.value.reason == "STARTING"


async def test_lifecycle_returns_its_engine_when_ready(lifecycle: Lifecycle, engine: Engine) -> None:
    lifecycle.become_ready(Models([engine]))
    assert lifecycle.models.find() is engine
    assert (lifecycle.ready, lifecycle.loaded, sample(lifecycle, "attendant_ready")) == (True, True, 1)


async def test_lifecycle_is_near_capacity_with_its_engine(model: LoadedModel) -> None:
    """Before it has an engine, it is not near capacity."""
    async with open_harness(model, max_queue_tokens=100) as harness:
        assert not Lifecycle(harness.metrics).near_capacity
        assert not harness.lifecycle.near_capacity
        with fast_lane(harness).reserve([100]):
            assert harness.lifecycle.near_capacity
            with pytest.raises(QueueFull):
                harness.engine.reserve(8, ANONYMOUS).release()
        harness.engine.reserve(8, ANONYMOUS).release()


async def test_lifecycle_serves_while_draining_until_it_rejects(lifecycle: Lifecycle, engine: Engine) -> None:
    """Load balancers need time to deregister the instance."""
    lifecycle.become_ready(Models([engine]))
    lifecycle.start_draining()
    assert lifecycle.models.find() is engine
    assert (lifecycle.ready, lifecycle.alive) == (False, True)
    assert (sample(lifecycle, "attendant_ready"), sample(lifecycle, "attendant_draining")) == (0, 1)
    lifecycle.reject_new()
    with pytest.raises(Unavailable, match="shutting down") as raised:
        _ = lifecycle.models
    assert raised.value.reason == "DRAINING"


def test_lifecycle_is_not_alive_when_failed(lifecycle: Lifecycle) -> None:
    """Kubernetes then restarts the process."""
    lifecycle.fail()
    assert (lifecycle.status, lifecycle.alive, lifecycle.ready) == (Status.FAILED, False, False)


async def test_lifecycle_closes_without_an_engine(lifecycle: Lifecycle) -> None:
    """This happens if SIGTERM arrives during startup."""
    await lifecycle.close()


async def test_lifecycle_is_unhealthy_with_its_engine(
    lifecycle: Lifecycle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's watchdog then calls `fail`."""
    assert lifecycle.healthy
    lifecycle.become_ready(Models([engine]))
    assert lifecycle.healthy
    monkeypatch.setattr(engine.fast_lane._workers, "failure", RuntimeError("device lost"))
    assert not lifecycle.healthy
    lifecycle.fail()
    assert (lifecycle.ready, lifecycle.alive) == (False, False)
