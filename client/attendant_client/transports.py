"""Transports over REST and gRPC, synchronous and asynchronous: one request, one response."""

import asyncio
import itertools
import os
from typing import Any
from urllib.parse import quote

import grpc
import httpx
from google.protobuf.message_factory import GetMessageClass

from attendant_client.connections import (
    SLACK_S,
    TIMEOUT_HEADER,
    Address,
    authorization,
    closed,
    timed_out,
    unreachable,
)
from attendant_client.errors import AttendantError
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.requests import CALLS, Body, to_json_value, to_message
from attendant_client.responses import ARRAYS, MODELS_PATH, decode_json, decode_messages, grpc_error, http_error

MODEL_HEADER = "x-attendant-model"
"""The response header and trailing metadata with the model's name and digest."""
Response = tuple[Any, str | None]
"""A response, and the name and digest of its model; None if a proxy removes the header."""
MAX_CONNECTIONS = 100
"""Connections of an HTTP client, the default of httpx."""


class HttpTransport:
    """REST over a connection pool."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._options = address.http_options(api_key)
        self._open()

    def _open(self) -> None:
        self._client, self._process = httpx.Client(**self._options), os.getpid()

    def call(self, operation: str, body: Body, timeout_s: float | None) -> Response:
        if self._process != os.getpid():  # after a fork, both processes would read responses from the same connections
            self._open()
        request = http_request(self._client, operation, body, timeout_s)
        try:
            response = self._client.send(request)
        except httpx.TimeoutException:
            raise timed_out(timeout_s) from None
        except httpx.RequestError as error:
            raise unreachable(describe_failure(request, error)) from None
        return http_response(operation, response)

    def close(self) -> None:
        self._client.close()


class GrpcTransport:
    """gRPC over channels that take turns."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._metadata = tuple(authorization(api_key).items())
        self._channels = [open_channel(grpc, address) for _ in range(address.channels)]
        self._methods = itertools.cycle([open_methods(channel) for channel in self._channels])

    def call(self, operation: str, body: Body, timeout_s: float | None) -> Response:
        message, method = to_message(operation, body), next(self._methods)[operation]
        options: dict[str, Any] = {"timeout": timeout_s, "metadata": self._metadata}
        try:
            if operation == "attend":
                call = method(message, **options)
                messages = list(call)
            else:
                response, call = method.with_call(message, **options)
                messages = [response]
        except grpc.RpcError as error:
            raise grpc_error(error) from None
        return decode_messages(operation, messages), dict(call.trailing_metadata() or ()).get(MODEL_HEADER)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class AsyncHttpTransport:
    """REST over a connection pool."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._client = httpx.AsyncClient(**address.http_options(api_key))
        # Queueing requests in httpx's pool would take quadratic time.
        self._connections = asyncio.Semaphore(MAX_CONNECTIONS)

    async def call(self, operation: str, body: Body, timeout_s: float | None) -> Response:
        request = http_request(self._client, operation, body, timeout_s)
        try:
            async with asyncio.timeout(None if timeout_s is None else timeout_s + SLACK_S), self._connections:
                response = await self._client.send(request)
        except (TimeoutError, httpx.TimeoutException):
            raise timed_out(timeout_s) from None
        except httpx.RequestError as error:
            raise unreachable(describe_failure(request, error)) from None
        return http_response(operation, response)

    async def close(self) -> None:
        await self._client.aclose()


class AsyncGrpcTransport:
    """gRPC over channels that take turns."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._metadata = tuple(authorization(api_key).items())
        self._channels = [open_channel(grpc.aio, address) for _ in range(address.channels)]
        self._methods = itertools.cycle([open_methods(channel) for channel in self._channels])

    async def call(self, operation: str, body: Body, timeout_s: float | None) -> Response:
        message = to_message(operation, body)
        call = next(self._methods)[operation](message, timeout=timeout_s, metadata=self._metadata)
        try:
            messages = [item async for item in call] if operation == "attend" else [await call]
            metadata = await call.trailing_metadata()
        except grpc.RpcError as error:
            raise grpc_error(error) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # gRPC cancels the calls of a channel that is closed, but not the tasks that wait for them.
            raise closed() from None
        return decode_messages(operation, messages), dict(metadata or ()).get(MODEL_HEADER)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def open_channel(module: Any, address: Address) -> Any:
    """Open a channel of `grpc` or `grpc.aio`."""
    options = address.channel_options
    credentials = None if address.tls is None else address.tls.make_channel_credentials()
    if module is grpc.aio:
        running_loop()  # gRPC would choose another one
    if credentials is not None:
        return module.secure_channel(address.target, credentials, options=options)
    return module.insecure_channel(address.target, options=options)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; raises RuntimeError."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("AsyncClient: no event loop is running. Create the client in a coroutine.") from None


def open_methods(channel: Any) -> dict[str, Any]:
    """Return a callable per operation's RPC, built from the proto descriptor."""
    service = pb.DESCRIPTOR.services_by_name["EncoderService"]
    methods = {}
    for operation, call in CALLS.items():
        method = service.methods_by_name[call.method]
        kind = channel.unary_stream if method.server_streaming else channel.unary_unary
        response = GetMessageClass(method.output_type)
        methods[operation] = kind(
            f"/{service.full_name}/{method.name}",
            request_serializer=call.request.SerializeToString,
            response_deserializer=response.FromString,
        )
    return methods


def http_request(
    client: httpx.Client | httpx.AsyncClient, operation: str, body: Body, timeout_s: float | None
) -> httpx.Request:
    """Return the HTTP request for an operation."""
    headers = {} if timeout_s is None else {TIMEOUT_HEADER: str(max(0, round(timeout_s * 1000)))}
    timeout = httpx.Timeout(None if timeout_s is None else timeout_s + SLACK_S)
    path = CALLS[operation].path
    if operation == "model":
        path = f"{MODELS_PATH}/{quote(body['model'], safe='')}" if "model" in body else path
        return client.build_request("GET", path, timeout=timeout)
    if operation in ARRAYS:
        body = {**body, "encoding_format": "base64"}
    options: dict[str, Any] = {"headers": headers, "timeout": timeout}
    try:
        return client.build_request("POST", path, json=body, **options)
    except (TypeError, ValueError):  # values that JSON cannot represent
        return client.build_request("POST", path, json=to_json_value(body), **options)


def describe_failure(request: httpx.Request, error: httpx.RequestError) -> str:
    """Return the URL, without user and password, and the error. Errors such as a reset connection have no message."""
    return f"{request.url.copy_with(userinfo=b'')}: {str(error) or type(error).__name__}"


def http_response(operation: str, response: httpx.Response) -> Response:
    """Decode the response to an operation; raises `AttendantError`."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not response.is_success or not isinstance(document, dict):
        raise http_error(response.status_code, document, response.headers.get("retry-after"))
    try:
        return decode_json(operation, document), response.headers.get(MODEL_HEADER)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise AttendantError("UNKNOWN", "UNKNOWN", "Not a response of Attendant. Check the URL.") from None
