"""Messages and metadata of calls: deserialization, conversion to requests and of responses, statuses, serialization."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import grpc
from attendant_client import types
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import AtMost, ModelInfo
from attendant_client.wire import (
    ConflictingLayers,
    InvalidEnum,
    dtype_name,
    enum_numbers,
    fields_of,
    from_message,
    item_type,
    write_in_pieces,
)
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from service.engine.lane import Timing
from service.errors import (
    DOMAIN,
    ConflictingFields,
    InvalidArgument,
    MalformedRequest,
    RequestTooLarge,
    ServiceError,
    TooMany,
    UnknownValue,
)
from service.operations.encode import PooledResults
from service.operations.inputs import too_many
from service.spelling import Spelling, join
from service.steps import Steps, convert

Message = Any
"""A message of a generated class, whose attributes have no declared types."""

SCAN_FROM_BYTES = 64 * 1024
MAX_FIELDS = 32 * 1024
"""Maximum number of fields in a message and its inputs. Parsing 8 MiB of empty inputs takes 160 ms and holds the GIL.
"""


@dataclass(frozen=True)
class Layout:
    """The fields of a message that are slow to parse: `nested` messages by field number, and `packed` numbers.

    Fields of other types, such as strings, must not use these field numbers: they would be scanned needlessly.
    """

    nested: "Mapping[int, Layout]" = dataclasses.field(default_factory=dict)
    packed: frozenset[int] = frozenset()


NO_LAYOUT = Layout()
REQUEST_LAYOUT = Layout({2: Layout({2: Layout(packed=frozenset({1}))})})
"""The inputs or occurrences of a request to the encoder service, and their token ids."""
STREAM_LAYOUT = Layout({2: REQUEST_LAYOUT})
"""The request in EncodeStreamRequest."""
_INPUT_LAYOUT = Layout({4: NO_LAYOUT, 5: Layout(packed=frozenset(range(1, 8)))}, packed=frozenset({3}))
INFER_LAYOUT = Layout({4: NO_LAYOUT, 5: _INPUT_LAYOUT, 6: Layout({2: NO_LAYOUT})})
"""The inputs of ModelInferRequest with their contents and shapes, its outputs, and the parameters of all three."""
IDS_LAYOUT = Layout(packed=frozenset({1}))
"""The token ids of DecodeRequest in tei.v1."""
ID_BYTES_PER_FIELD = 128
"""Packed token ids take as long to parse as one field per 128 bytes: 70 ms for 8 MiB."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound=ProtoMessage)


@dataclass(frozen=True)
class Rejected:
    """The error for bytes that could not be parsed. Deserializers must not raise: grpc would return UNKNOWN."""

    error: ServiceError


def tolerant(deserializer: Callable[[bytes], M], layout: Layout) -> Callable[[bytes], M | Rejected]:
    """Wrap a deserializer to return `Rejected` instead of raising."""

    def deserialize(data: bytes) -> M | Rejected:
        if len(data) > SCAN_FROM_BYTES and count_fields(data, 0, len(data), MAX_FIELDS, layout) > MAX_FIELDS:
            error = TooMany("Message has too many fields", "Split the request.", maximum=MAX_FIELDS)
            return Rejected(error)
        try:
            return deserializer(data)
        except DecodeError:
            return Rejected(
                MalformedRequest(
                    "Message is not valid protobuf of this type",
                    "Check the client's proto file, and send strings in UTF-8.",
                )
            )

    return deserialize


def count_fields(data: bytes, start: int, end: int, limit: int, layout: Layout) -> int:
    """Return the number of fields in a message and its nested messages, or a number over `limit`.

    Stops at the first invalid byte, which the parser will report.
    """
    count, place = 0, start
    while place < end and count <= limit:
        tag, place = _varint(data, place, end)
        count += 1
        kind = tag & 7
        if kind == VARINT:
            _, place = _varint(data, place, end)
        elif kind == BYTES:
            size, place = _varint(data, place, end)
            number = tag >> 3
            if number in layout.packed:
                count += size // ID_BYTES_PER_FIELD
            if number in layout.nested and place + size <= end:
                count += count_fields(data, place, place + size, limit - count, layout.nested[number])
            place += size
        elif kind in (FIXED64, FIXED32):
            place += 8 if kind == FIXED64 else 4
        else:
            break
    return count


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a varint and the position after it. An incomplete or overlong varint ends the message."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return 0, end


def reject_malformed(request: object) -> None:
    """Raise the error for bytes that could not be parsed."""
    if isinstance(request, Rejected):
        raise request.error


async def serialize(message: ProtoMessage) -> bytes:
    """Return the bytes of a response.

    Each of the `results` or `token_embeddings` is serialized separately, because 40 MB in one call take 160 ms.
    Concatenated messages of one type parse as one message with all of their repeated fields
    (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
    """
    name = "token_embeddings" if hasattr(message, "token_embeddings") else "results"
    results = getattr(message, name, ())
    if len(results) < 2:
        return message.SerializeToString()
    kind = type(message)
    parts = await convert(lambda result: kind(**{name: [result]}).SerializeToString(), results)
    message.ClearField(name)
    return b"".join([message.SerializeToString(), *parts])


