"""Schemas of responses for the OpenAPI document. Routes render responses themselves, because that is faster."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.engine.schema.encode import Token, Word
from service.engine.schema.explain import OccurrenceResult, Unit
from service.error_reasons import Reason


class TensorBody(BaseModel):
    """A dense array in row-major order, with `encoding_format: "base64"`."""

    shape: list[int] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "float16", "int8", "ubinary", "sqrt_uint8"] = Field(description="Element type.")
    data: str = Field(description="Elements, little-endian, in base64.")


Vector = list[float] | list[list[float]] | TensorBody
"""(D), or (N, D) for N stacked layers."""
Matrix = list[list[float]] | list[list[list[float]]] | TensorBody
"""(T, D), or (N, T, D) for N stacked layers."""


class UsageBody(BaseModel):
    """Token counts of a request."""

    tokens: int = Field(description="Tokens that the model read, special tokens and prompt included.")
    truncated_inputs: int = Field(description="Number of truncated inputs.")


class SparseVectorBody(BaseModel):
    """The N vocabulary entries with a positive weight."""

    token_ids: list[int] = Field(description="Ids of the entries, ascending, (N).")
    tokens: list[str] = Field(description="Texts of the entries in the vocabulary, (N).")
    weights: list[float] | TensorBody = Field(description="Weights, (N).")


class EncodeResultBody(BaseModel):
    """The result of one input; only requested outputs are present."""

    token_count: int = Field(description="Tokens that the model read, special tokens and prompt included.")
    truncated: bool = Field(description="Whether the input was truncated.")
    tokens: list[Token] | None = Field(None, description="Tokens, with the outputs `tokens` or `static`.")
    words: list[Word] | None = Field(None, description="Words, with the output `words`.")
    pooled: Vector | None = Field(None, description="Pooled vector, (D) or (N, D) for N stacked layers.")
    token_vectors: Matrix | None = Field(None, description="One vector per token, (T, D).")
    word_vectors: Matrix | None = Field(None, description="One vector per word, (W, D): the mean of its tokens.")
    span_vectors: Matrix | None = Field(None, description="One vector per span, (S, D): the mean of its tokens.")
    static_vectors: Matrix | None = Field(None, description="One row of the embedding table per token, (T, E).")
    sparse: SparseVectorBody | None = Field(None, description="Sparse vector over the vocabulary.")
    multi_vector: list[list[float]] | TensorBody | None = Field(
        None, description="Vectors of length 1 for late interaction, (K, D)."
    )
    multi_vector_tokens: list[Token] | None = Field(None, description="The K tokens of `multi_vector`.")


class EncodeResponseBody(BaseModel):
    """The response of /v1/encode."""

    model: str = Field(description="Name of the served model.")
    precision: Literal["float32", "bfloat16", "float16", "int8"] = Field(description="Precision of inference.")
    results: list[EncodeResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody
    prompt_name: str | None = Field(description="Name of the applied prompt.")
    prompt: str | None = Field(description="Applied prompt; null if none was applied.")


class TokenizeResultBody(BaseModel):
    """The tokens and words of one input, untruncated."""

    token_count: int = Field(description="Number of tokens, special tokens included.")
    tokens: list[Token]
    words: list[Word]


class TokenizeResponseBody(BaseModel):
    """The response of /v1/tokenize."""

    model: str = Field(description="Name of the served model.")
    results: list[TokenizeResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody


class SparseBody(BaseModel):
    """The largest values of each row in descending order, with `top_p` or `top_k`."""

    indices: list[list[int]] = Field(description="Columns of the entries of each row, as indices of `units`.")
    values: list[list[float]] | TensorBody = Field(
        description="Values of the entries of each row; in base64 one array over all rows."
    )
    dropped_mass: list[float] = Field(description="Sum of the dropped values of each row, (R).")


class AttentionMapBody(BaseModel):
    """One attention map with R rows (queries) and C columns (keys)."""

    layer: int | None = Field(description="Layer, 1 to L; null if layers were combined.")
    head: int | None = Field(description="Head, 0 to H-1; null if heads were combined.")
    matrix: list[list[float]] | TensorBody | SparseBody = Field(description="Values, (R, C).")
    excluded_mass: list[float] | None = Field(
        description="Sum of each row over units that are not columns, (R); null for scores."
    )
    bias_share: list[float] | None = Field(
        description="Contribution of the biases to each row, (R); for the kind projection without rollout."
    )
    empty_rows: list[int] = Field(description="Rows of zeros: all their mass was on units that are not columns.")


class AttendResultBody(BaseModel):
    """The maps of one input."""

    truncated: bool = Field(description="Whether the input was truncated.")
    units: list[Unit] = Field(description="Tokens, words or spans.")
    rows: list[int] = Field(description="Index in `units` of each row.")
    columns: list[int] = Field(description="Index in `units` of each column.")
    maps: list[AttentionMapBody]


class AttendResponseBody(BaseModel):
    """The response of /v1/attend."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    results: list[AttendResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody


