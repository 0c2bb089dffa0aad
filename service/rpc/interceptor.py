"""Interceptor for all RPCs: API keys, metrics, request IDs, and errors as canonical codes with details."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from service.auth import API_KEY_HEADER, AZURE_KEY_HEADER, Access
from service.callers import ANONYMOUS, Caller
from service.connections import read_timeout_s
from service.errors import Cancelled, Internal, MalformedRequest, QueueFull, RequestTooLarge, ServiceError, Unsupported
from service.memory import Reservation
from service.metrics import NO_MODEL
from service.request_log import (
    HEADER,
    OTHER,
    TRACE_HEADER,
    TRACE_STATE_HEADER,
    RequestLog,
    RequestRecord,
    request_id,
    reserve_response,
    set_current,
    traceparent,
)
from service.rpc.messages import NO_LAYOUT, Layout, reject_malformed, retry_after_ms, serialize, status_of, tolerant
from service.rpc.receiving import Parser, Receiver, RpcConnections, parse_peer
from service.sockets import Peer
from service.spelling import Spelling

API = "grpc"
KEY_HEADERS = ("authorization", API_KEY_HEADER, AZURE_KEY_HEADER)
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

Context = Any
Handler = Any
Requests = AsyncIterator[bytes]
"""grpc.aio.ServicerContext and grpc.RpcMethodHandler; the package declares no types."""

log = logging.getLogger("attendant.rpc")


@dataclass(frozen=True)
class Method:
    """An RPC's name in metrics and logs, and the layout of its requests. Probes are not counted and need no key.

    `spelling`: the API's names in errors; None if the handler spells them. `needs_admin`: whether it requires an admin
    key.
    """

    name: str
    api: str = API
    layout: Layout = NO_LAYOUT
    is_probe: bool = False
    spelling: Spelling | None = None
    needs_admin: bool = False


OTHER_METHOD = Method(OTHER)


@dataclass(slots=True)
class Call:
    """A call and its caller, or the error that rejects it.

    `data`: the message of a unary request. `response`: the memory reserved for the response. `stall_timer`: closes the
    connection if the client does not read the response.
    """

    method: Method
    peer: Peer
    connections: RpcConnections
    caller: Caller = ANONYMOUS
    admin: str = ""
    error: ServiceError | None = None
    data: bytes = b""
    response: Reservation | None = None
    stall_timer: asyncio.TimerHandle | None = None

    def watch_reading(self, size: int) -> None:
        """Close the connection if `size` bytes are still unread after the time that a slow client needs."""
        self.stop_watching()
        seconds = read_timeout_s(self.connections.stall_timeout_s, size)
        loop = asyncio.get_running_loop()
        self.stall_timer = loop.call_later(seconds, self.connections.close, self.peer, "stalled")

    def stop_watching(self) -> None:
        """Cancel the timer: the client has read everything so far."""
        if self.stall_timer is not None:
            self.stall_timer.cancel()

    def finish(self, context: Context) -> None:
        """Release the call's resources, because it or its connection has ended."""
        self.stop_watching()
        if self.response is not None:
            self.response.close()
        if self.error is None:
            self.connections.end_call(self.peer)


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped base
    """Wraps all four kinds of handlers.

    All become request stream handlers: grpc would receive the message of a unary request before calling its handler.
    """

    def __init__(
        self,
        requests: RequestLog,
        access: Access,
        receiver: Receiver,
        methods: Sequence[Method],
        connections: RpcConnections,
    ) -> None:
        self._access = access
        self._requests = requests
        self._metrics = requests.metrics
        self._keys = access.keys
        self._receiver = receiver
        self._methods = {method.name: method for method in methods}
        self._connections = connections
        self._wrapped: dict[str, Handler] = {}
        self._not_found = grpc.stream_unary_rpc_method_handler(self._reject_unknown)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        name = handler_call_details.method
        if (wrapped := self._wrapped.get(name)) is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None:
            return self._not_found
        method = self._methods.get(name, OTHER_METHOD)
        if name.startswith(OPEN_SERVICES):
            self._wrapped[name] = handler
        else:
            self._wrapped[name] = self._wrap_probe(handler) if method.is_probe else self._wrap(handler, method)
        return self._wrapped[name]

    def _wrap_probe(self, handler: Handler) -> Handler:
        async def respond(request: Message, context: Context) -> Message:
            self._connections.note_probe(parse_peer(context.peer()))
            response: Message = await handler.unary_unary(request, context)
            return response

        return grpc.unary_unary_rpc_method_handler(respond, handler.request_deserializer, handler.response_serializer)

    def _wrap(self, handler: Handler, method: Method) -> Handler:
        parse = tolerant(handler.request_deserializer, method.layout)
        kinds = [
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        ]
        behavior = getattr(handler, "_".join(kinds))

        async def accept(requests: Requests, context: Context) -> Call:
            if handler.request_streaming:
                return self._accept(context, method)
            return await self._receive(requests, context, method)

        def open_request(requests: Requests, call: Call, holder: str) -> contextlib.AbstractAsyncContextManager[Any]:
            if handler.request_streaming:
                return contextlib.aclosing(self._receiver.stream(requests, parse, holder))
            return self._parsed(call, parse, holder)

        async def respond(requests: Requests, context: Context) -> bytes:
            call = await accept(requests, context)
            async with (
                self._observe(context, call) as record,
                open_request(requests, call, record.holder) as request,
            ):
                data = await self._serialize(await behavior(request, context), record)
                call.watch_reading(len(data))
                return data
            raise AssertionError("the call was aborted")

        async def respond_with_stream(requests: Requests, context: Context) -> AsyncIterator[bytes]:
            call = await accept(requests, context)
            async with (
                self._observe(context, call) as record,
                open_request(requests, call, record.holder) as request,
                contextlib.aclosing(behavior(request, context)) as responses,
            ):
                async for response in responses:
                    data = await self._serialize(response, record)
                    call.watch_reading(len(data))
                    yield data
                    call.stop_watching()

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(respond_with_stream)
        return grpc.stream_unary_rpc_method_handler(respond)

    async def _reject_unknown(self, requests: Requests, context: Context) -> bytes:
        """Reject a call of an unknown method, without receiving a message."""
        call = self._accept(context, OTHER_METHOD)
        call.error = call.error or Unsupported(
            "Method not found", "See the files in proto/.", reason="METHOD_NOT_FOUND"
        )
        async with self._observe(context, call):
            pass
        raise AssertionError("the call was aborted")

    def _accept(self, context: Context, method: Method) -> Call:
        """Check a call's key before anything else, so that clients without a key cannot probe for methods."""
        call = Call(method, parse_peer(context.peer()), self._connections)
        try:
            if method.needs_admin:
                call.admin = self._access.check_admin(key_headers(context.invocation_metadata()), method.name)
            elif self._keys is not None:
                call.caller = self._keys.check(key_headers(context.invocation_metadata()))
                self._connections.note_caller(call.peer)
        except ServiceError as error:
            call.error = error.with_traceback(None)
        return call

    async def _receive(self, requests: Requests, context: Context, method: Method) -> Call:
        """Accept a call and receive its only message. A call that ends earlier creates no record and no log line."""
        call = self._accept(context, method)
        if call.error is None:
            try:
                call.data = await self._receiver.receive(requests, call.peer)
            except ServiceError as error:
                call.error = error.with_traceback(None)
            except asyncio.CancelledError:
                self._connections.count_reset(call.peer)
                self._metrics.count_request(method.api, method.name, Cancelled.code, NO_MODEL)
                raise
        return call

    @contextlib.asynccontextmanager
    async def _parsed(self, call: Call, parse: Parser, holder: str) -> AsyncIterator[Any]:
        data, call.data = call.data, b""
        async with self._receiver.parsed(data, parse, holder) as request:
            reject_malformed(request)
            yield request

    async def _serialize(self, response: Message, record: RequestRecord) -> bytes:
        data = await serialize(response)
        record.bytes += len(data)
        self._metrics.observe_size(record.api, record.model, len(data))
        return data

    def _open_record(self, context: Context, call: Call) -> RequestRecord:
        """Create the record of a call. Its response counts until the client has read it or the call ends."""
        metadata = context.invocation_metadata() or ()
        record = RequestRecord(
            call.method.api,
            request_id(_text(dict(metadata).items(), HEADER)),
            traceparent(_text(metadata, TRACE_HEADER)),
            endpoint=call.method.name,
            peer=call.peer[0],
            tracestate=_text(metadata, TRACE_STATE_HEADER),
            caller=call.caller,
            admin=call.admin,
        )
        if (response := self._requests.reservation()) is not None:
            response.holder = record.holder
            call.response = record.response = response
        if call.error is None:
            self._connections.start_call(call.peer)
        # A client that does not read the response delays the end of the call. The callback forms a reference cycle of
        # ten small objects.
        context.add_done_callback(call.finish)
        set_current(record)
        return record

    @contextlib.asynccontextmanager
    async def _observe(self, context: Context, call: Call) -> AsyncIterator[RequestRecord]:
        record = self._open_record(context, call)
        self._metrics.in_flight.inc()
        error: ServiceError | None = Cancelled()
        try:
            context.set_trailing_metadata(identity(record))
            if call.error is not None:
                raise call.error
            reserve_response(0)  # raises while the caller's unread responses use up its share
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
            if call.method.spelling is not None:
                error.spell(call.method.spelling)
            await asyncio.sleep(error.pause_s)  # grpc cannot pause reading from a connection
            if call.response is not None:
                call.response.close()
            await abort(context, error, record)


