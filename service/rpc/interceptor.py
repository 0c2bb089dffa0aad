"""Round every RPC: the key, the metrics, a request id, and errors as canonical codes with their details."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from service.auth import ApiKeys
from service.errors import (
    DOMAIN,
    Cancelled,
    Internal,
    MalformedRequest,
    QueueFull,
    RequestTooLarge,
    ServiceError,
    Unsupported,
)
from service.metrics import Metrics
from service.request_ids import HEADER, request_id

DOOR = "grpc"
OTHER = "_OTHER"
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

Context = Any
Handler = Any
"""grpc.aio.ServicerContext and grpc.RpcMethodHandler; the package declares no types."""

log = logging.getLogger("attendant.rpc")


@dataclass(frozen=True)
class Malformed:
    """What the deserialiser returns for bytes that are not the message, so that the caller gets a clear code."""


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped base
    """Wraps unary-unary, unary-stream and bidi handlers alike."""

    def __init__(self, metrics: Metrics, keys: ApiKeys | None, methods: frozenset[str]) -> None:
        self._metrics = metrics
        self._keys = keys
        self._methods = methods

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICES) and handler is not None:
            return handler
        if handler is None:
            # Answered here and not by gRPC itself, so that without a key nobody learns which methods there are.
            return grpc.unary_unary_rpc_method_handler(self._wrap_unary(_no_such_method, OTHER))
        name = method if method in self._methods else OTHER
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._wrap_stream(handler.stream_stream, name),
                lenient(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._wrap_stream(handler.unary_stream, name),
                lenient(handler.request_deserializer),
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._wrap_unary(handler.unary_unary, name),
            lenient(handler.request_deserializer),
            handler.response_serializer,
        )

    def _wrap_unary(
        self, behaviour: Callable[[Any, Context], Awaitable[Message]], method: str
    ) -> Callable[[Any, Context], Awaitable[Message]]:
        async def call(request: Any, context: Context) -> Message:
            async with self._observe(context, method):
                refuse_malformed(request)
                reply = await behaviour(request, context)
                self._metrics.response_bytes.labels(DOOR).observe(reply.ByteSize())
                return reply

        return call

    def _wrap_stream(
        self, behaviour: Callable[[Any, Context], AsyncIterator[Message]], method: str
    ) -> Callable[[Any, Context], AsyncIterator[Message]]:
        async def call(asked: Any, context: Context) -> AsyncIterator[Message]:
            """`asked` is one request, or the iterator of a stream's."""
            async with self._observe(context, method):
                refuse_malformed(asked)
                async for reply in behaviour(asked, context):
                    self._metrics.response_bytes.labels(DOOR).observe(reply.ByteSize())
                    yield reply

        return call

    @contextlib.asynccontextmanager
    async def _observe(self, context: Context, method: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        metadata = dict(context.invocation_metadata() or ())
        sent = metadata.get(HEADER, "")
        identity = request_id(sent if isinstance(sent, str) else "")
        self._metrics.in_flight.inc()
        error: ServiceError | None = Cancelled("The caller left.")
        try:
            if self._keys is not None:
                self._keys.check(metadata.get("authorization"))
            context.set_trailing_metadata(((HEADER, identity),))
            yield
            error = None
        except ServiceError as raised:
            error = raised.with_traceback(None)  # which knows this frame, and so would keep itself and the request
        except grpc.aio.AbortError:
            raise
        except Exception:
            log.exception("unforeseen error", extra={"request_id": identity})
            error = Internal()
        finally:
            self._metrics.in_flight.dec()
            self._count(method, error, started)
        if error is not None:
            if isinstance(error, Internal) and error.__cause__ is not None:
                log.error("request failed", exc_info=error.__cause__, extra={"request_id": identity})
            await abort(context, error, identity)

    def _count(self, method: str, error: ServiceError | None, started: float) -> None:
        code, status = ("OK", 200) if error is None else (error.code, error.http_status)
        if error is not None and error.label:
            self._metrics.rejected.labels(error.label).inc()
        self._metrics.observe_request(DOOR, method, code, status, started)


async def _no_such_method(request: object, context: Context) -> Message:
    raise Unsupported("There is no such method.", reason="no_such_method")


def lenient(deserializer: Callable[[bytes], Message]) -> Callable[[bytes], Message | Malformed]:
    """Grpc answers UNKNOWN with library text when a deserialiser raises; so ours never does."""

    def deserialize(data: bytes) -> Message | Malformed:
        try:
            return deserializer(data)
        except DecodeError:
            return Malformed()

    return deserialize


def refuse_malformed(request: object) -> None:
    """Raise `MalformedRequest` for what `lenient` could not read."""
    if isinstance(request, Malformed):
        raise MalformedRequest("The message is not valid protobuf of this type.")


async def abort(context: Context, error: ServiceError, identity: str) -> NoReturn:
    """End the call with the error's code and message, an ErrorInfo, and when to try again."""
    code = grpc.StatusCode[error.code]
    details = AnyMessage()
    details.Pack(ErrorInfo(reason=error.reason, domain=DOMAIN, metadata={"request_id": identity}))
    number: int = code.value[0]
    status = Status(code=number, message=error.message, details=[details])
    trailing: list[tuple[str, str | bytes]] = [
        (HEADER, identity),
        ("grpc-status-details-bin", status.SerializeToString()),
    ]
    if isinstance(error, QueueFull):
        trailing.append(("grpc-retry-pushback-ms", str(max(1, round((error.retry_after_s or 1) * 1000)))))
    elif isinstance(error, RequestTooLarge):
        trailing.append(("grpc-retry-pushback-ms", "-1"))  # the same request would be as large the next time
    try:
        await context.abort(code, error.message, tuple(trailing))
    except grpc.aio.AbortError as end:
        # The call keeps it, and its traceback would keep the call, the request too, until garbage is looked for.
        asyncio.get_running_loop().call_soon(end.with_traceback, None)
        raise
    raise AssertionError("abort raises")
