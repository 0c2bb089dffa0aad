"""Lines of text, and their embeddings without a server."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from prometheus_client import CollectorRegistry

from model.tokenizer import TokenizerInput
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse, Input
from service.errors import MalformedRequest, ServiceError
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.engine.engine import Engine

BATCH_SIZE = 32
"""Lines per request. Since there is only one request at a time, the queue is empty and admits a batch of any size."""
TIMEOUT_MS = 3_600_000
"""Request timeout. A large model on one core needs minutes per batch, and nobody is waiting."""

NumberedLine = tuple[int, str]
LabeledText = tuple[str, str]
"""A label for error messages ("line 3", "line 3: text1"), and the text."""


def read_lines(file: BinaryIO) -> Iterator[NumberedLine]:
    """Yield numbered lines, from 1, without line breaks. Raises `MalformedRequest` if one is not UTF-8."""
    for number, line in enumerate(file, start=1):
        try:
            yield number, line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise MalformedRequest("not UTF-8", "Send text in UTF-8.", field=f"line {number}") from None


@asynccontextmanager
async def open_engine(settings: Settings) -> AsyncIterator["Engine"]:
    """Load the artifact in `settings` and yield its engine. Raises `ArtifactError` or `ConfigError`."""
    from service.engine.engine import Engine  # serve imports it while the model loads

    settings = settings.model_copy(update={"max_timeout_ms": TIMEOUT_MS})
    engine = Engine(LoadedModel.load(settings), settings, Metrics(CollectorRegistry()))
    try:
        yield engine
    finally:
        await engine.close()


def encode_lines(
    engine: "Engine", lines: Iterable[NumberedLine], prompt_name: str | None = None
) -> AsyncGenerator[EncodeResponse, None]:
    """Yield one response per batch of lines, like `encode_texts`."""
    return encode_texts(engine, ((f"line {number}", text) for number, text in lines), prompt_name)


async def encode_texts(
    engine: "Engine", texts: Iterable[LabeledText], prompt_name: str | None = None
) -> AsyncGenerator[EncodeResponse, None]:
    """Yield one response per batch of texts, truncating texts over the token limit at the end.

    `prompt_name` None selects the model's default prompt. Raises a `ServiceError` that names the text.
    """
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH_SIZE)):
        inputs = tuple(Input(TokenizerInput(text)) for _, text in batch)
        request = EncodeRequest(inputs, truncation="right", prompt_name=prompt_name, max_inputs=len(inputs))
        try:
            yield await engine.encode(request)
        except ServiceError as error:
            name_text(error, [label for label, _ in batch])
            raise


def name_text(error: ServiceError, labels: Sequence[str]) -> None:
    """Replace the path of an input with its label."""
    match = re.fullmatch(r"inputs\[(\d+)\](.*)", error.field or "")
    if match is not None:
        error.field = labels[int(match[1])] + match[2]
