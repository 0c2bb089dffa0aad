"""Embeddings of texts from an engine in this process or from a server."""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model.console import EX_CONFIG, EX_UNAVAILABLE, EX_USAGE
from model.tokenizer import TokenizerInput
from service.commands.arguments import CommandError
from service.commands.encoding import open_engine
from service.commands.model_selection import select_model
from service.commands.vector_files import DType
from service.config import Settings
from service.engine.schema.encode import EncodeRequest, Input
from service.errors import InvalidArgument, NotFound, ServiceError, Unsupported

if TYPE_CHECKING:
    from attendant_client import AsyncClient, AttendantError, ModelInfo

    from service.engine.engine import Engine

UNLIMITED = 2**40
MAX_ATTEMPTS = 6
"""Attempts per request to a server, enough to survive a ten-second outage."""
PERMANENT_CODES = frozenset(("INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"))
"""Error codes for which retrying with the same options is pointless."""


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """Embedding options; None selects the model's default, or the default model."""

    model: str | None = None
    dtype: DType = "float32"
    dimensions: int | None = None
    prompt_name: str | None = None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text's embedding, (D,), or why it was rejected."""

    vector: NDArray[Any] | None
    truncated: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The model. `precision` applies to weights and activations, and `digest` identifies the artifact."""

    name: str
    digest: str
    precision: str
    max_input_tokens: int
    max_input_characters: int


class SourceError(Exception):
    """A failed request. `field` is a path in the request, or None."""

    def __init__(self, message: str, field: str | None, *, permanent: bool) -> None:
        super().__init__(message)
        self.message, self.field, self.permanent = message, field, permanent

    def to_command_error(self) -> CommandError:
        """Return the error to exit with."""
        return CommandError(self.message, EX_CONFIG if self.permanent else EX_UNAVAILABLE)


class VectorSource(ABC):
    """Computes embeddings with one model."""

    info: SourceInfo
    dimensions: int
    """Embedding size."""

    async def check(self) -> None:
        """Encode one word to look up `dimensions`. Raises `CommandError` if an option is invalid."""
        try:
            ((vector, _),) = await self.send(["word"])
        except SourceError as error:
            raise error.to_command_error() from None
        self.dimensions = len(vector)

    async def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises `CommandError` if a request fails."""
        encoded: dict[int, Encoded] = {}
        remaining = list(range(len(texts)))
        while remaining:
            try:
                results = await self.send([texts[index] for index in remaining])
            except SourceError as error:
                match = re.match(r"inputs\[(\d+)\]", error.field or "")
                if match is None:
                    raise error.to_command_error() from None
                reason = error.message.removeprefix(error.field or "").removeprefix(": ")
                encoded[remaining.pop(int(match[1]))] = Encoded(None, error=reason)
                continue
            for index, (vector, truncated) in zip(remaining, results, strict=True):
                encoded[index] = Encoded(vector, truncated)
            break
        return [encoded[index] for index in range(len(texts))]

    @abstractmethod
    async def send(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], bool]]:
        """Return each embedding and whether its text was truncated. Raises `SourceError`."""


class EngineSource(VectorSource):
    """Runs an engine in this process."""

    def __init__(self, engine: "Engine", options: VectorOptions) -> None:
        info = engine.info
        self._engine, self._options = engine, options
        self.info = SourceInfo(
            info.name, info.digest, info.precision, info.max_input_tokens, info.limits.max_input_characters
        )

    async def send(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], bool]]:
        options = self._options
        request = EncodeRequest(
            tuple(Input(TokenizerInput(text)) for text in texts),
            dimensions=options.dimensions,
            dtype=options.dtype,
            normalize=options.normalize,
            prompt_name=options.prompt_name,
            truncation="right",
            max_inputs=len(texts),
        )
        try:
            response = await self._engine.encode(request)
        except ServiceError as error:
            raise engine_error(error) from None
        vectors = []
        for result in response.results:
            assert result.pooled is not None
            vectors.append((result.pooled.values, result.truncated))
        return vectors


