"""Texts read from files, and their embeddings by one artifact."""

import asyncio
import gc
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.manifest import Role
from service.commands.lines import NumberedLine, encode_lines, open_engine, read_lines
from service.commands.neighbors import Floats
from service.config import Settings
from service.engine.schema.encode import ModelInfo
from service.errors import ServiceError

PROGRESS_INTERVAL_S = 5.0


class TextError(Exception):
    """An error in a file of texts. The message names file and line, and never contains text."""


@dataclass(frozen=True)
class TextFile:
    """Distinct lines among the first `limit` lines of a file.

    Duplicates are dropped: they would be neighbors with tied similarities, in no particular order.
    """

    path: Path
    lines: tuple[NumberedLine, ...]
    lines_read: int
    is_complete: bool
    """True if the whole file was read."""

    @classmethod
    def read(cls, path: Path, limit: int) -> "TextFile":
        """Read the first `limit` lines. Raises `TextError`."""
        numbers: dict[str, int] = {}
        count, is_complete = 0, True
        try:
            with path.open("rb") as file:
                for number, text in read_lines(file):
                    if number > limit:
                        is_complete = False
                        break
                    if not text or text.isspace():
                        raise TextError(f"{path}: line {number}: empty or blank. Remove it.")
                    count = number
                    numbers.setdefault(text, number)
        except ServiceError as error:
            raise TextError(f"{path}: {error.message}") from None
        except OSError as error:
            raise TextError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
        if not count:
            raise TextError(f"{path}: empty. Write one text per line.")
        return cls(path, tuple((number, text) for text, number in numbers.items()), count, is_complete)


@dataclass(frozen=True)
class Encoded:
    """Embeddings of all texts, (N, D), and all queries, (Q, D), under one model."""

    info: ModelInfo
    texts: Floats
    queries: Floats | None
    truncated: int
    """Number of texts and queries over the token limit."""


def encode_files(settings: Settings, texts: TextFile, queries: TextFile | None, label: str) -> Encoded:
    """Load an artifact, encode all lines, and free the model. `label` names the artifact in progress messages.

    If there are queries, the model's query and document prompts apply, if it has any; otherwise its default prompt
    does. Raises `ArtifactError`, `ConfigError` or `TextError`.
    """
    encoded = asyncio.run(_encode_files(settings, texts, queries, label))
    gc.collect()  # free the model's sessions before the next model is loaded
    return encoded


class Progress:
    """Prints progress to stderr, at most every five seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last = time.monotonic()

    def report(self, path: Path, done: int, total: int) -> None:
        if time.monotonic() - self._last >= PROGRESS_INTERVAL_S:
            self._last = time.monotonic()
            print(f"attendant: {self._label}: {path}: encoded {done:,} of {total:,} texts", file=sys.stderr, flush=True)


async def _encode_files(settings: Settings, texts: TextFile, queries: TextFile | None, label: str) -> Encoded:
    async with open_engine(settings) as engine:
        truncated, progress = 0, Progress(label)

        async def encode(file: TextFile, role: Role | None) -> Floats:
            nonlocal truncated
            vectors = np.empty((len(file.lines), engine.info.dimensions), np.float32)
            prompt = engine.role_prompt_name(role)
            done = 0
            try:
                async with aclosing(encode_lines(engine, file.lines, prompt)) as responses:
                    async for response in responses:
                        for result in response.results:
                            assert result.pooled is not None
                            vectors[done] = result.pooled.values
                            done += 1
                        truncated += response.truncated_inputs
                        progress.report(file.path, done, len(file.lines))
            except ServiceError as error:
                raise TextError(f"{file.path}: {error.message}") from None
            return vectors

        text_vectors = await encode(texts, None if queries is None else "document")
        query_vectors = None if queries is None else await encode(queries, "query")
        return Encoded(engine.info, text_vectors, query_vectors, truncated)
