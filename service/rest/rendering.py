"""JSON of large responses, rendered in short steps so that they do not hold up other requests."""

import base64
from collections.abc import Iterator
from typing import Any

import orjson

from service.engine.schema.encode import Array, Token, Word
from service.engine.schema.explain import Unit
from service.steps import Steps

PART_BYTES = 256 * 1024
SLICE = 8 * 1024
"""Weight rendered in one piece: about 90 KiB of numbers, 0.5 ms on an AMD EPYC with AVX2. The unit is a number."""
SLICE_BYTES = 192 * 1024
"""Bytes written as base64 in one piece; a multiple of 3, so that the pieces join without padding."""
OBJECT = 24
"""Weight of a token, word, unit or array, besides its numbers."""
ENTRY = 4
"""Weight of an item of a list or dictionary, besides that of its value."""
ITEM_WEIGHTS: dict[type, int] = {bool: 1, int: 1, float: 1, Token: OBJECT, Word: OBJECT, Unit: OBJECT}
"""Weight of each item of a list of one type: such a list is not weighed item by item."""

SCALARS = frozenset((str, int, float, bool, type(None)))


class Base64:
    """The bytes of an array, to be rendered as a string. No dataclass, because orjson renders those as objects."""

    def __init__(self, array: Array) -> None:
        self.array = array


async def render(document: Any) -> list[bytes]:
    """Return the document as JSON in parts; other tasks run in between."""
    if _weight(document, SLICE) < SLICE:
        return [_dump(document)]
    parts, pending, size = [], [], 0
    async for piece in Steps().each(_pieces(document)):
        pending.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            parts.append(b"".join(pending))
            pending, size = [], 0
    parts.append(b"".join(pending))
    return parts


def _weight(value: Any, enough: int) -> int:
    """Return about how long a value takes to render, in numbers of an array, or any number from `enough`."""
    if isinstance(value, (dict, list, tuple)):
        if value and isinstance(value, list) and (each := ITEM_WEIGHTS.get(type(value[0]))):
            return each * len(value)
        total = ENTRY * len(value)
        for item in value.values() if isinstance(value, dict) else value:
            total += OBJECT if type(item) in SCALARS else _weight(item, enough)
            if total >= enough:
                break
        return total
    if isinstance(value, Base64):
        return OBJECT + int(value.array.values.nbytes) // 8
    return OBJECT + int(getattr(value, "size", 0))


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield a large value piece by piece."""
    if isinstance(value, Base64):
        yield from _base64_pieces(value.array)
    elif _weight(value, SLICE) < SLICE:
        yield _dump(value)
    elif isinstance(value, dict):
        separator = b"{"
        for name, item in value.items():
            yield separator + orjson.dumps(name) + b":"
            yield from _pieces(item)
            separator = b","
        yield b"}"
    else:
        start = 0
        while start < len(value):
            end = _end_of_slice(value, start)
            yield b"," if start else b"["
            if end - start == 1:
                yield from _pieces(value[start])
            else:
                yield _dump(value[start:end])[1:-1]
            start = end
        yield b"]"


def _end_of_slice(items: Any, start: int) -> int:
    """Return the end of a slice of bounded weight of a list or array; a heavier item is a slice of its own."""
    if not isinstance(items, (list, tuple)):
        return start + max(1, SLICE * len(items) // int(items.size))
    if each := ITEM_WEIGHTS.get(type(items[start])):
        return start + SLICE // each
    weight = 0
    for place in range(start, len(items)):
        weight += _weight(items[place], SLICE) + ENTRY
        if weight >= SLICE:
            return max(place, start + 1)
    return len(items)


def _base64_pieces(array: Array) -> Iterator[bytes]:
    data = memoryview(array.to_bytes())
    yield b'"'
    for start in range(0, len(data), SLICE_BYTES):
        yield base64.b64encode(data[start : start + SLICE_BYTES])
    yield b'"'


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=_default, option=orjson.OPT_SERIALIZE_NUMPY)


def _default(value: Any) -> str:
    if isinstance(value, Base64):
        return value.array.to_base64()
    raise TypeError
