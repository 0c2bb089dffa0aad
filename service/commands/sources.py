"""Where commands get embeddings from: an engine in this process, or a server, and the model that options select."""

import argparse
import asyncio
import gc
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from attendant_client.types import (
    MAX_CHUNKED_CHARACTERS,
    AttendRequest,
    Chunk,
    ChunkOptions,
    EncodeRequest,
    EncodeResponse,
    Input,
    ModelInfo,
    Role,
)
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from model.artifact.console import EX_CONFIG, EX_UNAVAILABLE, EX_USAGE
from model.artifact.files import Artifact
from service.commands.arguments import CommandError
from service.commands.labeled_texts import LabeledText, TextError
from service.commands.measures import Floats, normalize
from service.commands.vector_files import DType
from service.config import Settings, load_settings
from service.engine.model_loader import LoadedModel
from service.errors import InvalidArgument, NotFound, ServiceError, Unsupported
from service.metrics import Metrics
from service.model_cache import cache_directory, prepare_artifact
from service.models_file import ModelEntry, configured_models
from service.operations.encode import encode
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.spelling import Spelling

if TYPE_CHECKING:
    from attendant_client import AsyncClient, AttendantError

    from service.engine.engine import Engine


def select_model(settings: Settings, name: str | None) -> Settings:
    """Return settings with a single model, selected by name or alias; None selects the first one.

    Its directory is absolute. Raises `ArtifactError`, `ConfigError` or `CommandError`.
    """
    entries = configured_models(settings)
    entry = entries[0] if name is None else next((item for item in entries if name in _names(item)), None)
    if entry is None:
        names = ", ".join(f'"{_names(item)[0]}"' for item in entries)
        raise CommandError(f'--model: not found ("{name}"). Use {names}, or set ATTENDANT_MODELS.', EX_CONFIG)
    directory = Path(entry.source)
    if settings.models_file is not None:
        directory = prepare_artifact(entry.source, cache_directory(settings.cache_dir))
    changes = {"model_dir": directory.resolve(), "model_digest": entry.digest, "models_file": None}
    return settings.model_copy(update=changes | {"models": "", "model_aliases": ""})


def _names(entry: ModelEntry) -> tuple[str, ...]:
    return (entry.name or Artifact.open(Path(entry.source)).manifest.name, *entry.aliases)


BATCH_SIZE = 32
"""Texts per request."""
UNLIMITED = 2**40
TIMEOUT_MS = 3_600_000
"""Request timeout. A large model on one core needs minutes per batch, and nobody is waiting."""
LIMITS = ("max_inputs", "max_queue_ms", "max_queue_tokens", "max_response_bytes", "max_spans_per_request")
"""Options that protect a server from its clients."""
PROGRESS_INTERVAL_S = 5.0
NO_OPTIONS = Spelling(options={}, keeps_ids=True)

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
    engine: "Engine", texts: Iterable[LabeledText], role: Role | None = None
) -> AsyncGenerator[EncodeResponse, None]:
    """Yield one response per batch of texts, truncated like the model does, with the prompt of the role.

    Raises a `ServiceError` that names the text.
    """
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH_SIZE)):
        inputs = tuple(Input(text) for _, text in batch)
        try:
            yield await encode(engine, EncodeRequest(inputs, truncation="auto", role=role), Call())
        except ServiceError as error:
            name_text(error, [label for label, _ in batch])
            raise


def name_text(error: ServiceError, labels: Sequence[str]) -> None:
    """Replace the path of an input with its label, in an error without suggestions to change options of a request."""
    error.spell(NO_OPTIONS)
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

    async def vectors(self, path: Path, texts: Sequence[LabeledText], role: Role | None) -> Floats:
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
        self, path: Path, texts: Sequence[LabeledText], role: Role | None
    ) -> AsyncGenerator[Floats, None]:
        """Yield the same embeddings in batches. Raises `TextError`."""
        done = 0
        try:
            async with aclosing(encode_texts(self.engine, texts, role=role)) as responses:
                async for response in responses:
                    self.truncated += response.truncated_inputs
                    done += len(response.results)
                    self.report(path, done, len(texts))
                    rows = [result.pooled for result in response.results if result.pooled is not None]
                    yield normalize(np.stack(rows), self.engine.info.similarity)
        except ServiceError as error:
            raise TextError(f"{path}: {error.message}") from None

    def report(self, path: Path, done: int, total: int) -> None:
        """Print how many texts of a file are encoded, at most every five seconds."""
        if time.monotonic() - self._last >= PROGRESS_INTERVAL_S:
            self._last = time.monotonic()
            message = f"attendant: {self._label}: {path}: encoded {done:,} of {total:,} texts"
            print(message, file=sys.stderr, flush=True)


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
    chunks: ChunkOptions | None = None

    def max_characters(self, info: ModelInfo) -> int:
        """Return the maximum length of a text."""
        return info.limits.max_input_characters if self.chunks is None else MAX_CHUNKED_CHARACTERS


