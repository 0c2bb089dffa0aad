"""REST responses and errors, decoded into the client's types."""

import base64
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from attendant_client import label_codec, model_codec, similarity_codec, word_codec
from attendant_client.errors import AttendantError
from attendant_client.types import (
    Array,
    AttendResponse,
    AttendResult,
    AttentionMap,
    CompareResponse,
    Contributor,
    EncodeResponse,
    EncodeResult,
    Floats,
    LayerSimilarity,
    OccurrenceResult,
    SparseMatrix,
    SparseVector,
    Token,
    TokenizeResponse,
    TokenizeResult,
    Unit,
    Word,
)

Json = Any
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1", "sqrt_uint8": "u1"}
PATHS = {
    "encode": "/v1/encode",
    "attend": "/v1/attend",
    "compare": "/v1/compare",
    "similarity": "/v1/similarity",
    "rerank": "/v1/rerank",
    "classify": "/v1/classify",
    "token_classify": "/v1/token-classify",
    "fill_mask": "/v1/fill-mask",
    "tokenize": "/v1/tokenize",
    "model": "/v1/model",
}
MODELS_PATH = "/v1/models"
ARRAYS = ("encode", "attend")
"""Operations that return base64 arrays."""
CODES = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


def to_array(data: bytes, dtype: str, shape: list[int]) -> Array:
    """Decode an array; sqrt_uint8 becomes float32, `(value / 255) ** 2`."""
    array: Array = np.frombuffer(data, DTYPES[dtype]).reshape(shape)
    if dtype == "sqrt_uint8":
        roots = array.astype(np.float32) / 255
        return roots * roots
    return array


def decode(operation: str, document: Json) -> Any:
    """Decode an operation's response."""
    return DECODERS[operation](document)


def to_error(status: int, document: Json, retry_after: str | None) -> AttendantError:
    """Return the error for a response; `document` is None if the body is not the server's JSON."""
    error = document.get("error") if isinstance(document, dict) else None
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    if not isinstance(error, dict) or not {"reason", "param"} & error.keys():
        code = CODES.get(status, "UNKNOWN")
        reason = "UNAVAILABLE" if status in (502, 503, 504) else code  # from a proxy, which gives no reason
        return AttendantError(code, reason, f"HTTP status {status}.", retry_after_s=retry_after_s)
    if "reason" not in error:  # /v1/models has OpenAI's errors
        return AttendantError(
            CODES.get(status, "UNKNOWN"), error["code"].upper(), error["message"], field=error["param"],
            retry_after_s=retry_after_s,
        )  # fmt: skip
    details = {name: error.get(name) for name in ("field", "minimum", "maximum", "actual", "request_id")}
    return AttendantError(error["code"], error["reason"], error["message"], retry_after_s=retry_after_s, **details)


def _tensor(value: Json) -> Array:
    return to_array(base64.b64decode(value["data"]), value["dtype"], value["shape"])


def _optional(value: Json) -> Array | None:
    return None if value is None else _tensor(value)


def _floats(values: Json) -> Floats | None:
    return None if values is None else np.asarray(values, dtype=np.float32)


def _tokens(items: Json) -> list[Token]:
    return [Token(**item) for item in items]


def _words(items: Json) -> list[Word]:
    return [Word(**item) for item in items]


def _encode(document: Json) -> EncodeResponse:
    results = [
        EncodeResult(
            token_count=result["token_count"],
            truncated=result["truncated"],
            tokens=None if result.get("tokens") is None else _tokens(result["tokens"]),
            words=None if result.get("words") is None else _words(result["words"]),
            pooled=_optional(result.get("pooled")),
            token_vectors=_optional(result.get("token_vectors")),
            word_vectors=_optional(result.get("word_vectors")),
            span_vectors=_optional(result.get("span_vectors")),
            static_vectors=_optional(result.get("static_vectors")),
            sparse=_sparse_vector(result.get("sparse")),
            multi_vector=_optional(result.get("multi_vector")),
            multi_vector_tokens=None if "multi_vector" not in result else _tokens(result["multi_vector_tokens"]),
        )
        for result in document["results"]
    ]
    usage = document["usage"]
    return EncodeResponse(
        document["model"],
        document["precision"],
        results,
        usage["tokens"],
        usage["truncated_inputs"],
        document["prompt_name"],
        document["prompt"],
    )


def _sparse_vector(value: Json) -> SparseVector | None:
    if value is None:
        return None
    return SparseVector(np.asarray(value["token_ids"], dtype=np.int32), value["tokens"], _tensor(value["weights"]))


def _tokenize(document: Json) -> TokenizeResponse:
    results = [
        TokenizeResult(result["token_count"], _tokens(result["tokens"]), _words(result["words"]))
        for result in document["results"]
    ]
    return TokenizeResponse(document["model"], results, document["usage"]["tokens"])


def _attend(document: Json) -> AttendResponse:
    results = [
        AttendResult(
            truncated=result["truncated"],
            units=[Unit(**unit) for unit in result["units"]],
            rows=result["rows"],
            columns=result["columns"],
            maps=[_map(item) for item in result["maps"]],
        )
        for result in document["results"]
    ]
    usage = document["usage"]
    return AttendResponse(document["model"], document["precision"], results, usage["tokens"], usage["truncated_inputs"])


def _map(item: Json) -> AttentionMap:
    matrix = item["matrix"]
    is_sparse = "indices" in matrix
    return AttentionMap(
        layer=item["layer"],
        head=item["head"],
        matrix=None if is_sparse else _tensor(matrix),
        sparse=_sparse(matrix) if is_sparse else None,
        excluded_mass=_floats(item["excluded_mass"]),
        bias_share=_floats(item["bias_share"]),
        empty_rows=item["empty_rows"],
    )


def _sparse(matrix: Json) -> SparseMatrix:
    rows = matrix["indices"]
    return SparseMatrix(
        indptr=np.fromiter(accumulate(map(len, rows), initial=0), np.int32, len(rows) + 1),
        indices=np.asarray([index for row in rows for index in row], dtype=np.int32),
        values=_tensor(matrix["values"]),
        dropped_mass=np.asarray(matrix["dropped_mass"], dtype=np.float32),
    )


def _compare(document: Json) -> CompareResponse:
    occurrences = [
        OccurrenceResult(
            item["text"],
            item["start"],
            item["end"],
            [Contributor(**contributor) for contributor in item["contributors"]],
        )
        for item in document["occurrences"]
    ]
    layers = [
        LayerSimilarity(
            layer["layer"], np.asarray(layer["cosine"], np.float32), np.asarray(layer["centered"], np.float32)
        )
        for layer in document["layers"]
    ]
    static = np.asarray(document["static"], dtype=np.float32)
    return CompareResponse(
        document["model"], document["precision"], occurrences, static, layers, document["usage"]["tokens"]
    )


DECODERS: dict[str, Callable[[Json], Any]] = {
    "encode": _encode,
    "attend": _attend,
    "compare": _compare,
    "similarity": similarity_codec.from_json,
    "rerank": label_codec.rerank_from_json,
    "classify": label_codec.classify_from_json,
    "token_classify": label_codec.token_classify_from_json,
    "fill_mask": word_codec.from_json,
    "tokenize": _tokenize,
    "model": model_codec.from_json,
}