def log_internal(error: ServiceError, record: RequestRecord) -> None:
    """Log the cause of an internal error. The client receives only the request ID."""
    if isinstance(error, Internal) and error.__cause__ is not None:
        log.error(
            "unhandled exception api=%s endpoint=%s", record.api, record.endpoint, exc_info=error.__cause__,
            extra={"request_id": record.request_id},
        )  # fmt: skip


def identity(record: RequestRecord) -> tuple[tuple[str, str], ...]:
    """Return metadata that identifies the request in the logs and traces of client and server."""
    request = (HEADER, record.request_id)
    return (request, (TRACE_HEADER, record.traceparent)) if record.traceparent else (request,)


def key_headers(metadata: Sequence[tuple[str, str | bytes]] | None) -> dict[bytes, bytes]:
    """Return the metadata that may contain a key, as REST headers. Raises `MalformedRequest` for a repeated header."""
    headers: dict[bytes, bytes] = {}
    for name, value in metadata or ():
        if name not in KEY_HEADERS:
            continue
        if name.encode() in headers:
            raise MalformedRequest("repeated", "Send it once.", field=name)
        headers[name.encode()] = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    return headers


def _text(metadata: Iterable[tuple[str, str | bytes]], key: str) -> str:
    """Return all values of a key, joined by commas like repeated headers in HTTP (RFC 9110)."""
    return ", ".join([value for name, value in metadata if name == key and isinstance(value, str)])


async def abort(context: Context, error: ServiceError, record: RequestRecord) -> NoReturn:
    """Abort the call with the error's status, and a retry pushback (gRFC A6) if the queue is full."""
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