class TitledText(NamedTuple):
    """A text, and the title of its document, which precedes it and each of its chunks in the model's input."""

    title: str
    text: str


Text = str | TitledText


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text's embedding, (D,), or those of its chunks, (C, D), or why it was rejected."""

    vector: NDArray[Any] | None
    truncated: bool = False
    error: str = ""
    chunks: list[Chunk] | None = None

    @property
    def count(self) -> int:
        """The number of rows of the output."""
        return 1 if self.chunks is None else len(self.chunks)


class SourceError(CommandError):
    """A failed request. `field` is a path in the request, or None."""

    def __init__(self, message: str, status: int, field: str | None = None) -> None:
        super().__init__(message, status)
        self.field = field


class VectorSource(ABC):
    """One model, and the options of its embeddings."""

    dimensions: int
    """Embedding size."""
    batch_rows = 256
    in_flight = 4
    """More batches in flight did not raise the rate on a CPU, and a server rejects requests over its queue limit."""

    def __init__(self, info: ModelInfo, options: VectorOptions) -> None:
        self.info, self._options = info, options
        self.max_characters = options.max_characters(info)

    @abstractmethod
    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        """Return each text's result; texts over the token limit are truncated at the end. Raises `SourceError`."""

    async def check(self) -> None:
        """Encode one word to look up `dimensions`. Raises `CommandError` if an option is invalid."""
        (word,) = await self._encode(["word"])
        assert word.vector is not None
        self.dimensions = word.vector.shape[-1]

    async def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return each text's embedding, or why it was rejected. Raises `CommandError` if a request fails."""
        plain = {index: text for index, text in enumerate(texts) if isinstance(text, str)}
        encoded = {
            index: await self._encode_titled(text) for index, text in enumerate(texts) if isinstance(text, TitledText)
        }
        remaining = list(plain)
        while remaining:
            try:
                results = await self._encode([plain[index] for index in remaining])
            except SourceError as error:
                match = re.match(r"inputs\[(\d+)\]", error.field or "")
                if match is None:
                    raise
                reason = str(error).removeprefix(error.field or "").removeprefix(": ")
                encoded[remaining.pop(int(match[1]))] = Encoded(None, error=reason)
            else:
                encoded |= zip(remaining, results, strict=True)
                break
        return [encoded[index] for index in range(len(texts))]

    async def _encode_titled(self, item: TitledText) -> Encoded:
        """Return the embedding of one text, because a request takes a single prompt."""
        info = self.info
        prompt = info.prompts.get(self._options.prompt_name or info.default_prompt_name or "", "")
        try:
            (encoded,) = await self._encode([item.text], prompt=f"{prompt}{item.title}: ", prompt_name=None)
        except SourceError as error:
            if error.field == "prompt":
                return Encoded(None, error="its title leaves no room for text. Shorten the title.")
            if error.field is None or not error.field.startswith("inputs[0]"):
                raise
            return Encoded(None, error=str(error).removeprefix(error.field).removeprefix(": "))
        return encoded

    async def _encode(self, texts: Sequence[str], **changes: Any) -> list[Encoded]:
        options = {item.name: getattr(self._options, item.name) for item in fields(self._options)} | changes
        del options["model"]  # a server gets it with every request, and an engine has one model
        results = await self.run("encode", texts, **options)
        if self._options.chunks is not None:
            return [Encoded(result.chunk_vectors, chunks=result.chunks) for result in results]
        return [Encoded(np.asarray(result.pooled), result.truncated) for result in results]


