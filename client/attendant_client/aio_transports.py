"""Asynchronous transports: one request, one response."""

from typing import Any, Protocol

import grpc
import httpx

from attendant_client import grpc_codec, grpc_requests
from attendant_client.bodies import Body
from attendant_client.connections import Address, authorization, timed_out, unreachable
from attendant_client.pb.encoder_pb2_grpc import EncoderServiceStub
from attendant_client.tls import TlsFiles
from attendant_client.transports import http_request, http_response, open_channel


class AsyncTransport(Protocol):
    """A connection to one server."""

    async def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        """Return the response; raises `AttendantError`."""

    async def close(self) -> None:
        """Close the connection."""


class AsyncHttpTransport:
    """REST over a connection pool."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._client = httpx.AsyncClient(**address.http_options(api_key))

    async def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        request = http_request(self._client, operation, body, timeout_s)
        try:
            response = await self._client.send(request)
        except httpx.TimeoutException:
            raise timed_out(timeout_s) from None
        except httpx.TransportError as error:
            raise unreachable(f"{request.url}: {error}") from None
        return http_response(operation, response)

    async def close(self) -> None:
        await self._client.aclose()


class AsyncGrpcTransport:
    """gRPC over one channel."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._metadata = tuple(authorization(api_key).items())
        self._channel = open_channel(grpc.aio, address)
        self._stub: Any = EncoderServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        message = grpc_requests.to_message(operation, body)
        call = getattr(self._stub, grpc_codec.METHODS[operation])(message, timeout=timeout_s, metadata=self._metadata)
        try:
            messages = [item async for item in call] if operation == "attend" else [await call]
        except grpc.RpcError as error:
            raise grpc_codec.to_error(error) from None
        return grpc_codec.decode(operation, messages)

    async def close(self) -> None:
        await self._channel.close()


def open_async_transport(url: str, api_key: str | None, tls: TlsFiles | None) -> AsyncTransport:
    """Return the transport for a URL. Call it on the event loop."""
    address = Address.parse(url, tls)
    return AsyncGrpcTransport(address, api_key) if address.is_grpc else AsyncHttpTransport(address, api_key)
