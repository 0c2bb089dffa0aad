"""A text's words, embedding and map, from an engine in this process or from a server."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.console import EX_CONFIG, EX_DATAERR, EX_UNAVAILABLE
from model.tokenizer import TokenizerInput
from service.commands.arguments import CommandError
from service.commands.encoding import open_engine
from service.commands.model_selection import select_model
from service.commands.vector_sources import (
    Connection,
    EngineSource,
    ServerSource,
    SourceError,
    VectorOptions,
    VectorSource,
    engine_error,
    open_client,
    source_error,
)
from service.config import Settings
from service.engine.schema.encode import EncodeRequest, Input
from service.engine.schema.explain import AttendRequest, HeadReduce
from service.errors import ServiceError

if TYPE_CHECKING:
    from service.engine.engine import Engine

MapKind = Literal["probs", "norm", "block_norm", "projection"]
HEAD_REDUCES: dict[MapKind, HeadReduce] = {"probs": "mean", "norm": "sum", "block_norm": "none", "projection": "none"}
"""Kinds whose values are shares or norms, and how their heads are combined into one map."""


@dataclass(frozen=True)
class Analysis:
    """A text as the model sees it.

    Attributes:
        words: The token texts of each word.
        token_count: Number of tokens, including special tokens.
        truncated: Whether tokens at the end were dropped.
        units: Words of the map.
        matrix: Contribution of each word (column) to each word (row), (W, W).
        layer: Layer of the map, from 1, or None for the rollout of all layers.
    """

    words: list[list[str]]
    token_count: int
    truncated: bool
    units: list[str]
    matrix: NDArray[Any]
    layer: int | None


class Analyzer(ABC):
    """Analyzes texts with one model. `vectors` computes their embeddings."""

    def __init__(self, vectors: VectorSource) -> None:
        self.vectors = vectors

    async def analyze(self, text: str, kind: MapKind, layer: int | None) -> Analysis:
        """Analyze a text, truncating it at the end; `layer` None selects the rollout of all layers.

        Raises `CommandError`.
        """
        try:
            encoded = await self.encode(text)
            attended, matrix = await self.attend(text, kind, layer)
        except SourceError as error:
            raise text_error(error, "TEXT") from None
        words: list[list[str]] = [[] for _ in encoded.words]
        for token in encoded.tokens:
            if token.word_index is not None:
                words[token.word_index].append(token.text)
        units = [attended.units[row].text for row in attended.rows]
        return Analysis(words, encoded.token_count, encoded.truncated, units, matrix, attended.maps[0].layer)

    @abstractmethod
    async def encode(self, text: str) -> Any:
        """Return an encode result with tokens and words. Raises `SourceError`."""

    @abstractmethod
    async def attend(self, text: str, kind: MapKind, layer: int | None) -> tuple[Any, NDArray[Any]]:
        """Return an attend result with one word-level map, and its matrix. Raises `SourceError`."""


class EngineAnalyzer(Analyzer):
    """Runs an engine in this process."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__(EngineSource(engine, VectorOptions()))
        self._engine = engine

    async def encode(self, text: str) -> Any:
        request = EncodeRequest((Input(TokenizerInput(text)),), outputs=("tokens", "words"), truncation="right")
        try:
            return (await self._engine.encode(request)).results[0]
        except ServiceError as error:
            raise engine_error(error) from None

    async def attend(self, text: str, kind: MapKind, layer: int | None) -> tuple[Any, NDArray[Any]]:
        request = AttendRequest(
            (Input(TokenizerInput(text)),),
            kind=kind,
            layers=None if layer is None else (layer,),
            layer_reduce="rollout" if layer is None else "none",
            head_reduce=HEAD_REDUCES[kind],
            unit="word",
            special_tokens="drop",
            truncation="right",
        )
        try:
            (result,) = (await self._engine.attend(request)).results
        except ServiceError as error:
            raise engine_error(error) from None
        (only,) = result.maps
        assert only.matrix is not None
        return result, only.matrix.values


class ServerAnalyzer(Analyzer):
    """Calls a server over REST or gRPC."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(ServerSource(connection, VectorOptions(connection.model)))
        self._connection = connection
        self._model: dict[str, Any] = {} if connection.model is None else {"model": connection.model}

    async def encode(self, text: str) -> Any:
        from attendant_client import AttendantError

        client = self._connection.client
        try:
            response = await client.encode(text, outputs=["tokens", "words"], truncation="right", **self._model)
            return response.results[0]
        except AttendantError as error:
            raise source_error(error, self._connection.url) from None

    async def attend(self, text: str, kind: MapKind, layer: int | None) -> tuple[Any, NDArray[Any]]:
        from attendant_client import AttendantError

        try:
            response = await self._connection.client.attend(
                text,
                kind=kind,
                layers="all" if layer is None else [layer],
                layer_reduce="rollout" if layer is None else "none",
                head_reduce=HEAD_REDUCES[kind],
                unit="word",
                special_tokens="drop",
                truncation="right",
                **self._model,
            )
        except AttendantError as error:
            raise source_error(error, self._connection.url) from None
        (result,) = response.results
        (only,) = result.maps
        assert only.matrix is not None
        return result, only.matrix


@asynccontextmanager
async def open_engine_analyzer(settings: Settings, model: str | None) -> AsyncIterator[Analyzer]:
    """Load a model with `settings`. Raises `ArtifactError`, `ConfigError` or `CommandError`."""
    async with open_engine(select_model(settings, model)) as engine:
        yield EngineAnalyzer(engine)


@asynccontextmanager
async def open_server_analyzer(url: str, api_key: str | None, model: str | None) -> AsyncIterator[Analyzer]:
    """Connect to a server. Raises `CommandError`."""
    async with open_client(url, api_key, model) as connection:
        yield ServerAnalyzer(connection)


async def embed_texts(vectors: VectorSource, texts: Sequence[tuple[str, str]], batch: int) -> NDArray[Any]:
    """Return the embeddings of labeled texts, (N, D). Raises `CommandError`."""
    parts = []
    for start in range(0, len(texts), batch):
        part = texts[start : start + batch]
        for (label, _), result in zip(part, await vectors.encode([text for _, text in part]), strict=True):
            if result.vector is None:
                raise CommandError(f"{label}: {result.error}", EX_DATAERR)
            parts.append(result.vector)
    return np.stack(parts)


def text_error(error: SourceError, label: str) -> CommandError:
    """Return the error to exit with; `label` identifies the text."""
    if error.field is not None and error.field.startswith("inputs"):
        return CommandError(label + error.message.removeprefix("inputs[0]").removeprefix("inputs"), EX_DATAERR)
    message = error.message.replace("layers[0]", "--layer", 1)
    return CommandError(message, EX_CONFIG if error.permanent else EX_UNAVAILABLE)
