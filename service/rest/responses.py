"""Responses: headers, error bodies and JSON.

Large JSON is rendered and sent in parts, in short steps that do not block other requests.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache, partial
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
from service.rest.bodies import JSON
from service.rest.compression import CODINGS, accepted
from service.rest.compression import compress as compress_parts
from service.steps import Steps, convert

GZIP_FROM_BYTES = 16 * 1024
"""Compressing one text's vector takes 0.1 ms, a tenth of the cost of a small request, and saves 3 KB."""
PART_BYTES = 256 * 1024
SLICE = 8 * 1024
"""Weight rendered in one piece, in numbers: about 90 KiB of JSON, 0.5 ms on an AMD EPYC with AVX2."""
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
    """An array of objects with the same fields, stored as columns. Objects are created only to render them.

    `weight` is the weight of a row.
    """

    def __init__(self, **columns: Sequence[Any] | Array | Base64Rows) -> None:
        self._columns = columns
        self.weight = OBJECT
        for column in columns.values():
            matrix = column.matrix if isinstance(column, Base64Rows) else column
            if isinstance(matrix, np.ndarray):
                elements = matrix[0].nbytes // 8 if matrix is not column else matrix[0].size
                self.weight += ENTRY + OBJECT + elements
            else:
                self.weight += ENTRY + OBJECT

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
    document: dict[str, Any] = {}
    for name, omitted, write_item, write in _document_fields(response.__class__):
        value = getattr(response, name)
        if value is None and omitted:
            continue
        if isinstance(value, PooledResults) and value.vectors.ndim == 2:
            vectors = Base64Rows(value.vectors, "ubinary") if encoded else value.vectors
            value = Table(token_count=value.token_counts, truncated=value.truncated, pooled=vectors)
        elif write_item is not None and value is not None:
            if len(value) == 1:
                value = [write_item(value[0], encoded)]
            else:
                value = await convert(partial(_apply, write_item, encoded), value)
        document[name] = value if write is None or value is None else write(value, encoded)
    return document


def _apply(write: JsonWriter, encoded: bool, value: Any) -> Any:
    return write(value, encoded)


@cache
def _document_fields(kind: Any) -> list[tuple[str, bool, JsonWriter | None, JsonWriter | None]]:
    """Return each field's name, whether None is omitted, and the writers for its items and for other values."""
    table = []
    for field in fields_of(kind):
        item = item_type(field.kind)
        write_item = None if item is None else json_writer(strip(item)[0])
        write = None if item is not None else json_writer(field.kind)
        table.append((field.name, field.omitted, write_item, write))
    return table


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
    return await encoded_response(request, await render(document), JSON, headers, compress=compress)


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
        return Response(parts[0], media_type=media_type, headers=headers)
    return PartsResponse(parts, headers, media_type)


def accepted_codings(request: Request) -> list[str]:
    """Return the content codings that the client accepts. It may send the header several times."""
    return accepted(", ".join(request.headers.getlist("accept-encoding")))


async def render(document: Any) -> list[bytes]:
    """Render the document as JSON parts; other tasks run in between."""
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
    """Return a value's approximate rendering cost, in numbers of an array. Stops counting at `enough`."""
    total, pending = 0, [value]
    while pending and total < enough:
        value = pending.pop()
        if isinstance(value, Table):
            total += value.weight * len(value)
        elif isinstance(value, list) and value and (each := ITEM_WEIGHTS.get(type(value[0]))):
            total += each * len(value)
        elif isinstance(value, (dict, list, tuple)):
            for item in value.values() if isinstance(value, dict) else value:
                if type(item) in SCALARS:
                    total += ENTRY + OBJECT
                else:
                    total += ENTRY
                    pending.append(item)
        elif isinstance(value, Base64):
            total += OBJECT + value.array.nbytes // 8
        else:
            total += OBJECT + (value.size if isinstance(value, np.ndarray) else 0)
    return total


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield a large value piece by piece."""
    if isinstance(value, Base64):
        yield from _base64_pieces(value.array)
        return
    names = list(value) if isinstance(value, dict) else None
    items = value if names is None else list(value.values())
    start, separator = 0, b"[" if names is None else b"{"
    while start < len(items):
        end = _end_of_slice(items, start, alike=names is None)
        part = items[start:end]
        if end - start == 1 and _weight(part, SLICE) >= SLICE:
            yield separator if names is None else separator + orjson.dumps(names[start]) + b":"
            yield from _pieces(part.rows()[0] if isinstance(part, Table) else items[start])
        else:
            yield separator + _dump(part if names is None else dict(zip(names[start:end], part, strict=True)))[1:-1]
        start, separator = end, b","
    yield b"]" if names is None else b"}"


def _end_of_slice(items: Any, start: int, *, alike: bool) -> int:
    """Return the end of a slice with bounded weight. A heavier item is a separate slice.

    `alike`: whether all items have the same type.
    """
    if isinstance(items, np.ndarray):
        return start + max(1, SLICE * len(items) // items.size)
    if isinstance(items, Table):
        return start + max(1, SLICE // items.weight)
    if alike and (each := ITEM_WEIGHTS.get(type(items[start]))):
        return start + SLICE // each
    weight = 0
    for place in range(start, len(items)):
        weight += _weight(items[place], SLICE) + ENTRY
        if weight >= SLICE:
            return max(place, start + 1)
    return len(items)


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