class LayerSimilarityBody(BaseModel):
    """Similarity of the N occurrences in one layer."""

    layer: int = Field(description="Layer, 0 to L.")
    cosine: list[list[float]] = Field(description="Cosines, (N, N).")
    centered: list[list[float]] = Field(description="Cosines after subtracting the mean of all tokens, (N, N).")


class CompareResponseBody(BaseModel):
    """The response of /v1/compare."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    occurrences: list[OccurrenceResult] = Field(description="One result per occurrence, in the order of the request.")
    static: list[list[float]] = Field(description="Cosines of the static embeddings, (N, N).")
    layers: list[LayerSimilarityBody] = Field(description="One element per requested layer.")
    usage: UsageBody


class EmbeddingBody(BaseModel):
    """One embedding in the format of OpenAI."""

    object: Literal["embedding"]
    index: int = Field(description="Index of the input.")
    embedding: list[float] | str = Field(description="Embedding; float32, little-endian, in base64 if requested.")


class EmbeddingsUsageBody(BaseModel):
    """Token counts in the format of OpenAI."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponseBody(BaseModel):
    """The response of /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingBody] = Field(description="One embedding per input, in the order of the inputs.")
    model: str
    usage: EmbeddingsUsageBody


class StatusBody(BaseModel):
    """The state of the server."""

    status: Literal["starting", "ok", "draining", "failed"]


class ErrorDetailBody(BaseModel):
    """One error."""

    code: str = Field(description="Canonical gRPC code, such as INVALID_ARGUMENT.")
    reason: Reason = Field(description="Stable name of the error for programs.")
    message: str = Field(description="Message for people: field, problem, actual value, limit and remedy.")
    field: str | None = Field(description="Path of the field, such as `inputs[3]`.")
    minimum: int | float | None = Field(description="The least value allowed, if a range applies.")
    maximum: int | float | None = Field(description="The greatest value allowed, if a range applies.")
    actual: int | float | str | None = Field(
        description="The rejected number or size, the type if it is wrong, or the rejected name or enum value."
    )
    request_id: str = Field(description="Request ID, as in the server log.")


class ErrorBody(BaseModel):
    """The body of every error of the native API."""

    error: ErrorDetailBody


class OpenAIErrorDetailBody(BaseModel):
    """One error in the format of OpenAI."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    """The body of every error of the OpenAI API."""

    error: OpenAIErrorDetailBody


ERRORS = {
    400: "Malformed request.",
    401: "Missing or invalid API key.",
    403: "Host not allowed.",
    404: "Unknown model or prompt.",
    408: "Request body not received in time.",
    413: "Request or input too large.",
    415: "Unsupported media type.",
    422: "Invalid argument.",
    429: "Queue full.",
    500: "Internal error.",
    501: "Not supported by this server.",
    503: "Server is starting, draining or overloaded.",
    504: "Deadline exceeded.",
}
TEI_ERRORS = ERRORS | {
    400: "Malformed request, or an empty list.",
    422: "Invalid argument, or unknown prompt.",
    424: "The model has no head for this route.",
    429: "Queue full, or too much memory in use for request bodies.",
}
OIP_ERRORS = ERRORS | {
    400: "Malformed request, or invalid argument.",
    404: "Unknown model or version.",
    409: "The model cannot be loaded, or is the default model.",
}
RETRIED = (429, 503)
GET_ERRORS = (401, 403, 404, 500, 503)


def responses(
    model: Any,
    error: type[BaseModel] | tuple[type[BaseModel], ...] = ErrorBody,
    statuses: tuple[int, ...] = tuple(ERRORS),
    descriptions: dict[int, str] = ERRORS,
) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route: `model` for 200, and the errors that it can return.

    `error` is the body of the errors, or the bodies of several APIs. Errors refer to the schema of their body: FastAPI
    builds a serializer for each "model" of each route, 600 in all.
    """
    described: dict[int | str, dict[str, Any]] = {200: {"model": model, "description": "Success."}}
    for status in statuses:
        described[status] = {"description": descriptions[status], "content": _json_content(error)}
        if status in RETRIED:
            described[status]["headers"] = {
                "Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}
            }
    return described


def _json_content(body: type[BaseModel] | tuple[type[BaseModel], ...]) -> dict[str, Any]:
    bodies = body if isinstance(body, tuple) else (body,)
    schemas: list[dict[str, Any]] = [{"$ref": f"#/components/schemas/{body.__name__}"} for body in bodies]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
