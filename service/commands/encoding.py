"""Embeddings of texts from an engine in this process."""

import asyncio
import gc
import re
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry

from model.artifact.tokenizer import TokenizerInput
from service.commands.lines import LabeledText, TextError
from service.commands.neighbors import Floats, normalize
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse, Input, Side
from service.errors import ServiceError
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.engine.engine import Engine

BATCH_SIZE = 32
"""Texts per request."""
UNLIMITED = 2**40
TIMEOUT_MS = 3_600_000
"""Request timeout. A large model on one core needs minutes per batch, and nobody is waiting."""
LIMITS = ("max_inputs", "max_queue_ms", "max_queue_tokens", "max_response_bytes", "max_spans_per_request")
"""Options that protect a server from its clients."""
PROGRESS_INTERVAL_S = 5.0

T = TypeVar("T")


@asynccontextmanager
async def open_engine(settings: Settings) -> AsyncIterator["Engine"]:
    """Load the artifact in `settings` and yield its engine, without limits on requests.

    Raises `ArtifactError` or `ConfigError`.
    """
    from service.engine.engine import Engine  # serve imports it while the model loads

    changes = dict.fromkeys(LIMITS, UNLIMITED) | {"max_timeout_ms": TIMEOUT_MS}
    settings = settings.model_copy(update=changes)
    engine = Engine(LoadedModel.load(settings), settings, Metrics(CollectorRegistry()))
    try:
        yield engine
    finally:
        await engine.close()


def run_engine(settings: Settings, work: "Callable[[Engine], Awaitable[T]]") -> T:
    """Load an artifact, return the result of `work` with its engine, and free the model. Raises as `open_engine`."""

    async def run() -> T:
        async with open_engine(settings) as engine:
            return await work(engine)

    result = asyncio.run(run())
    gc.collect()  # free the model's sessions before the next model is loaded
    return result


async def encode_texts(
    engine: "Engine", texts: Iterable[LabeledText], prompt_name: str | None = None, role: Side | None = None
) -> AsyncGenerator[EncodeResponse, None]:
    """Yield one response per batch of texts, truncating texts over the token limit as the model does.

    `prompt_name` None selects the role's prompt, or the model's default prompt. Raises a `ServiceError` that names the
    text.
    """
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH_SIZE)):
        inputs = tuple(Input(TokenizerInput(text)) for _, text in batch)
        try:
            yield await engine.encode(EncodeRequest(inputs, truncation="auto", prompt_name=prompt_name, role=role))
        except ServiceError as error:
            name_text(error, [label for label, _ in batch])
            raise


def name_text(error: ServiceError, labels: Sequence[str]) -> None:
    """Replace the path of an input with its label."""
    match = re.fullmatch(r"inputs\[(\d+)\](.*)", error.field or "")
    if match is not None:
        error.field = labels[int(match[1])] + match[2]


class TextEncoder:
    """Encodes the texts of files with one engine and reports progress on stderr. Errors name file and text."""

    def __init__(self, engine: "Engine", label: str) -> None:
        """Name the engine `label` in progress messages."""
        self.engine = engine
        self.truncated = 0
        """Number of texts over the token limit."""
        self._label, self._last = label, time.monotonic()

    async def vectors(self, path: Path, texts: Sequence[LabeledText], role: Side | None) -> Floats:
        """Return the embeddings of a file's texts, (N, D), normalized for the model's similarity.

        The role's prompt applies if the model has one. Raises `TextError`.
        """
        vectors = np.empty((len(texts), self.engine.info.dimensions), np.float32)
        done = 0
        async for rows in self.batches(path, texts, role):
            vectors[done : done + len(rows)] = rows
            done += len(rows)
        return vectors

    async def batches(
        self, path: Path, texts: Sequence[LabeledText], role: Side | None
    ) -> AsyncGenerator[Floats, None]:
        """Yield the same embeddings in batches. Raises `TextError`."""
        done = 0
        try:
            async with aclosing(encode_texts(self.engine, texts, role=role)) as responses:
                async for response in responses:
                    self.truncated += response.truncated_inputs
                    done += len(response.results)
                    self.report(path, done, len(texts))
                    rows = [result.pooled.values for result in response.results if result.pooled is not None]
                    yield normalize(np.stack(rows), self.engine.info.similarity)
        except ServiceError as error:
            raise TextError(f"{path}: {error.message}") from None

    def report(self, path: Path, done: int, total: int) -> None:
        """Print how many texts of a file are encoded, at most every five seconds."""
        if time.monotonic() - self._last >= PROGRESS_INTERVAL_S:
            self._last = time.monotonic()
            message = f"attendant: {self._label}: {path}: encoded {done:,} of {total:,} texts"
            print(message, file=sys.stderr, flush=True)
