"""Conversion between the bodies of the TEI API and the types of the engine."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Request

from model.tokenizer import TokenizerInput
from service.engine.engine import PREPARATION_THREADS, Engine
from service.engine.operations.inputs import SHORTEN, SPLIT_NOT_TRUNCATED, prompt_not_found
from service.engine.schema.encode import Array, EncodeResponse, Input, ModelInfo, SparseResult, Token, Truncation
from service.engine.schema.labels import ClassifyResponse, RerankResponse
from service.engine.schema.similarity import SimilarityResponse
from service.errors import Empty, Overloaded, ServiceError, Unsupported, WrongShape
from service.rest.codec import cut
from service.rest.responses import metadata_headers
from service.spelling import Remedy, Spelling

IDS_SUFFIX = ".token_ids"
"""The end of paths to token ids, which are items of an array themselves in this API."""
LISTS = ("inputs", "inputs.sentences", "texts", "ids")
"""Fields with an error of their own if they are empty lists."""


class TeiSpelling(Spelling):
    """The names of the TEI API in error messages."""

    def path(self, path: str) -> str:
        if path.startswith("queries"):
            return "inputs.source_sentence"
        path = path.replace("documents", "inputs.sentences", 1) if path.startswith("documents") else path
        path = path.replace("token_ids", "ids", 1) if path.startswith("token_ids") else path
        return path.removesuffix(IDS_SUFFIX)

    def value(self, field: str, value: str) -> str:
        return "true" if field == "truncation" else super().value(field, value)

    def option(self, field: str) -> str | None:
        return "truncate" if field == "truncation" else None

    def remedy(self, remedy: Remedy) -> str:
        # `cut` applies truncation to the limit of characters too.
        return super().remedy(SHORTEN if remedy is SPLIT_NOT_TRUNCATED else remedy)


TEI = TeiSpelling()


def render_error(error: ServiceError) -> bytes:
    """Return TEI's error body."""
    return orjson.dumps({"error": error.message, "error_type": _error_type(error)})


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error, which is TEI's if TEI has this error."""
    if isinstance(error, Unsupported):
        return 424
    if isinstance(error, Overloaded):
        return 429
    if error.reason == "PROMPT_NOT_FOUND":
        return 422
    return 400 if _is_empty_list(error) else error.http_status


def _error_type(error: ServiceError) -> str:
    status = http_status(error)
    if status == 429:
        return "Overloaded"
    if status == 503:
        return "Unhealthy"
    if status in (424, 500, 504):
        return "Backend"
    return "Empty" if _is_empty_list(error) else "Validation"


def _is_empty_list(error: ServiceError) -> bool:
    return isinstance(error, Empty) and error.field in LISTS


def check_not_empty(items: Sequence[Any], field: str) -> None:
    """Raise `Empty` for an empty list. An empty text has an error of its own."""
    if not items and not isinstance(items, str):
        raise Empty("empty", "Send at least one item.", field=field)


def check_pairs(inputs: str | Sequence[str | list[str]]) -> None:
    """Raise `InvalidArgument` unless each input of a classifier is a text or a list of one or two texts."""
    if isinstance(inputs, str):
        return
    sizes = {f"inputs[{index}]": len(item) for index, item in enumerate(inputs) if not isinstance(item, str)}
    for field, size in (sizes or {"inputs": len(inputs)}).items():
        if size not in (1, 2):
            raise WrongShape(
                "wrong number of texts", "Send one or two.", field=field, actual=size, minimum=1, maximum=2
            )


def items_of(inputs: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """Return the inputs as a list; a list of numbers is one input."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [item for item in inputs if isinstance(item, int)]
    return [ids] if ids else [item for item in inputs if not isinstance(item, int)]


def to_inputs(
    items: Sequence[str | list[int]], truncation: Truncation, engine: Engine, prompt: str = ""
) -> tuple[Input, ...]:
    """Return the engine's inputs, with `prompt` as a part of each text."""
    limit = engine.info.limits.max_input_characters
    return tuple(
        Input(
            TokenizerInput(cut(_prepend(prompt, item), truncation, limit))
            if isinstance(item, str)
            else TokenizerInput(token_ids=engine.content_ids(item))
        )
        for item in items
    )


def _prepend(prompt: str, text: str) -> str:
    """Return the text after the prompt; a blank text alone, so that the engine rejects it."""
    return text if not text or text.isspace() else prompt + text


def prompt_text(info: ModelInfo, name: str | None, field: str) -> str:
    """Return the text of a prompt of the model, or of its default prompt; "" if there is none."""
    if name is None:
        return info.prompts[info.default_prompt_name] if info.default_prompt_name is not None else ""
    if name not in info.prompts:
        raise prompt_not_found(name, info.prompts, field)
    return info.prompts[name]


def values_of(array: Array | None) -> Any:
    """Return the values of an output that was requested."""
    assert array is not None
    return array.values


def describe_sparse(sparse: SparseResult | None) -> list[dict[str, Any]]:
    """Return a sparse embedding that was requested as TEI does: the vocabulary entries with a positive weight."""
    assert sparse is not None
    pairs = zip(sparse.token_ids, sparse.weights.to_list(), strict=True)
    return [{"index": number, "value": weight} for number, weight in pairs]


def describe_tokens(text: str, tokens: Sequence[Token], *, special: bool) -> list[dict[str, Any]]:
    """Return tokens as TEI does, with offsets in bytes of UTF-8; `special`: whether to return special tokens."""
    described = []
    characters = position = 0  # the same place of the text in characters and in bytes
    for token in tokens:
        if token.special:
            if special:
                described.append(_token(token, None, None))
            continue
        if token.start < characters:  # tokens may overlap
            characters = position = 0
        position += len(text[characters : token.start].encode())
        characters = token.start
        described.append(_token(token, position, position + len(text[token.start : token.end].encode())))
    return described


def _token(token: Token, start: int | None, stop: int | None) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "special": token.special, "start": start, "stop": stop}


def compute_headers(
    request: Request,
    info: ModelInfo,
    response: EncodeResponse | SimilarityResponse | ClassifyResponse | RerankResponse,
    characters: int,
) -> dict[str, str]:
    """Return TEI's headers (times in whole milliseconds) and the native API's."""
    timing = response.timing
    total = _milliseconds(time.perf_counter() - request.scope["record"].started)
    return {
        "x-compute-type": "gpu" if info.provider == "cuda" else "cpu",
        "x-compute-time": total,
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(response.token_count),
        "x-total-time": total,
        "x-tokenization-time": _milliseconds(timing.tokenize),
        "x-queue-time": _milliseconds(timing.queue),
        "x-inference-time": _milliseconds(timing.run - timing.queue),
        **metadata_headers(response, info.digest),
    }


def _model_type(engine: Engine) -> dict[str, Any]:
    """Return TEI's description of a cross-encoder, of a classifier, or of an embedding model."""
    info, sparse = engine.info, engine.manifest.sparse
    if not info.labels:
        is_splade = sparse is not None and sparse.decoder is not None
        pooling = "last_token" if info.pooling == "last" else info.pooling
        return {"embedding": {"pooling": "splade" if is_splade else pooling}}
    numbers = {label: number for number, label in enumerate(info.labels)}
    described = {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}
    return {"reranker" if len(info.labels) == 1 else "classifier": described}


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def describe_model(engine: Engine) -> dict[str, Any]:
    """Return the response of /info."""
    info = engine.info
    return {
        "model_id": info.source,
        "model_sha": info.revision,
        "model_dtype": info.precision,
        "served_model_name": info.name,
        "model_type": _model_type(engine),
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
