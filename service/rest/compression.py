"""Content codings gzip and deflate, for request bodies and responses."""

import asyncio
import zlib
from collections.abc import Sequence

from service.errors import MalformedRequest, RequestTooLarge

IDENTITY = "identity"
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""zlib's window bits by content coding. HTTP's deflate is the zlib format (RFC 9110, section 8.4.1.2)."""
CODINGS = tuple(WINDOW_BITS)
INLINE_BYTES = 16 * 1024
"""Bodies up to this size are compressed on the event loop."""
ENCODING_HEADER = "Content-Encoding"


def inflate(body: bytes | bytearray, coding: str, limit: int) -> bytes:
    """Decompress a body. Memory and time are bounded by `limit` bytes.

    Raises `RequestTooLarge` over the limit, and `MalformedRequest` for incomplete or additional data.
    """
    decompressor = zlib.decompressobj(WINDOW_BITS[coding])
    try:
        inflated = decompressor.decompress(body, limit + 1)
    except zlib.error:
        raise MalformedRequest(f"not {coding}", "Correct it.", field=ENCODING_HEADER) from None
    if len(inflated) > limit:
        raise RequestTooLarge("Decompressed request body too large", "Split the request.", maximum=limit, unit="bytes")
    if not decompressor.eof or decompressor.unused_data:
        problem = f"not one complete {coding} stream"
        raise MalformedRequest(problem, "Correct it.", field=ENCODING_HEADER)
    return inflated


async def compress(parts: Sequence[bytes], coding: str = "gzip") -> list[bytes]:
    """Compress part by part, in threads unless the only part is small.

    Level 1: higher levels compress float digits little more, and compression is the slowest step of the response.
    """
    compressor = zlib.compressobj(1, wbits=WINDOW_BITS[coding])
    if len(parts) == 1 and len(parts[0]) <= INLINE_BYTES:
        return [compressor.compress(parts[0]) + compressor.flush()]
    compressed = [await asyncio.to_thread(compressor.compress, part) for part in parts]
    compressed.append(await asyncio.to_thread(compressor.flush))
    return compressed


def accepted(header: str) -> list[str]:
    """Return the codings that an Accept-Encoding header accepts (weight above 0), in lower case."""
    weights = {}
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        weights[coding.strip().lower()] = weight.replace(" ", "")
    return [coding for coding, weight in weights.items() if weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")]
