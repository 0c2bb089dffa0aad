"""A running service, and clients of it."""

from collections.abc import Iterator

import pytest
from attendant_client import Client

from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, NO_RETRIES, url_of
from tests.serving import ServiceThread


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model) as running:
        yield running


@pytest.fixture(params=KINDS)
def client(service: ServiceThread, request: pytest.FixtureRequest) -> Iterator[Client]:
    kind, protocol = KINDS[request.param]
    with kind(url_of(service, protocol), retries=NO_RETRIES) as opened:
        yield opened
