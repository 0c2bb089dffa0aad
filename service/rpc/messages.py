"""Deserialization of requests, which turns invalid bytes and slow-to-parse bytes into errors; serialization."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from service.errors import MalformedRequest, ServiceError, TooMany
from service.steps import convert

SCAN_FROM_BYTES = 64 * 1024
MAX_FIELDS = 32 * 1024
"""Maximum number of fields in a message and its inputs. Parsing 8 MiB of empty inputs takes 160 ms and holds the GIL.
"""


@dataclass(frozen=True)
class Layout:
    """The fields of a message that are slow to parse: `nested` messages by field number, and `packed` numbers.

    Fields of other types, such as strings, must not use these field numbers: they would be scanned needlessly.
    """

    nested: "Mapping[int, Layout]" = field(default_factory=dict)
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

M = TypeVar("M", bound=Message)


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


async def serialize(message: Message) -> bytes:
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
