"""One call: its deadline, its response metadata, and its errors as google.rpc.Status with details (AIP-193)."""

import math
import time
from typing import Any

import grpc
from attendant_client.types import ModelInfo
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from service.engine.lane import Timing
from service.errors import DOMAIN, InvalidArgument, RequestTooLarge, ServiceError

MODEL_HEADER = "x-attendant-model"

Context = Any
"""grpc.aio.ServicerContext; the package declares no types."""


def deadline_of(context: Context) -> float | None:
    """Return the client's deadline, a time.monotonic() reading; None if it set none."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def identity_of(info: ModelInfo) -> str:
    """Return a model's name and digest."""
    return f"{info.name}@{info.digest}"


def add_models(context: Context, *identities: str) -> None:
    """Add the models that computed the response to the trailing metadata."""
    if identities:
        context.set_trailing_metadata((*context.trailing_metadata(), (MODEL_HEADER, ", ".join(identities))))


def add_timing(context: Context, timing: Timing) -> None:
    """Add the duration of each stage to the trailing metadata."""
    context.set_trailing_metadata((*context.trailing_metadata(), ("server-timing", timing.describe())))


def status_of(error: ServiceError, call_id: str) -> Status:
    """Return the status of an error.

    The details contain an ErrorInfo, a BadRequest if a field is invalid, and a RetryInfo if the error has a retry
    delay.
    """
    details: list[Message] = [_error_info(error, call_id)]
    if error.field is not None and isinstance(error, (InvalidArgument, RequestTooLarge)):
        violation = BadRequest.FieldViolation(field=error.field, description=error.message, reason=error.reason)
        details.append(BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        milliseconds = retry_after_ms(error.retry_after_s)
        delay = Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
        details.append(RetryInfo(retry_delay=delay))
    number: int = grpc.StatusCode[error.code].value[0]
    return Status(code=number, message=error.message, details=[_packed(detail) for detail in details])


def retry_after_ms(seconds: float) -> int:
    """Return a retry delay in milliseconds, at least 1."""
    return max(1, math.ceil(seconds * 1000))


def _error_info(error: ServiceError, call_id: str) -> ErrorInfo:
    metadata = {name: getattr(error, name) for name in ("field", "minimum", "maximum", "actual")}
    metadata["request_id"] = call_id
    present = {name: str(value) for name, value in metadata.items() if value is not None}
    return ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=present)


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