class EngineSource(VectorSource):
    """Runs an engine in this process."""

    def __init__(self, engine: "Engine", options: VectorOptions) -> None:
        super().__init__(engine.info, options)
        self._engine = engine

    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        inputs = tuple(Input(text) for text in texts)
        request = (EncodeRequest if operation == "encode" else AttendRequest)(inputs, truncation="auto", **options)
        try:
            return list((await OPERATIONS[operation].run(self._engine, request, Call())).results)
        except ServiceError as error:
            error.spell(NO_OPTIONS)
            permanent = isinstance(error, InvalidArgument | NotFound | Unsupported)
            raise SourceError(error.message, EX_CONFIG if permanent else EX_UNAVAILABLE, error.field) from None


class ServerSource(VectorSource):
    """Calls a server over REST or gRPC."""

    def __init__(self, url: str, client: "AsyncClient", info: ModelInfo, options: VectorOptions) -> None:
        super().__init__(info, options)
        self._url, self._client = url, client

    async def run(self, operation: Operation, texts: Sequence[str], **options: Any) -> list[Any]:
        from attendant_client import AttendantError

        options |= {"truncation": "auto", "model": self._options.model}
        try:
            results = list((await getattr(self._client, operation)(texts, **options)).results)
            digest = (await self._client.model(self._options.model)).digest
        except AttendantError as error:
            raise _server_error(error, self._url) from None
        if digest != self.info.digest:
            change = f"{self.info.digest[:19]} to {digest[:19]}"
            remedy = "Repeat it with the earlier model, or with --overwrite"
            raise SourceError(f"--server: the model changed during the run ({change}). {remedy}.", EX_CONFIG)
        return results


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
    """Connect to a server. `tls` contains the fields of the client's `TlsFiles`. Raises `CommandError`."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # no lines about failed TLS handshakes on stderr
    from attendant_client import AsyncClient, AttendantError, RetryPolicy, TlsFiles

    try:
        files = TlsFiles(**tls) if any(tls.values()) else None
        opened = AsyncClient(url, api_key=api_key, retries=RetryPolicy(max_attempts=MAX_ATTEMPTS), tls=files)
    except ValueError as error:
        raise CommandError(f"--server: {error}", EX_USAGE) from None
    async with opened as client:
        try:
            info = await client.model(options.model)
        except AttendantError as error:
            raise _server_error(error, url) from None
        source = ServerSource(url, client, info, options)
        await source.check()
        yield source


def _read_key(path: Path | None) -> str | None:
    """Return the first line of the --api-key-file. Raises `CommandError`."""
    if path is None:
        return None
    try:
        first, _, _ = path.read_text(encoding="utf-8-sig").partition("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise CommandError(f"--api-key-file: {path}: cannot be read ({problem}). Check the path.", EX_CONFIG) from None
    return first.strip()


def _server_error(error: "AttendantError", url: str) -> SourceError:
    if error.reason == "UNAVAILABLE":
        # REST messages start with the request URL.
        reason = re.sub(r"^https?://\S+: ", "", " ".join(error.message.split())).rstrip(".")
        if UNTRUSTED in reason:
            return SourceError(f"--server: certificate of {url} not trusted. Set --ca-file.", EX_CONFIG)
        remedy = "Check the URL, --ca-file and --cert-file" if url.startswith(TLS_SCHEMES) else "Check the URL"
        return SourceError(f"--server: cannot connect to {url} ({reason}). {remedy}.", EX_UNAVAILABLE)
    if error.reason in ("ROUTE_NOT_FOUND", "NOT_FOUND"):
        return SourceError(f"--server: no Attendant server at {url}. Check the port, and remove the path.", EX_CONFIG)
    if error.reason == "UNKNOWN":  # of another server or a proxy
        return SourceError(f"--server: no response of Attendant at {url} ({error.message.rstrip('.')}). Check the URL.",
                           EX_UNAVAILABLE)  # fmt: skip
    status = EX_CONFIG if error.code in PERMANENT_CODES else EX_UNAVAILABLE
    return SourceError(error.message, status, error.field)


def describe_model(info: ModelInfo) -> str:
    """Return the model's name, precision, size, similarity and digest on one line."""
    kind = f"{info.precision} ({info.provider}), {info.dimensions} dimensions, {info.similarity} similarity"
    return f"{info.name}, {kind}, {info.digest}"


def model_record(info: ModelInfo, truncated: int) -> dict[str, Any]:
    """Return the model as JSON; `truncated` is the number of texts over its token limit."""
    names = ("name", "digest", "precision", "provider", "dimensions", "similarity", "max_input_tokens")
    return {name: getattr(info, name) for name in names} | {"truncated": truncated}
