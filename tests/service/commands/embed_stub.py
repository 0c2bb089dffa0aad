"""`attendant embed` with vectors that depend only on the text, so that every run writes identical bytes.

An engine's vectors depend on the batch in their last bits. Run as a program, this runs the command.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from service.__main__ import main
from service.commands.embed import command as embed
from service.commands.embed import file as embed_file
from service.commands.vector_sources import SourceError, SourceInfo, VectorOptions, VectorSource
from service.config import Settings

DIMENSIONS = 4
MAX_CHARACTERS = 100
MAX_TOKENS = 8
EMPTY = "\u200b"
"""A text that tokenizes to nothing."""


def stub_vector(text: str, dtype: str = "float32") -> NDArray[Any]:
    """Return the vector of a text, (4,)."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIMENSIONS], np.uint8)
    vector: NDArray[Any] = (digest.astype(np.float32) / 255 - 0.5).astype(dtype)
    return vector


class StubSource(VectorSource):
    """Mimics an engine's limits and errors. Each word counts as one token, and each text takes `delay_s` to encode."""

    info = SourceInfo("stub", "sha256:0", "float32", MAX_TOKENS, MAX_CHARACTERS)

    def __init__(self, options: VectorOptions, delay_s: float = 0.0) -> None:
        self._options, self._delay_s = options, delay_s
        self.requests = self.in_flight = self.most_in_flight = 0

    async def send(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], bool]]:
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self._delay_s * len(texts))
        finally:
            self.in_flight -= 1
        if EMPTY in texts:
            field = f"inputs[{list(texts).index(EMPTY)}]"
            raise SourceError(f"{field}: no content after tokenization. Send text.", field, permanent=True)
        dimensions = self._options.dimensions
        return [(stub_vector(text, self._options.dtype)[:dimensions], len(text.split()) > MAX_TOKENS) for text in texts]


@asynccontextmanager
async def open_stub(settings: Settings, options: VectorOptions) -> AsyncIterator[VectorSource]:
    source = StubSource(options, delay_s=0.0001)
    await source.check()
    yield source


if __name__ == "__main__":
    with patch.object(embed, "open_engine_source", open_stub), patch.object(embed_file, "CHUNK_ROWS", 128):
        sys.exit(main(sys.argv[1:]))
