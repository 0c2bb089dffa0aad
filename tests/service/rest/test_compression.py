"""Content codings: round trips, bounded decompression, and the Accept-Encoding header."""

import gzip
import time
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest

from service.errors import MalformedRequest, RequestTooLarge
from service.rest.bodies import CODINGS, WINDOW_BITS, inflate
from service.rest.responses import accepted, compress_parts
from tests.oip_messages import CODINGS as COMPRESS

LIMIT = 2 * 2**20


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [0, 10, 100_000])
async def test_round_trip(coding: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    parts = [body[start:end] for start, end in pairwise(range(0, size + 1, max(1, size // 3)))] or [b""]
    whole = b"".join(parts)
    assert zlib.decompress(b"".join(await compress_parts(parts, coding)), wbits=WINDOW_BITS[coding]) == whole
    assert inflate(COMPRESS[coding](body), coding, LIMIT) == body


@pytest.mark.parametrize("coding", CODINGS)
def test_bomb_costs_no_more_than_the_limit(coding: str) -> None:
    bomb = COMPRESS[coding](bytes(32 * LIMIT))
    started = time.thread_time()
    with pytest.raises(RequestTooLarge, match=f"limit {LIMIT} bytes"):
        inflate(bomb, coding, LIMIT)
    assert time.thread_time() - started < 0.1
    assert len(inflate(COMPRESS[coding](bytes(LIMIT)), coding, LIMIT)) == LIMIT


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1], lambda data: data + b"\0", lambda data: data + data, lambda data: b"",
        lambda data: b"{}", lambda data: data[:5] + b"\xff" * 9,
    ],
)  # fmt: skip
def test_other_data_is_malformed(coding: str, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MalformedRequest, match=r"^Content-Encoding: not "):
        inflate(change(COMPRESS[coding](b'{"inputs": []}')), coding, LIMIT)


def test_codings_do_not_match_each_other() -> None:
    with pytest.raises(MalformedRequest):
        inflate(gzip.compress(b"a"), "deflate", LIMIT)


@pytest.mark.parametrize(
    ("header", "codings"),
    [("", [""]), ("gzip", ["gzip"]), ("GZIP;q=0.5, deflate", ["gzip", "deflate"]), ("gzip; q=0, deflate", ["deflate"]),
     ("gzip;q=0.000", [])],
)  # fmt: skip
def test_codings_with_weight_zero_are_not_accepted(header: str, codings: list[str]) -> None:
    assert accepted(header) == codings
