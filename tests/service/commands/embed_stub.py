"""`attendant embed` with vectors that depend only on the text, so that every run writes identical bytes.

An engine's vectors depend on the batch in their last bits. Run as a program, this runs the command.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from model.artifact.console import EX_CONFIG
from service.__main__ import main
from service.commands import embed as embed_file
from service.commands import sources as vector_sources
from service.commands.sources import Operation, SourceError, VectorOptions, VectorSource
from service.config import Settings

DIMENSIONS = 4
MAX_CHARACTERS = 100
MAX_TOKENS = 8
EMPTY = "\u200b"
"""A text that tokenizes to nothing."""
INFO: Any = SimpleNamespace(
    name="stub", digest="sha256:0", precision="float32", max_input_tokens=MAX_TOKENS,
    limits=SimpleNamespace(max_input_characters=MAX_CHARACTERS),
)  # fmt: skip


def stub_vector(text: str, dtype: str = "float32") -> NDArray[Any]:
    """Return the vector of a text, (4,)."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIMENSIONS], np.uint8)
    vector: NDArray[Any] = (digest.astype(np.float32) / 255 - 0.5).astype(dtype)
    return vector


class StubSource(VectorSource):
    """Mimics an engine's limits and errors. Each word counts as one token, and each text takes `delay_s` to encode."""

    def __init__(self, options: VectorOptions, delay_s: float = 0.0) -> None:
        super().__init__(INFO, options)
        self._delay_s = delay_s
        self.requests = self.running = self.most_running = 0

    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        self.requests += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self._delay_s * len(texts))
        finally:
            self.running -= 1
        if EMPTY in texts:
            field = f"inputs[{list(texts).index(EMPTY)}]"
            raise SourceError(f"{field}: no content after tokenization. Send text.", EX_CONFIG, field)
        vectors = [stub_vector(text, options["dtype"])[: options["dimensions"]] for text in texts]
        return [
            SimpleNamespace(pooled=vector, truncated=len(text.split()) > MAX_TOKENS)
            for vector, text in zip(vectors, texts, strict=True)
        ]


@asynccontextmanager
async def open_stub(settings: Settings, options: VectorOptions) -> AsyncIterator[VectorSource]:
    source = StubSource(options, delay_s=0.0001)
    await source.check()
    yield source


if __name__ == "__main__":
    with (
        patch.object(vector_sources, "open_engine_source", open_stub),
        patch.object(embed_file, "CHECKPOINT_ROWS", 128),
    ):
        sys.exit(main(sys.argv[1:]))