# Metadata and statuses


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
    details: list[ProtoMessage] = [_error_info(error, call_id)]
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


def _packed(message: ProtoMessage) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


# Requests and responses


DTYPE_NUMBERS = enum_numbers(pb.DESCRIPTOR.enum_types_by_name["Dtype"])
PIECE = 64
"""Number of single-vector results written in one step, which takes a tenth of a millisecond."""


def read_request(kind: Any, message: Message, limits: Mapping[str, int]) -> Any:
    """Convert a message to a request. Lists are counted before any item is converted.

    Raises a `ServiceError`.
    """
    check_lists(kind, message, limits)
    try:
        return from_message(kind, message)
    except InvalidEnum as error:
        allowed = join(error.allowed, "or")
        raise UnknownValue("unknown value", f"Use {allowed}.", field=error.field, actual=error.actual) from None
    except ConflictingLayers:
        raise ConflictingFields("set, but layers is not empty", "Send one of them.", field="all_layers") from None


def check_lists(kind: Any, message: Message, limits: Mapping[str, int], path: str = "") -> None:
    """Raise an error for a list over its limit in a message or its items."""
    for name, limit, is_wrapped, item in _lists(kind, message.DESCRIPTOR):
        items = getattr(message, name)
        check_count(limit, len(items.ids if is_wrapped else items), limits, path + name)
        if item is not None:
            spans = sum([len(each.spans) for each in items])
            check_count("spans_per_request", spans, limits, path + name)
            if not (spans or any([each.HasField("token_ids") for each in items])):  # noqa: C419  # twice as fast
                continue
            for index, each in enumerate(items):
                check_lists(item, each, limits, f"{path}{name}[{index}].")


@cache
def _lists(kind: Any, descriptor: Descriptor) -> list[tuple[str, str, bool, Any]]:
    """Return each list field's name and limit, whether a message wraps it, and the type of items that contain lists."""
    table = []
    for field in fields_of(kind):
        limit, target = field.find(AtMost), descriptor.fields_by_name.get(field.name)
        if limit is None or target is None:
            continue
        item = item_type(field.kind)
        nested = item if target.is_repeated and target.message_type and item is types.Input else None
        table.append((field.name, limit.limit, not target.is_repeated, nested))
    return table


def check_count(name: str, actual: int, limits: Mapping[str, int], field: str | None = None) -> None:
    """Raise an error for a list over its limit."""
    if actual > limits[name]:
        raise too_many(field or name, name, actual, limits[name])


async def write_response(response: Any, message: Message) -> Message:
    """Convert a response to a message in short steps."""
    pieces = write_in_pieces(response, message)
    if isinstance(results := getattr(response, "results", None), PooledResults):
        head = write_in_pieces(response, message, without="results")
        pieces = chain(head, _write_pooled(results, message.results))
    async for _ in Steps().each(pieces):
        pass
    return message


def _write_pooled(results: PooledResults, messages: Any) -> Iterator[None]:
    """Append the results slice by slice, and yield after each slice."""
    vectors = results.vectors
    shape, dtype = vectors.shape[1:], DTYPE_NUMBERS[dtype_name(vectors, "ubinary")]
    for start in range(0, len(results), PIECE):
        rows = slice(start, start + PIECE)
        for count, truncated, vector in zip(
            results.token_counts[rows], results.truncated[rows], vectors[rows], strict=True
        ):
            message = messages.add()
            message.token_count = count
            message.truncated = truncated
            tensor = message.pooled
            tensor.shape.extend(shape)
            tensor.dtype = dtype
            tensor.data = vector.tobytes()
        yield


def enum_labels() -> dict[str, dict[str, str]]:
    """Return the labels of the values of each enum, by the names of the enum and of the fields of its type.

    Fields of two requests may have the same name and different enums, as `outputs` has. Where both have a value, the
    label is that of the first one; errors of the other request name the enum, as in `{map_layer_reduce.mean}`.
    """
    by_enum = {
        enum.name: {value: enum.values_by_number[number].name for value, number in enum_numbers(enum).items()}
        for enum in pb.DESCRIPTOR.enum_types_by_name.values()
    }
    labels = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): values for name, values in by_enum.items()}
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            if message.name.endswith(("Request", "Options")) and field.enum_type is not None:
                labels[field.name] = by_enum[field.enum_type.name] | labels.get(field.name, {})
    labels["chunks.by"] = labels["by"]
    return labels


PROTO = Spelling(keeps_ids=True, lacks=("encoding_format", "decimals"), values=enum_labels())
"""gRPC's names in errors: enum values have their proto names."""
