"""Responses: headers, error bodies and JSON.

Large JSON is rendered and sent in parts, in short steps that do not block other requests.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np
import orjson
import pybase64
from attendant_client.types import Array, Token, Unit, Word
from attendant_client.wire import Base64, JsonWriter, dtype_name, fields_of, item_type, json_writer, strip
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.operations.encode import PooledResults
from service.rest.bodies import CODINGS, JSON, WINDOW_BITS
from service.steps import Steps, convert

GZIP_FROM_BYTES = 16 * 1024
"""Compressing one text's vector takes 0.1 ms, a tenth of the cost of a small request, and saves 3 KB."""
PART_BYTES = 256 * 1024
SLICE = 8 * 1024
"""Weight rendered in one piece, in numbers: about 90 KiB of JSON, 0.5 ms on an AMD EPYC with AVX2."""
SMALL_BYTES = 96 * 1024
"""A response whose estimated size is at most this number of bytes is rendered in one piece without being weighed."""
INLINE_BYTES = 16 * 1024
"""Bodies up to this size are compressed on the event loop."""
SLICE_BYTES = 192 * 1024
"""Bytes written as base64 in one piece; a multiple of 3, so that the pieces join without padding."""
OBJECT = 24
"""Weight of a token, word, unit or array, not counting its numbers."""
ENTRY = 4
"""Weight of a list or dictionary item, in addition to its value."""
ITEM_WEIGHTS: dict[type, int] = {bool: 1, int: 1, float: 1, Token: OBJECT, Word: OBJECT, Unit: OBJECT}
"""Weight per item, by type, for lists with items of one type, which are not weighed item by item."""

SCALARS = frozenset((str, int, float, bool, type(None)))


class Base64Rows:
    """The rows of a matrix (N, D) in base64: strings, or objects with shape and dtype if `described`."""

    def __init__(self, matrix: Array, described: str = "") -> None:
        """Rows are encoded when they are read. `described`: the contract's name for uint8; "" for strings."""
        self.matrix = matrix
        self._described = described

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, rows: slice) -> "Base64Rows":
        return Base64Rows(self.matrix[rows], self._described)

    def __iter__(self) -> Iterator[Any]:
        if len(self.matrix) and self.matrix[0].nbytes > SLICE_BYTES:  # to be rendered in pieces
            texts: Iterator[Any] = map(Base64, self.matrix)
        else:
            texts = iter([pybase64.b64encode_as_string(row) for row in self.matrix])
        if not self._described:
            return texts
        tensor = {"shape": self.matrix.shape[1:], "dtype": dtype_name(self.matrix, self._described)}
        return ({**tensor, "data": text} for text in texts)


class Table:
    """An array of objects with the same fields, stored as columns. Objects are created only to render them."""

    def __init__(self, **columns: Sequence[Any] | Array | Base64Rows) -> None:
        self._columns = columns

    @cached_property
    def weight(self) -> int:
        """The weight of a row."""
        weight = OBJECT
        for column in self._columns.values():
            matrix = column.matrix if isinstance(column, Base64Rows) else column
            weight += ENTRY + OBJECT
            if isinstance(matrix, np.ndarray):
                weight += matrix[0].nbytes // 8 if matrix is not column else matrix[0].size
        return weight

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, rows: slice) -> "Table":
        return Table(**{name: column[rows] for name, column in self._columns.items()})

    def rows(self) -> list[dict[str, Any]]:
        """Return the objects."""
        names = tuple(self._columns)
        return [dict(zip(names, values, strict=True)) for values in zip(*self._columns.values(), strict=True)]


async def to_document(response: Any, *, encoded: bool = False) -> dict[str, Any]:
    """Convert a contract response to a document in short steps; `encoded` selects base64."""
    names, read, converted = _document_fields(response.__class__)
    document: dict[str, Any] = dict(zip(names, read(response), strict=False))
    for name, omitted, write_item, write in converted:
        value = document[name]
        if value is None:
            if omitted:
                del document[name]
        elif isinstance(value, PooledResults) and value.vectors.ndim == 2:
            vectors = Base64Rows(value.vectors, "ubinary") if encoded else value.vectors
            document[name] = Table(token_count=value.token_counts, truncated=value.truncated, pooled=vectors)
        elif write is not None:
            document[name] = write(value, encoded)
        elif write_item is not None and len(value) == 1:
            document[name] = [write_item(value[0], encoded)]
        elif write_item is not None:
            document[name] = await convert(partial(_apply, write_item, encoded), value)
    return document


