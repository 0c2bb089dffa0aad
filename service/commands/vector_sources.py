"""Requests to an engine in this process or to a server, and embeddings with their errors by text."""

import argparse
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact.console import EX_CONFIG, EX_UNAVAILABLE, EX_USAGE
from model.artifact.tokenizer import TokenizerInput
from service.commands.arguments import CommandError
from service.commands.encoding import open_engine
from service.commands.model_selection import select_model
from service.commands.vector_files import DType
from service.config import Settings, load_settings
from service.engine.schema.encode import Array, EncodeRequest, Input
from service.engine.schema.explain import AttendRequest
from service.errors import InvalidArgument, NotFound, ServiceError, Unsupported

if TYPE_CHECKING:
    from attendant_client import AsyncClient, AttendantError
    from attendant_client import ModelInfo as ClientModelInfo

    from service.engine.engine import Engine
    from service.engine.schema.model import ModelInfo

TLS_SCHEMES = ("https:", "grpcs:")
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
MAX_ATTEMPTS = 6
"""Attempts per request to a server, enough to survive a ten-second outage."""
PERMANENT_CODES = frozenset(("INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"))
"""Error codes for which retrying with the same options is pointless."""

Operation = Literal["encode", "attend"]


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

    @classmethod
    def of(cls, info: "ModelInfo | ClientModelInfo") -> "SourceInfo":
        characters = info.limits.max_input_characters
        return cls(info.name, info.digest, info.precision, info.max_input_tokens, characters)


class SourceError(Exception):
    """A failed request. `field` is a path in the request, or None."""

    def __init__(self, message: str, field: str | None, *, permanent: bool) -> None:
        super().__init__(message)
        self.message, self.field, self.permanent = message, field, permanent

    def to_command_error(self) -> CommandError:
        """Return the error to exit with."""
        return CommandError(self.message, EX_CONFIG if self.permanent else EX_UNAVAILABLE)


