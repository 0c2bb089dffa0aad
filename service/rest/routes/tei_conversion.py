"""Values of the TEI API: names, errors and items of requests, and what responses contain."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Request

from service.engine.schema.encode import Array, EncodeResponse, SparseResult
from service.engine.schema.labels import ClassifyResponse, RerankResponse
from service.engine.schema.model import ModelInfo
from service.engine.schema.similarity import SimilarityResponse
from service.errors import Empty, Overloaded, ServiceError
from service.rest.responses import metadata_headers
from service.tei.description import ComputeMetadata
from service.tei.inference import Item, check_pair
from service.tei.spelling import TeiSpelling

IDS_SUFFIX = ".token_ids"
"""The end of paths to token ids, which are items of an array themselves in this API."""
LISTS = ("inputs", "inputs.sentences", "texts", "ids")
"""Fields with an error of their own if they are empty lists."""


class TeiRestSpelling(TeiSpelling):
    """The paths of fields in JSON."""

    def path(self, path: str) -> str:
        if path.startswith("queries"):
            return "inputs.source_sentence"
        path = path.replace("documents", "inputs.sentences", 1) if path.startswith("documents") else path
        path = path.replace("token_ids", "ids", 1) if path.startswith("token_ids") else path
        return path.removesuffix(IDS_SUFFIX)


TEI = TeiRestSpelling()


def render_error(error: ServiceError) -> bytes:
    """Return TEI's error body."""
    return orjson.dumps({"error": error.message, "error_type": _error_type(error)})


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error, which is TEI's if TEI has this error."""
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


def to_pairs(inputs: str | Sequence[str | list[str]]) -> tuple[list[list[str]], bool]:
    """Return the one or two texts of each input of a classifier, and whether the request has a list of inputs.

    Raises `InvalidArgument` for another number of texts.
    """
    if isinstance(inputs, str):
        return [[inputs]], False
    pairs = [item for item in inputs if not isinstance(item, str)]
    if not pairs:
        texts = [item for item in inputs if isinstance(item, str)]
        check_pair(texts, "inputs")
        return [texts], False
    for index, pair in enumerate(pairs):
        check_pair(pair, f"inputs[{index}]")
    return pairs, True


def items_of(inputs: str | Sequence[str | int | list[int]]) -> list[Item]:
    """Return the inputs as a list; a list of numbers is one input."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [item for item in inputs if isinstance(item, int)]
    return [ids] if ids else [item for item in inputs if not isinstance(item, int)]


def values_of(array: Array | None) -> Any:
    """Return the values of an output that was requested."""
    assert array is not None
    return array.values


def describe_sparse(sparse: SparseResult | None) -> list[dict[str, Any]]:
    """Return a sparse vector that was requested: the vocabulary entries with a positive weight."""
    assert sparse is not None
    pairs = zip(sparse.token_ids, sparse.weights.values, strict=True)  # float32 prints fewer digits
    return [{"index": number, "value": weight} for number, weight in pairs]


def compute_headers(
    request: Request,
    info: ModelInfo,
    response: EncodeResponse | SimilarityResponse | ClassifyResponse | RerankResponse,
    characters: int,
) -> dict[str, str]:
    """Return TEI's headers and the native API's."""
    total_s = time.perf_counter() - request.scope["record"].started
    metadata = ComputeMetadata.measure(response, characters, total_s)
    return {**metadata.headers(info), **metadata_headers(response, info.digest)}
