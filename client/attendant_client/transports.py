"""Synchronous transports: one request, one response."""

from typing import Any, Protocol
from urllib.parse import quote

import grpc
import httpx

from attendant_client import grpc_codec, grpc_requests, http_codec
from attendant_client.bodies import Body, find_surrogates
from attendant_client.connections import (
    SLACK_S,
    TIMEOUT_HEADER,
    Address,
    authorization,
    timed_out,
    unreachable,
)
from attendant_client.errors import invalid
from attendant_client.pb.encoder_pb2_grpc import EncoderServiceStub
from attendant_client.tls import TlsFiles


class Transport(Protocol):
    """A connection to one server."""

    def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        """Return the response; raises `AttendantError`."""

    def close(self) -> None:
        """Close the connection."""


class HttpTransport:
    """REST over a connection pool."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._client = httpx.Client(**address.http_options(api_key))

    def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        request = http_request(self._client, operation, body, timeout_s)
        try:
            response = self._client.send(request)
        except httpx.TimeoutException:
            raise timed_out(timeout_s) from None
        except httpx.TransportError as error:
            raise unreachable(f"{request.url}: {error}") from None
        return http_response(operation, response)

    def close(self) -> None:
        self._client.close()


class GrpcTransport:
    """gRPC over one channel."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._metadata = tuple(authorization(api_key).items())
        self._channel = open_channel(grpc, address)
        self._stub: Any = EncoderServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def call(self, operation: str, body: Body, timeout_s: float | None) -> Any:
        message = grpc_requests.to_message(operation, body)
        method = getattr(self._stub, grpc_codec.METHODS[operation])
        try:
            response = method(message, timeout=timeout_s, metadata=self._metadata)
            messages = list(response) if operation == "attend" else [response]
        except grpc.RpcError as error:
            raise grpc_codec.to_error(error) from None
        return grpc_codec.decode(operation, messages)

    def close(self) -> None:
        self._channel.close()


def open_transport(url: str, api_key: str | None, tls: TlsFiles | None) -> Transport:
    """Return the transport for a URL."""
    address = Address.parse(url, tls)
    return GrpcTransport(address, api_key) if address.is_grpc else HttpTransport(address, api_key)


def open_channel(module: Any, address: Address) -> Any:
    """Open a channel of `grpc` or `grpc.aio`."""
    options = address.channel_options
    if address.tls is not None:
        return module.secure_channel(address.target, address.tls.make_channel_credentials(), options=options)
    return module.insecure_channel(address.target, options=options)


def http_request(
    client: httpx.Client | httpx.AsyncClient, operation: str, body: Body, timeout_s: float | None
) -> httpx.Request:
    """Return the HTTP request for an operation."""
    headers = {} if timeout_s is None else {TIMEOUT_HEADER: str(max(0, round(timeout_s * 1000)))}
    timeout = httpx.Timeout(None if timeout_s is None else timeout_s + SLACK_S)
    path = http_codec.PATHS[operation]
    if operation == "model":
        path = f"{http_codec.MODELS_PATH}/{quote(body['model'], safe='')}" if "model" in body else path
        return client.build_request("GET", path, timeout=timeout)
    if operation in http_codec.ARRAYS:
        body = {**body, "encoding_format": "base64"}
    try:
        return client.build_request("POST", path, json=body, headers=headers, timeout=timeout)
    except UnicodeEncodeError:
        raise invalid("INVALID_FORMAT", find_surrogates(body), "not valid Unicode", "Remove surrogates.") from None


def http_response(operation: str, response: httpx.Response) -> Any:
    """Decode the response to an operation; raises `AttendantError`."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not response.is_success or document is None:
        raise http_codec.to_error(response.status_code, document, response.headers.get("retry-after"))
    return http_codec.decode(operation, document)
