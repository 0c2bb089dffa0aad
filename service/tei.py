"""The API of text-embeddings-inference (TEI): code shared by its REST and gRPC adapters.

Prompts, truncation, and the response headers with a request's size and duration follow TEI.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from attendant_client.types import (
    ClassifyRequest,
    ClassifyResponse,
    EncodeRequest,
    EncodeResponse,
    Input,
    ModelInfo,
    RerankRequest,
    RerankResponse,
    TextInputs,
    Token,
    TokenizeRequest,
    TokenizeResult,
    Truncation,
)

from model.artifact.manifest import COMBINED
from service.engine.engine import PREPARATION_THREADS, Engine
from service.errors import ConflictingFields, Empty, MissingHead, ServiceError, WrongShape
from service.operations.classify import classify
from service.operations.encode import encode
from service.operations.inputs import Call, cut, prompt_not_found
from service.operations.rerank import rerank as rank
from service.operations.tokenize import tokenize as split

NAME = "tei"
"""The metric label of this API, over REST and gRPC."""
Item = str | list[int]
"""A text, or its token ids."""

NANOSECONDS, NANOSECONDS_PER_MS = 1_000_000_000, 1_000_000


OPTIONS, VALUES = {"truncation": "truncate"}, {"truncation": "true"}
"""The names in errors, shared by REST and gRPC."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options common to the operations."""

    truncation: Truncation = "error"
    prompt_name: str | None = None
    call: Call = field(default_factory=Call)


async def embed(
    engine: Engine, items: Sequence[Item], options: Options, *, normalize: bool, dimensions: int | None
) -> EncodeResponse:
    """Return the embedding of each item."""
    request = EncodeRequest(
        to_inputs(items, options.truncation, engine),
        normalize=normalize,
        dimensions=dimensions,
        truncation=options.truncation,
        prompt_name=options.prompt_name,
    )
    return await encode(engine, request, options.call)


async def embed_all(engine: Engine, items: Sequence[Item], options: Options) -> EncodeResponse:
    """Return one vector per token of each item, including special tokens and the prompt."""
    prompt = prompt_text(engine.info, options.prompt_name, "prompt_name")
    if options.prompt_name is not None and not all(isinstance(item, str) for item in items):
        raise ConflictingFields("not supported for token ids", "Send texts.", field="prompt_name")
    # The prompt is prepended to the text, so that it gets token vectors too, unlike encode's prompts.
    inputs = to_inputs(items, options.truncation, engine, prompt)
    request = EncodeRequest(inputs, outputs=("tokens",), truncation=options.truncation, prompt="")
    return await encode(engine, request, options.call)


async def embed_sparse(engine: Engine, items: Sequence[Item], options: Options) -> EncodeResponse:
    """Return the sparse vector of each item. Raises `MissingHead`."""
    if "sparse" not in engine.info.outputs:
        raise MissingHead("The model has no sparse vectors", "Use a SPLADE model or BGE-M3.")
    request = EncodeRequest(
        to_inputs(items, options.truncation, engine),
        outputs=("sparse",),
        truncation=options.truncation,
        prompt_name=options.prompt_name,
    )
    return await encode(engine, request, options.call)


async def predict(
    engine: Engine, items: Sequence[Sequence[str]], options: Options, *, raw_scores: bool
) -> ClassifyResponse:
    """Return the labels of each text or pair, best first. Raises `MissingHead`."""
    if "classify" not in engine.info.operations:
        raise MissingHead("The model is not a classification model", "Use another model.")
    cut_items = ([cut(text, options.truncation, engine.info) for text in item] for item in items)
    inputs = tuple(Input(item[0], item[1] if len(item) == 2 else None) for item in cut_items)
    request = ClassifyRequest(inputs, raw_scores=raw_scores, truncation=options.truncation)
    return await classify(engine, request, options.call)


async def rerank(
    engine: Engine, query: str, texts: Sequence[str], options: Options, *, raw_scores: bool
) -> RerankResponse:
    """Return the texts, best score first. Raises `MissingHead`."""
    check_ranks(engine)
    request = RerankRequest(
        cut(query, options.truncation, engine.info),
        tuple(cut(text, options.truncation, engine.info) for text in texts),
        raw_scores=raw_scores,
        truncation=options.truncation,
    )
    try:
        return await rank(engine, request, options.call)
    except ServiceError as error:
        if error.field is not None:
            error.field = error.field.replace("documents", "texts", 1)
        raise


async def tokenize(engine: Engine, texts: Sequence[str], options: Options) -> list[tuple[str, TokenizeResult]]:
    """Return each text with its prompt, and its tokens."""
    inputs = to_inputs(texts, "error", engine, prompt_text(engine.info, options.prompt_name, "prompt_name"))
    response = await split(engine, TokenizeRequest(inputs), options.call)
    return list(zip([item.text or "" for item in inputs], response.results, strict=True))


def check_not_empty(items: Sequence[Any], field: str) -> None:
    """Raise `Empty` for an empty list. Empty texts raise a different error."""
    if not items and not isinstance(items, str):
        raise Empty("empty", "Send at least one item.", field=field)