def _apply(write: JsonWriter, encoded: bool, value: Any) -> Any:
    return write(value, encoded)


_Converted = tuple[str, bool, JsonWriter | None, JsonWriter | None]
"""A field's name, whether the document leaves it out if it is None, and the functions that convert each item of its
list, or else its value; None for a field that needs neither.
"""


@cache
def _document_fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any], list[_Converted]]:
    """Return the names of a contract type's fields, a function that reads them, and the fields to convert."""
    table, names = [], tuple(field.name for field in fields_of(kind))
    for field in fields_of(kind):
        item = item_type(field.kind)
        write_item = None if item is None else json_writer(strip(item)[0])
        write = None if item is not None else json_writer(field.kind)
        if field.omitted or write_item is not None or write is not None:
            table.append((field.name, field.omitted, write_item, write))
    return names, attrgetter(*names, "__class__"), table  # with one name, it would not return a tuple


class BytesResponse(Response):
    """A response with a complete body. Its headers need none of the checks and defaults of `Response`."""

    def __init__(self, body: bytes, headers: dict[str, str], media_type: str) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.raw_headers += (b"content-length", b"%d" % len(body)), (b"content-type", media_type.encode())


class PartsResponse(Response):
    """A response whose body is sent part by part, because a single `send` would copy up to 60 MB."""

    def __init__(self, parts: Sequence[bytes], headers: dict[str, str], media_type: str = JSON) -> None:
        self._parts = parts
        super().__init__(headers=headers, media_type=media_type)
        self.headers["content-length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def json_response(
    request: Request, document: Any, headers: dict[str, str] | None = None, *, compress: bool = True
) -> Response:
    """Render the document as JSON. The body is compressed if it is over `GZIP_FROM_BYTES` and the client accepts that.

    `document` may contain types that orjson supports, arrays, and `Base64`. Do not `compress` base64 vectors: they
    shrink by at most a quarter, and gzip would take longer than inference.
    """
    memory = request.scope["record"].response
    if memory is not None and 0 < memory.size <= SMALL_BYTES:
        parts = [_dump(document)]
    else:
        parts = await render(document)
    return await encoded_response(request, parts, JSON, headers, compress=compress)


async def encoded_response(
    request: Request, parts: list[bytes], media_type: str, headers: dict[str, str] | None, *, compress: bool
) -> Response:
    """Return a response with these parts; compressed if `compress`, if large, and if the client accepts that."""
    headers = {**(headers or {}), "vary": "accept-encoding"}
    if compress and (len(parts) > 1 or len(parts[0]) > GZIP_FROM_BYTES):
        codings = accepted_codings(request)
        coding = next((coding for coding in CODINGS if coding in codings), None)
        if coding is not None:
            parts = await compress_parts(parts, coding)
            headers["content-encoding"] = coding
    if len(parts) == 1:
        return BytesResponse(parts[0], headers, media_type)
    return PartsResponse(parts, headers, media_type)


async def compress_parts(parts: Sequence[bytes], coding: str = "gzip") -> list[bytes]:
    """Compress part by part, in threads unless the only part is small.

    Level 1: higher levels compress float digits little more, and compression is the slowest step of the response.
    """
    compressor = zlib.compressobj(1, wbits=WINDOW_BITS[coding])
    if len(parts) == 1 and len(parts[0]) <= INLINE_BYTES:
        return [compressor.compress(parts[0]) + compressor.flush()]
    compressed = [await asyncio.to_thread(compressor.compress, part) for part in parts]
    compressed.append(await asyncio.to_thread(compressor.flush))
    return compressed


def accepted_codings(request: Request) -> list[str]:
    """Return the content codings that the client accepts. It may send the header several times."""
    return accepted(", ".join(request.headers.getlist("accept-encoding")))