class VectorSource(ABC):
    """One model, and the options of its embeddings."""

    dimensions: int
    """Embedding size."""
    batch_rows = 256
    in_flight = 4
    """More batches in flight did not raise the rate on a CPU, and a server rejects requests over its queue limit."""

    def __init__(self, info: SourceInfo, options: VectorOptions) -> None:
        self.info, self._options = info, options

    @abstractmethod
    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        """Return each text's result; texts over the token limit are truncated at the end. Raises `SourceError`."""

    async def check(self) -> None:
        """Encode one word to look up `dimensions`. Raises `CommandError` if an option is invalid."""
        try:
            (word,) = await self._encode(["word"])
        except SourceError as error:
            raise error.to_command_error() from None
        assert word.vector is not None
        self.dimensions = len(word.vector)

    async def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises `CommandError` if a request fails."""
        encoded: dict[int, Encoded] = {}
        remaining = list(range(len(texts)))
        while remaining:
            try:
                results = await self._encode([texts[index] for index in remaining])
            except SourceError as error:
                match = re.match(r"inputs\[(\d+)\]", error.field or "")
                if match is None:
                    raise error.to_command_error() from None
                reason = error.message.removeprefix(error.field or "").removeprefix(": ")
                encoded[remaining.pop(int(match[1]))] = Encoded(None, error=reason)
            else:
                encoded |= zip(remaining, results, strict=True)
                break
        return [encoded[index] for index in range(len(texts))]

    async def _encode(self, texts: Sequence[str]) -> list[Encoded]:
        options = self._options
        results = await self.run(
            "encode",
            texts,
            dtype=options.dtype,
            dimensions=options.dimensions,
            prompt_name=options.prompt_name,
            normalize=options.normalize,
        )
        return [Encoded(to_array(result.pooled), result.truncated) for result in results]


def to_array(values: Array | NDArray[Any]) -> NDArray[Any]:
    """Return an array of an engine's or a server's result."""
    return values.values if isinstance(values, Array) else np.asarray(values)


class EngineSource(VectorSource):
    """Runs an engine in this process."""

    def __init__(self, engine: "Engine", options: VectorOptions) -> None:
        super().__init__(SourceInfo.of(engine.info), options)
        self._engine = engine

    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        inputs = tuple(Input(TokenizerInput(text)) for text in texts)
        request = (EncodeRequest if operation == "encode" else AttendRequest)(inputs, truncation="auto", **options)
        try:
            return list((await getattr(self._engine, operation)(request)).results)
        except ServiceError as error:
            permanent = isinstance(error, InvalidArgument | NotFound | Unsupported)
            raise SourceError(error.message, error.field, permanent=permanent) from None


class ServerSource(VectorSource):
    """Calls a server over REST or gRPC."""

    def __init__(self, url: str, client: "AsyncClient", info: SourceInfo, options: VectorOptions) -> None:
        super().__init__(info, options)
        self._url, self._client = url, client

    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        from attendant_client import AttendantError

        options |= {"truncation": "auto", "model": self._options.model}
        try:
            return list((await getattr(self._client, operation)(texts, **options)).results)
        except AttendantError as error:
            raise _server_error(error, self._url) from None


def open_source(arguments: argparse.Namespace, options: VectorOptions) -> AbstractAsyncContextManager[VectorSource]:
    """Return the server or the engine that the source options select. Opening it raises `CommandError`."""
    if arguments.server is None:
        return open_engine_source(load_settings(), options)
    tls = {"ca": arguments.ca_file, "cert": arguments.cert_file, "key": arguments.key_file}
    return open_server_source(arguments.server, _read_key(arguments.api_key_file), options, tls)


@asynccontextmanager
async def open_engine_source(settings: Settings, options: VectorOptions) -> AsyncIterator[VectorSource]:
    """Load a model with `settings`. Raises `ArtifactError`, `ConfigError` or `CommandError`."""
    async with open_engine(select_model(settings, options.model)) as engine:
        source = EngineSource(engine, options)
        await source.check()
        yield source


@asynccontextmanager
async def open_server_source(
    url: str, api_key: str | None, options: VectorOptions, tls: Mapping[str, str | None]
) -> AsyncIterator[VectorSource]:
    """Connect to a server. `tls` has the fields of the client's `TlsFiles`. Raises `CommandError`."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # no lines about failed TLS handshakes on stderr
    try:
        from attendant_client import AsyncClient, AttendantError, RetryPolicy, TlsFiles
    except ImportError:
        remedy = "Install it: pip install -c constraints.txt ./client."
        raise CommandError(f"--server: attendant-client is not installed. {remedy}", EX_CONFIG) from None
    try:
        files = TlsFiles(**tls) if any(tls.values()) else None
        opened = AsyncClient(url, api_key=api_key, retries=RetryPolicy(max_attempts=MAX_ATTEMPTS), tls=files)
    except ValueError as error:
        raise CommandError(f"--server: {error}", EX_USAGE) from None
    async with opened as client:
        try:
            info = SourceInfo.of(await client.model(options.model))
        except AttendantError as error:
            raise _server_error(error, url).to_command_error() from None
        source = ServerSource(url, client, info, options)
        await source.check()
        yield source


def _read_key(path: Path | None) -> str | None:
    """Return the first line of the --api-key-file. Raises `CommandError`."""
    if path is None:
        return None
    try:
        first, _, _ = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise CommandError(f"--api-key-file: {path}: cannot be read ({problem}). Check the path.", EX_CONFIG) from None
    return first.strip()


def _server_error(error: "AttendantError", url: str) -> SourceError:
    if error.reason == "UNAVAILABLE":
        # REST messages start with the request URL.
        reason = re.sub(r"^https?://\S+: ", "", " ".join(error.message.split())).rstrip(".")
        if UNTRUSTED in reason:
            return SourceError(f"--server: certificate of {url} not trusted. Set --ca-file.", None, permanent=True)
        remedy = "Check the URL, --ca-file and --cert-file" if url.startswith(TLS_SCHEMES) else "Check the URL"
        return SourceError(f"--server: cannot connect to {url} ({reason}). {remedy}.", None, permanent=False)
    if error.reason == "ROUTE_NOT_FOUND":
        return SourceError(f"--server: no Attendant server at {url}. Remove the path of the URL.", None, permanent=True)
    return SourceError(error.message, error.field, permanent=error.code in PERMANENT_CODES)
