"""Interceptor for all RPCs: API key, metrics, request ID, and errors as canonical codes with details."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from service.auth import Access
from service.errors import Cancelled, Internal, QueueFull, RequestTooLarge, ServiceError, Unsupported
from service.request_log import (
    HEADER,
    OTHER,
    TRACE_HEADER,
    RequestLog,
    RequestRecord,
    request_id,
    set_current,
    traceparent,
)
from service.rpc.messages import NO_LAYOUT, Layout, reject_malformed, serialize, tolerant
from service.rpc.receiving import Parser, Receiver
from service.rpc.status import retry_after_ms, status_of
from service.spelling import Spelling

API = "grpc"
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

Context = Any
Handler = Any
Requests = AsyncIterator[bytes]
"""grpc.aio.ServicerContext and grpc.RpcMethodHandler; the package declares no types."""

log = logging.getLogger("attendant.rpc")


@dataclass(frozen=True)
class Method:
    """An RPC as metrics and logs name it, and the layout of its requests. Probes are not counted and need no key.

    `spelling`: the names of its API in errors; None if its handler spells them.
    `needs_admin`: whether it needs an admin key.
    """

    name: str
    api: str = API
    layout: Layout = NO_LAYOUT
    is_probe: bool = False
    spelling: Spelling | None = None
    needs_admin: bool = False


OTHER_METHOD = Method(OTHER)


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped base
    """Wraps handlers of all four kinds.

    All become handlers of a request stream: grpc would receive the message of a unary request before it calls them.
    """

    def __init__(self, requests: RequestLog, access: Access, receiver: Receiver, methods: Sequence[Method]) -> None:
        self._access = access
        self._requests = requests
        self._metrics = requests.metrics
        self._keys = access.keys
        self._receiver = receiver
        self._methods = {method.name: method for method in methods}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        name = handler_call_details.method
        method = self._methods.get(name, OTHER_METHOD)
        if (name.startswith(OPEN_SERVICES) or method.is_probe) and handler is not None:
            return handler
        if handler is None:
            error = Unsupported("Method not found", "See the files in proto/.", reason="METHOD_NOT_FOUND")
            return grpc.stream_unary_rpc_method_handler(self._reject(error, OTHER_METHOD))
        parse = tolerant(handler.request_deserializer, method.layout)
        if handler.request_streaming and not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(self._wrap_request_stream(handler.stream_unary, method, parse))
        if handler.request_streaming:
            behavior = self._wrap_stream(handler.stream_stream, method, parse)
        elif handler.response_streaming:
            behavior = self._wrap_response_stream(handler.unary_stream, method, parse)
        else:
            unary = self._wrap_unary(handler.unary_unary, method, parse)
            return grpc.stream_unary_rpc_method_handler(unary)
        return grpc.stream_stream_rpc_method_handler(behavior)

    def _reject(self, error: ServiceError, method: Method) -> Callable[[Requests, Context], Awaitable[Message]]:
        """Return a behavior that rejects a call without receiving a message."""

        async def call(requests: Requests, context: Context) -> Message:
            async with self._observe(context, method):
                raise error
            raise AssertionError("the call was aborted")

        return call

    def _wrap_unary(
        self, behavior: Callable[[Any, Context], Awaitable[Message]], method: Method, parse: Parser
    ) -> Callable[[Requests, Context], Awaitable[bytes]]:
        async def call(requests: Requests, context: Context) -> bytes:
            async with self._observe(context, method) as record, self._receiver.message(requests, parse) as request:
                reject_malformed(request)
                return await self._serialize(await behavior(request, context), record)
            raise AssertionError("the call was aborted")

        return call

    def _wrap_response_stream(
        self, behavior: Callable[[Any, Context], AsyncGenerator[Message, None]], method: Method, parse: Parser
    ) -> Callable[[Requests, Context], AsyncIterator[bytes]]:
        async def call(requests: Requests, context: Context) -> AsyncIterator[bytes]:
            async with self._observe(context, method) as record, self._receiver.message(requests, parse) as request:
                reject_malformed(request)
                async for response in self._responses(behavior(request, context), record):
                    yield response

        return call

    def _wrap_request_stream(
        self, behavior: Callable[[Any, Context], Awaitable[Message]], method: Method, parse: Parser
    ) -> Callable[[Requests, Context], Awaitable[bytes]]:
        async def call(requests: Requests, context: Context) -> bytes:
            async with (
                self._observe(context, method) as record,
                contextlib.aclosing(self._receiver.stream(requests, parse)) as messages,
            ):
                return await self._serialize(await behavior(messages, context), record)
            raise AssertionError("the call was aborted")

        return call

    def _wrap_stream(
        self, behavior: Callable[[Any, Context], AsyncGenerator[Message, None]], method: Method, parse: Parser
    ) -> Callable[[Requests, Context], AsyncIterator[bytes]]:
        async def call(requests: Requests, context: Context) -> AsyncIterator[bytes]:
            async with (
                self._observe(context, method) as record,
                contextlib.aclosing(self._receiver.stream(requests, parse)) as messages,
            ):
                async for response in self._responses(behavior(messages, context), record):
                    yield response

        return call

    async def _responses(
        self, responses: AsyncGenerator[Message, None], record: RequestRecord
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield await self._serialize(response, record)

    async def _serialize(self, response: Message, record: RequestRecord) -> bytes:
        data = await serialize(response)
        record.bytes += len(data)
        self._metrics.response_bytes.labels(record.api, record.model).observe(len(data))
        return data

    @contextlib.asynccontextmanager
    async def _observe(self, context: Context, method: Method) -> AsyncIterator[RequestRecord]:
        metadata = dict(context.invocation_metadata() or ())
        record = RequestRecord(
            method.api,
            request_id(_text(metadata, HEADER)),
            traceparent(_text(metadata, TRACE_HEADER)),
            endpoint=method.name,
        )
        record.peer, record.tracestate = peer_address(context.peer()), _text(metadata, "tracestate")
        set_current(record)
        self._metrics.in_flight.inc()
        error: ServiceError | None = Cancelled()
        try:
            context.set_trailing_metadata(identity(record))
            if method.needs_admin:
                record.admin = self._access.check_admin(encoded(context.invocation_metadata()), method.name)
            elif self._keys is not None:  # before anything else: nobody without a key learns which methods exist
                record.caller = self._keys.check(encoded(context.invocation_metadata()))
            yield record
            error = None
        except ServiceError as raised:
            error = raised.with_traceback(None)  # its traceback would form a cycle that keeps the request alive
        except grpc.aio.AbortError:
            raise
        except Exception as exception:  # noqa: BLE001  # log_internal logs it
            error = Internal()
            error.__cause__ = exception
        finally:
            self._metrics.in_flight.dec()
            if error is None:
                self._requests.finish(record, "OK", 200)
            else:
                record.fail(error)
                self._requests.finish(record, error.code, error.http_status)
        if error is not None:
            log_internal(error, record)
            error.__cause__ = None
            if method.spelling is not None:
                error.spell(method.spelling)
            await asyncio.sleep(error.pause_s)  # the calls of a connection cannot be paused alone
            await abort(context, error, record)


def log_internal(error: ServiceError, record: RequestRecord) -> None:
    """Log the cause of an internal error; the client gets only the request ID."""
    if isinstance(error, Internal) and error.__cause__ is not None:
        log.error(
            "unhandled exception api=%s endpoint=%s", record.api, record.endpoint, exc_info=error.__cause__,
            extra={"request_id": record.request_id},
        )  # fmt: skip


def identity(record: RequestRecord) -> tuple[tuple[str, str], ...]:
    """Return the metadata by which a client finds the request in the logs and traces of both sides."""
    request = (HEADER, record.request_id)
    return (request, (TRACE_HEADER, record.traceparent)) if record.traceparent else (request,)


def peer_address(peer: str) -> str:
    """Return the IP address of a peer, which gRPC describes as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def encoded(metadata: Sequence[tuple[str, str | bytes]] | None) -> dict[bytes, bytes]:
    """Return metadata as the headers of REST."""
    return {
        name.encode(): value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        for name, value in metadata or ()
    }


def _text(metadata: dict[str, str | bytes], key: str) -> str:
    value = metadata.get(key, "")
    return value if isinstance(value, str) else ""


async def abort(context: Context, error: ServiceError, record: RequestRecord) -> NoReturn:
    """End the call with the status of the error, and a retry pushback (gRFC A6) if the queue is full."""
    trailing: list[tuple[str, str | bytes]] = [
        *identity(record),
        ("grpc-status-details-bin", status_of(error, record.request_id).SerializeToString()),
    ]
    if isinstance(error, QueueFull):
        trailing.append(("grpc-retry-pushback-ms", str(retry_after_ms(error.retry_after_s or 1))))
    elif isinstance(error, RequestTooLarge):
        trailing.append(("grpc-retry-pushback-ms", "-1"))  # a retry would be as large
    try:
        await context.abort(grpc.StatusCode[error.code], error.message, tuple(trailing))
    except grpc.aio.AbortError as end:
        # The call stores this exception. Drop the traceback to break the reference cycle that would keep the request.
        asyncio.get_running_loop().call_soon(end.with_traceback, None)
        raise
    raise AssertionError("abort raises")
