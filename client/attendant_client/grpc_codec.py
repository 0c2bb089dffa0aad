"""gRPC responses and errors, decoded into the client's types."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from attendant_client import label_codec, model_codec, similarity_codec, word_codec
from attendant_client.errors import AttendantError
from attendant_client.http_codec import to_array
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.similarity_codec import enum_name, optional_field
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
    Word,
)

METHODS = {
    "encode": "Encode",
    "attend": "Attend",
    "compare": "Compare",
    "similarity": "Similarity",
    "rerank": "Rerank",
    "classify": "Classify",
    "token_classify": "TokenClassify",
    "fill_mask": "FillMask",
    "tokenize": "Tokenize",
    "model": "GetModel",
}
LABELS = {
    value.name: f'"{value.name.removeprefix(enum.values[0].name.removesuffix("UNSPECIFIED")).lower()}"'
    for enum in pb.DESCRIPTOR.enum_types_by_name.values()
    for value in enum.values
}
"""Maps proto enum labels to REST values, such as TRUNCATION_RIGHT to `"right"`."""


def decode(operation: str, messages: Sequence[Any]) -> Any:
    """Decode an operation's response; `messages` has one element unless the operation streams."""
    return DECODERS[operation](messages)


def to_error(error: grpc.RpcError) -> AttendantError:
    code = error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return status_error(Status.FromString(value))
    # gRPC cancels calls that arrive while the server stops. Calls that the client itself cancels do not raise an
    # RpcError.
    reason = "UNAVAILABLE" if code in ("UNAVAILABLE", "CANCELLED") else code
    return AttendantError(code, reason, error.details() or code)


def status_error(status: Status) -> AttendantError:
    """Return the error for a status with details."""
    info, retry, retry_after_s = ErrorInfo(), RetryInfo(), None
    for detail in status.details:
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(RetryInfo.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    metadata = info.metadata
    code = next(code.name for code in grpc.StatusCode if code.value[0] == status.code)
    return AttendantError(
        code,
        info.reason,
        re.sub(r"\b[A-Z][A-Z0-9_]+\b", lambda match: LABELS.get(match[0], match[0]), status.message),
        field=metadata.get("field"),
        minimum=_number(metadata.get("minimum")),
        maximum=_number(metadata.get("maximum")),
        actual=_number(metadata.get("actual")),
        request_id=metadata.get("request_id"),
        retry_after_s=retry_after_s,
    )


def _number(value: str | None) -> Any:
    """Return an error detail, converted to a number if possible."""
    for kind in (int, float):
        try:
            return value if value is None else kind(value)
        except ValueError:
            continue
    return value


def _tensor(tensor: pb.Tensor) -> Array:
    dtype = pb.Dtype.Name(tensor.dtype).removeprefix("DTYPE_").lower()
    return to_array(tensor.data, dtype, list(tensor.shape))


def _optional(message: Any, name: str) -> Array | None:
    return _tensor(getattr(message, name)) if message.HasField(name) else None


def _floats(values: Any) -> Floats | None:
    return np.asarray(values, dtype=np.float32) if values else None


def _tokens(items: Any) -> list[Token]:
    return [
        Token(item.id, item.text, item.start, item.end, optional_field(item, "word_index"), item.segment, item.special)
        for item in items
    ]


def _words(items: Any) -> list[Word]:
    return [Word(item.text, item.start, item.end, item.segment) for item in items]


def _encode(messages: Sequence[pb.EncodeResponse]) -> EncodeResponse:
    (message,) = messages
    results = [
        EncodeResult(
            token_count=result.token_count,
            truncated=result.truncated,
            tokens=_tokens(result.tokens) if result.tokens else None,
            words=_words(result.words) if result.words or result.HasField("word_vectors") else None,
            pooled=_optional(result, "pooled"),
            token_vectors=_optional(result, "token_vectors"),
            word_vectors=_optional(result, "word_vectors"),
            span_vectors=_optional(result, "span_vectors"),
            static_vectors=_optional(result, "static_vectors"),
            sparse=_sparse_vector(result.sparse) if result.HasField("sparse") else None,
            multi_vector=_optional(result, "multi_vector"),
            multi_vector_tokens=_tokens(result.multi_vector_tokens) if result.HasField("multi_vector") else None,
        )
        for result in message.results
    ]
    usage = message.usage
    return EncodeResponse(
        message.model,
        enum_name(pb.Precision, message.precision),
        results,
        usage.tokens,
        usage.truncated_inputs,
        optional_field(message, "prompt_name"),
        optional_field(message, "prompt"),
    )


def _sparse_vector(message: pb.SparseVector) -> SparseVector:
    token_ids = np.asarray(message.token_ids, dtype=np.int32)
    return SparseVector(token_ids, list(message.tokens), _tensor(message.weights))


def _tokenize(messages: Sequence[pb.TokenizeResponse]) -> TokenizeResponse:
    (message,) = messages
    results = [
        TokenizeResult(result.token_count, _tokens(result.tokens), _words(result.words)) for result in message.results
    ]
    return TokenizeResponse(message.model, results, message.usage.tokens)


def _attend(messages: Sequence[pb.AttendResponse]) -> AttendResponse:
    header = messages[0].header
    maps: list[list[AttentionMap]] = [[] for _ in header.inputs]
    for message in messages[1:]:
        maps[message.map.input_index].append(_map(message.map))
    results = [
        AttendResult(
            truncated=item.truncated,
            units=[similarity_codec.to_unit(unit) for unit in item.units],
            rows=list(item.rows),
            columns=list(item.columns),
            maps=item_maps,
        )
        for item, item_maps in zip(header.inputs, maps, strict=True)
    ]
    usage = header.usage
    return AttendResponse(
        header.model, enum_name(pb.Precision, header.precision), results, usage.tokens, usage.truncated_inputs
    )


def _map(message: pb.AttentionMap) -> AttentionMap:
    sparse = None
    if message.HasField("sparse"):
        sparse = SparseMatrix(
            indptr=np.asarray(message.sparse.indptr, dtype=np.int32),
            indices=np.asarray(message.sparse.indices, dtype=np.int32),
            values=_tensor(message.sparse.values),
            dropped_mass=np.asarray(message.sparse.dropped_mass, dtype=np.float32),
        )
    return AttentionMap(
        layer=optional_field(message, "layer"),
        head=optional_field(message, "head"),
        matrix=_optional(message, "matrix"),
        sparse=sparse,
        excluded_mass=_floats(message.excluded_mass),
        bias_share=_floats(message.bias_share),
        empty_rows=list(message.empty_rows),
    )


def _compare(messages: Sequence[pb.CompareResponse]) -> CompareResponse:
    (message,) = messages
    occurrences = [
        OccurrenceResult(
            item.text,
            item.start,
            item.end,
            [Contributor(word.text, word.start, word.end, word.share) for word in item.contributors],
        )
        for item in message.occurrences
    ]
    layers = [LayerSimilarity(layer.layer, _tensor(layer.cosine), _tensor(layer.centered)) for layer in message.layers]
    static, tokens = _tensor(message.static), message.usage.tokens
    precision = enum_name(pb.Precision, message.precision)
    return CompareResponse(message.model, precision, occurrences, static, layers, tokens)


DECODERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "encode": _encode,
    "attend": _attend,
    "compare": _compare,
    "similarity": similarity_codec.from_messages,
    "rerank": label_codec.rerank_from_messages,
    "classify": label_codec.classify_from_messages,
    "token_classify": label_codec.token_classify_from_messages,
    "fill_mask": word_codec.from_messages,
    "tokenize": _tokenize,
    "model": model_codec.from_messages,
}