@dataclass(frozen=True, slots=True)
class Connection:
    """A server and one of its models."""

    url: str
    client: "AsyncClient"
    model: str | None
    info: "ModelInfo"


class ServerSource(VectorSource):
    """Calls a server over REST or gRPC."""

    def __init__(self, connection: Connection, options: VectorOptions) -> None:
        info = connection.info
        self._connection = connection
        self._options: dict[str, Any] = {"dtype": options.dtype, "truncation": "right"}
        for name in ("model", "dimensions", "prompt_name", "normalize"):
            if getattr(options, name) is not None:
                self._options[name] = getattr(options, name)
        self.info = SourceInfo(
            info.name, info.digest, info.precision, info.max_input_tokens, info.limits.max_input_characters
        )

    async def send(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], bool]]:
        from attendant_client import AttendantError

        try:
            response = await self._connection.client.encode(texts, **self._options)
        except AttendantError as error:
            raise source_error(error, self._connection.url) from None
        vectors = []
        for result in response.results:
            assert result.pooled is not None
            vectors.append((np.asarray(result.pooled), result.truncated))
        return vectors


@asynccontextmanager
async def open_engine_source(settings: Settings, options: VectorOptions) -> AsyncIterator[VectorSource]:
    """Load a model with `settings`. Raises `ArtifactError`, `ConfigError` or `CommandError`."""
    limits = ("max_queue_ms", "max_queue_tokens", "max_response_bytes")
    settings = select_model(settings, options.model).model_copy(update=dict.fromkeys(limits, UNLIMITED))
    async with open_engine(settings) as engine:
        source = EngineSource(engine, options)
        await source.check()
        yield source


@asynccontextmanager
async def open_client(url: str, api_key: str | None, model: str | None) -> AsyncIterator[Connection]:
    """Connect to one of a server's models, or the default one. Raises `CommandError`."""
    try:
        from attendant_client import AsyncClient, AttendantError, RetryPolicy
    except ImportError:
        remedy = "Install it: pip install -c constraints.txt ./client."
        raise CommandError(f"--server: attendant-client is not installed. {remedy}", EX_CONFIG) from None
    try:
        opened = AsyncClient(url, api_key=api_key, retries=RetryPolicy(max_attempts=MAX_ATTEMPTS))
    except ValueError as error:
        raise CommandError(f"--server: {error}", EX_USAGE) from None
    async with opened as client:
        try:
            info = await client.model(model)
        except AttendantError as error:
            raise source_error(error, url).to_command_error() from None
        yield Connection(url, client, model, info)


@asynccontextmanager
async def open_server_source(url: str, api_key: str | None, options: VectorOptions) -> AsyncIterator[VectorSource]:
    """Connect to a server. Raises `CommandError`."""
    async with open_client(url, api_key, options.model) as connection:
        source = ServerSource(connection, options)
        await source.check()
        yield source


def read_key(path: Path | None) -> str | None:
    """Return the first line of the --api-key-file. Raises `CommandError`."""
    if path is None:
        return None
    try:
        first, _, _ = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise CommandError(f"--api-key-file: {path}: cannot be read ({problem}). Check the path.", EX_CONFIG) from None
    return first.strip()


def engine_error(error: ServiceError) -> SourceError:
    """Return the error for a failed engine request."""
    return SourceError(
        error.message, error.field, permanent=isinstance(error, InvalidArgument | NotFound | Unsupported)
    )


def source_error(error: "AttendantError", url: str) -> SourceError:
    """Return the error for a failed server request."""
    if error.reason == "UNAVAILABLE":
        # REST messages start with the request URL.
        reason = re.sub(r"^https?://\S+: ", "", " ".join(error.message.split())).rstrip(".")
        return SourceError(f"--server: cannot connect to {url} ({reason}). Check the URL.", None, permanent=False)
    if error.reason == "ROUTE_NOT_FOUND":
        return SourceError(f"--server: no Attendant server at {url}. Remove the path of the URL.", None, permanent=True)
    return SourceError(error.message, error.field, permanent=error.code in PERMANENT_CODES)
