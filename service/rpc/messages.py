"""Request messages from the wire: bytes that are invalid, or that would take long to parse, become an error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from service.errors import InvalidArgument, MalformedRequest, ServiceError

SCAN_FROM_BYTES = 64 * 1024
MAX_FIELDS = 32 * 1024
"""Fields of a message and of its inputs. Parsing 8 MiB of empty inputs takes 160 ms and holds the interpreter lock."""
ITEMS_FIELD = 2
"""The number of `inputs` and of `occurrences` in every request message."""
IDS_FIELD = 4
"""The number of `token_ids` in an input."""
ID_BYTES_PER_FIELD = 128
"""Packed token ids take as long to parse as one field per 128 bytes: 8 MiB of them take 70 ms."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Rejected:
    """The error of bytes that were not parsed. A deserializer must not raise: grpc would answer UNKNOWN."""

    error: ServiceError


def tolerant(deserializer: Callable[[bytes], M]) -> Callable[[bytes], M | Rejected]:
    """Return a deserializer that returns `Rejected` instead of raising."""

    def deserialize(data: bytes) -> M | Rejected:
        if len(data) > SCAN_FROM_BYTES and count_fields(data, 0, len(data), MAX_FIELDS) > MAX_FIELDS:
            return Rejected(InvalidArgument(f"Message: too many fields (limit {MAX_FIELDS}). Split the request."))
        try:
            return deserializer(data)
        except DecodeError:
            return Rejected(MalformedRequest("Message: not valid protobuf of this type. Correct it."))

    return deserialize


def count_fields(data: bytes, start: int, end: int, limit: int, *, nested: bool = True) -> int:
    """Return the number of fields of a message and of its items, or a number over `limit`.

    It stops at the first byte that is not valid: the parser reports that.
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
            if not nested and tag >> 3 == IDS_FIELD:
                count += size // ID_BYTES_PER_FIELD
            if nested and tag >> 3 == ITEMS_FIELD and place + size <= end:
                count += count_fields(data, place, place + size, limit - count, nested=False)
            place += size
        elif kind in (FIXED64, FIXED32):
            place += 8 if kind == FIXED64 else 4
        else:
            break
    return count


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a varint and the place after it; an incomplete or too long one ends the message."""
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
    """Raise the error of bytes that were not parsed."""
    if isinstance(request, Rejected):
        raise request.error
