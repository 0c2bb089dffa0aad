"""A running service and its clients."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from attendant_client import Client

from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, NO_RETRIES, service_url
from tests.serving import ServiceThread


@dataclass(frozen=True)
class RemoteService:
    """A service that runs elsewhere, such as in a container."""

    rest: str
    grpc: str


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread | RemoteService]:
    """A service in this process, or the one at the REST and gRPC addresses in TEST_SERVICE."""
    if addresses := os.environ.get("TEST_SERVICE"):
        yield RemoteService(*addresses.split())
        return
    with ServiceThread(model) as running:
        yield running


@pytest.fixture(params=KINDS)
def client(service: ServiceThread, request: pytest.FixtureRequest) -> Iterator[Client]:
    kind, protocol = KINDS[request.param]
    with kind(service_url(service, protocol), retries=NO_RETRIES) as opened:
        yield opened
