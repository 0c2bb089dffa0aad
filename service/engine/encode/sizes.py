"""Sizes of the parts of a response in bytes, known before inference."""

from collections.abc import Sequence
from typing import Protocol

from service.engine.schema.encode import DTYPES, DType, MapDType, Wire

# Upper bounds of sizes in a response, in bytes. JSON takes at most 12 per character (two \u escapes).
JSON_VALUE_BYTES: dict[DType | MapDType, int] = {"float32": 16, "float16": 16, "int8": 5, "ubinary": 4}
JSON_CHARACTER_BYTES = 12
TOKEN_BYTES = 128
RESULT_BYTES = 512


class Listed(Protocol):
    """An item of a list in a response: a token, a word, a unit."""

    @property
    def text(self) -> str: ...


def listed_bytes(parts: Sequence[Listed], wire: Wire) -> int:
    """Return an upper bound on the size of tokens, words or units in a response."""
    character = 4 if wire == "binary" else JSON_CHARACTER_BYTES
    return sum(TOKEN_BYTES + len(part.text) * character for part in parts)


def array_bytes(values: int, dtype: DType | MapDType, wire: Wire) -> int:
    """Return the size of `values` numbers: exact in binary and base64, an upper bound in JSON."""
    if wire == "json":
        return values * JSON_VALUE_BYTES[dtype]
    size = -(-values // 8) if dtype == "ubinary" else values * DTYPES[dtype].itemsize
    return size if wire == "binary" else -(-size // 3) * 4


def total_bytes(sizes: Sequence[int], *, padded: bool) -> int:
    """Return the size of a response whose results have these sizes, or all the size of the largest one."""
    return len(sizes) * max(sizes) if padded else sum(sizes)