def check_ranks(engine: Engine) -> None:
    """Raise `MissingHead` unless the model is a cross-encoder."""
    if len(engine.info.labels) != 1:
        raise MissingHead("The model is not a reranking model", "Use a cross-encoder.")


def check_pair(texts: Sequence[str], field: str) -> None:
    """Raise `InvalidArgument` unless the input of a classifier has one or two texts."""
    if len(texts) not in (1, 2):
        raise WrongShape(
            "wrong number of texts", "Send one or two.", field=field, actual=len(texts), minimum=1, maximum=2
        )


def to_inputs(items: Sequence[Item], truncation: Truncation, engine: Engine, prompt: str = "") -> Sequence[Input]:
    """Return the engine's inputs, with `prompt` prepended to each text."""
    texts = [cut(_prepend(prompt, item), truncation, engine.info) for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        return TextInputs(texts)
    return tuple(
        Input(cut(_prepend(prompt, item), truncation, engine.info))
        if isinstance(item, str)
        else Input(token_ids=engine.content_ids(item))
        for item in items
    )


def prompt_text(info: ModelInfo, name: str | None, field: str) -> str:
    """Return the text of a named prompt, or of the default prompt; "" if there is none."""
    if name is None:
        return info.prompts[info.default_prompt_name] if info.default_prompt_name is not None else ""
    if name not in info.prompts:
        raise prompt_not_found(name, info.prompts, field)
    return info.prompts[name]


def describe_tokens(text: str, tokens: Sequence[Token], *, special: bool) -> list[dict[str, Any]]:
    """Describe tokens in TEI's format, with UTF-8 byte offsets. `special`: whether to include special tokens."""
    described = []
    characters = position = 0  # the same position in characters and in bytes
    for token in tokens:
        if token.special:
            if special:
                described.append(_token(token, None, None))
            continue
        if token.start < characters:  # tokens may overlap, so the position may move backward
            characters = position = 0
        position += len(text[characters : token.start].encode())
        characters = token.start
        described.append(_token(token, position, position + len(text[token.start : token.end].encode())))
    return described


def _token(token: Token, start: int | None, stop: int | None) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "special": token.special, "start": start, "stop": stop}


def _prepend(prompt: str, text: str) -> str:
    """Prepend the prompt to a text. A blank text is unchanged, so that the engine rejects it."""
    return text if not text or text.isspace() else prompt + text


@dataclass(frozen=True, slots=True)
class ComputeMetadata:
    """Size and duration of a request, with the names and units of `tei.v1.Metadata`."""

    compute_chars: int
    compute_tokens: int
    total_time_ns: int
    tokenization_time_ns: int
    queue_time_ns: int
    inference_time_ns: int

    @classmethod
    def measure(cls, tokens: int, call: Call, characters: int, total_s: float) -> Self:
        """Return the metadata of a call for `characters` and `tokens`, `total_s` seconds after the request."""
        timing = call.timing
        seconds = (total_s, timing.tokenize, timing.queue, timing.run - timing.queue)
        return cls(characters, tokens, *(int(duration * NANOSECONDS) for duration in seconds))

    def headers(self, info: ModelInfo) -> dict[str, str]:
        """Return TEI's headers, with times in whole milliseconds."""
        total = _milliseconds(self.total_time_ns)
        return {
            "x-compute-type": "gpu" if info.provider == "cuda" else "cpu",
            "x-compute-time": total,
            "x-compute-characters": str(self.compute_chars),
            "x-compute-tokens": str(self.compute_tokens),
            "x-total-time": total,
            "x-tokenization-time": _milliseconds(self.tokenization_time_ns),
            "x-queue-time": _milliseconds(self.queue_time_ns),
            "x-inference-time": _milliseconds(self.inference_time_ns),
        }


def _milliseconds(nanoseconds: int) -> str:
    return str(nanoseconds // NANOSECONDS_PER_MS)


def describe_model(engine: Engine) -> dict[str, Any]:
    """Return the response of /info."""
    info = engine.info
    return {
        "model_id": info.source,
        "model_sha": info.revision,
        "model_dtype": info.precision,
        "served_model_name": info.name,
        "model_type": _describe_type(engine),
        "max_concurrent_requests": info.limits.max_connections,
        "max_input_length": info.max_input_tokens,
        "max_batch_tokens": engine.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": info.limits.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": PREPARATION_THREADS,
        "version": info.version,
        "sha": None,
        "docker_label": None,
    }


def model_type(engine: Engine) -> Literal["embedding", "reranker", "classifier"]:
    """Return the kind of the model, which determines what POST / does."""
    labels = len(engine.info.labels)
    return "embedding" if labels == 0 else "reranker" if labels == 1 else "classifier"


def _describe_type(engine: Engine) -> dict[str, Any]:
    """Return TEI's description of a cross-encoder, of a classifier, or of an embedding model."""
    info, sparse = engine.info, engine.manifest.sparse
    if not info.labels:
        is_splade = sparse is not None and sparse.decoder is not None
        poolings = ["last_token" if pooling == "last" else pooling for pooling in info.poolings]
        return {"embedding": {"pooling": "splade" if is_splade else COMBINED.join(poolings)}}
    numbers = {label: number for number, label in enumerate(info.labels)}
    described = {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}
    return {model_type(engine): described}