def accepted(header: str) -> list[str]:
    """Return the codings that an Accept-Encoding header accepts (weight above 0), in lower case."""
    weights = {}
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        weights[coding.strip().lower()] = weight.replace(" ", "")
    return [coding for coding, weight in weights.items() if weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")]


async def render(document: Any) -> list[bytes]:
    """Render the document as JSON parts; other tasks run in between."""
    weights: Weights = {}
    if _weight(document, SLICE, weights) < SLICE:
        return [_dump(document)]
    parts, pending, size = [], [], 0
    async for piece in Steps().each(_pieces(document, weights)):
        pending.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            parts.append(b"".join(pending))
            pending, size = [], 0
    parts.append(b"".join(pending))
    return parts


Weights = dict[int, int]
"""Weights of a document's objects and lists by id, so that each is weighed once."""


def _weight(value: Any, enough: int, weights: Weights) -> int:
    """Return a value's approximate rendering cost, in numbers of an array. Stops counting at `enough`."""
    if isinstance(value, np.ndarray):
        return OBJECT + value.size
    if isinstance(value, list) and value and (each := ITEM_WEIGHTS.get(type(value[0]))):
        return each * len(value)
    if isinstance(value, (dict, list, tuple)):
        if (known := weights.get(id(value))) is not None:
            return known
        total = 0
        for item in value.values() if isinstance(value, dict) else value:
            if (kind := type(item)) in SCALARS:
                total += ENTRY + OBJECT
            elif kind is np.ndarray:
                total += ENTRY + OBJECT + item.size
            else:
                total += ENTRY + (weights.get(id(item)) or _weight(item, enough - total, weights))
            if total >= enough:
                return total
        weights[id(value)] = total
        return total
    if isinstance(value, Table):
        return value.weight * len(value)
    return OBJECT + (value.array.nbytes // 8 if isinstance(value, Base64) else 0)


def _pieces(value: Any, weights: Weights) -> Iterator[bytes]:
    """Yield a large value piece by piece."""
    if isinstance(value, Base64):
        yield from _base64_pieces(value.array)
        return
    names = list(value) if isinstance(value, dict) else None
    items = value if names is None else list(value.values())
    start, separator = 0, b"[" if names is None else b"{"
    while start < len(items):
        end, is_heavy = _end_of_slice(items, start, weights, alike=names is None)
        part = items[start:end]
        if is_heavy:
            yield separator if names is None else separator + orjson.dumps(names[start]) + b":"
            if isinstance(part, Table):
                yield from _pieces(part.rows()[0], {})  # ids of temporary objects are reused
            else:
                yield from _pieces(items[start], weights)
        else:
            yield separator + _dump(part if names is None else dict(zip(names[start:end], part, strict=True)))[1:-1]
        start, separator = end, b","
    yield b"]" if names is None else b"}"


def _end_of_slice(items: Any, start: int, weights: Weights, *, alike: bool) -> tuple[int, bool]:
    """Return the end of a slice of at most weight `SLICE`, and whether it is a single, heavier item.

    `alike`: whether all items have the same type.
    """
    each = None
    if isinstance(items, np.ndarray):
        each = items[start].size
    elif isinstance(items, Table):
        each = items.weight
    elif alike:
        each = ITEM_WEIGHTS.get(type(items[start]))
    if each:
        return start + max(1, SLICE // each), each > SLICE
    weight = 0
    for place in range(start, len(items)):
        weight += _weight(items[place], SLICE, weights) + ENTRY
        if weight >= SLICE:
            return max(place, start + 1), place == start
    return len(items), False


def _base64_pieces(array: Array) -> Iterator[bytes]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    yield b'"'
    for start in range(0, len(data), SLICE_BYTES):
        yield pybase64.b64encode(data[start : start + SLICE_BYTES])
    yield b'"'


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=_default, option=orjson.OPT_SERIALIZE_NUMPY)


def _default(value: Any) -> Any:
    if isinstance(value, Table):
        return value.rows()
    if isinstance(value, Base64):
        return str(value)
    raise TypeError
