"""An address of another protocol, or with a path, is explained or corrected."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from attendant_client import AsyncClient, AttendantError, Client

from service.engine.model_loader import LoadedModel
from tests.client.clients import NO_RETRIES
from tests.serving import ServiceThread


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model) as running:
        yield running


@pytest.mark.parametrize(
    ("scheme", "port", "hint"),
    [
        ("http", "grpc", "This is a gRPC port: use grpc://, or the REST port."),
        ("grpc", "rest", "This is a REST port: use http://, or the gRPC port."),
        ("https", "rest", "This port has no TLS: use http:// or grpc://."),
        ("grpcs", "grpc", "This port has no TLS: use http:// or grpc://."),
    ],
)
def test_address_of_another_protocol_is_explained(service: ServiceThread, scheme: str, port: str, hint: str) -> None:
    url = f"{scheme}://{service.grpc if port == 'grpc' else service.rest.removeprefix('http://')}"
    with Client(url, timeout_s=3, retries=NO_RETRIES) as client, pytest.raises(AttendantError) as caught:
        client.model()
    assert caught.value.message.endswith(hint)

    async def call() -> None:
        async with AsyncClient(url, timeout_s=3, retries=NO_RETRIES) as client:
            await client.model()

    with pytest.raises(AttendantError) as caught:
        asyncio.run(call())
    assert caught.value.message.endswith(hint)


def test_base_url_of_openai_clients_is_accepted(service: ServiceThread) -> None:
    for path in ("/v1", "/v1/", "/"):
        with Client(service.rest + path) as client:
            assert client.embed(["a"]).shape == (1, 384)


@pytest.mark.parametrize(("path", "nearest"), [("/encode", "/v1/encode"), ("/model", "/v1/model")])
def test_missing_version_is_named(service: ServiceThread, path: str, nearest: str) -> None:
    message = httpx.post(service.rest + path, json={}).json()["error"]["message"]
    assert f"Did you mean {nearest}" in message
