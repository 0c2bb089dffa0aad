"""The operations by name, with their request and response types and functions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from attendant_client import types

from service.engine.engine import Engine
from service.operations.attend import attend
from service.operations.chunks import encode_any
from service.operations.classify import classify
from service.operations.compare import compare
from service.operations.fill_mask import fill_mask
from service.operations.inputs import Call
from service.operations.rerank import rerank
from service.operations.similarity import similarity
from service.operations.token_classify import token_classify
from service.operations.tokenize import tokenize


@dataclass(frozen=True)
class OperationEntry:
    """One operation.

    `run` returns the response, or raises a `ServiceError`; its docstring describes the operation in OpenAPI.
    `fast_lane`: whether the operation uses only the fast lane.
    """

    request: Any
    response: Any
    run: Callable[[Engine, Any, Call], Awaitable[Any]]
    fast_lane: Literal["always", "without layers", "never"] = "never"


OPERATIONS: dict[types.Operation, OperationEntry] = {
    "encode": OperationEntry(types.EncodeRequest, types.EncodeResponse, encode_any, "without layers"),
    "attend": OperationEntry(types.AttendRequest, types.AttendResponse, attend),
    "compare": OperationEntry(types.CompareRequest, types.CompareResponse, compare),
    "similarity": OperationEntry(types.SimilarityRequest, types.SimilarityResponse, similarity, "always"),
    "rerank": OperationEntry(types.RerankRequest, types.RerankResponse, rerank, "always"),
    "classify": OperationEntry(types.ClassifyRequest, types.ClassifyResponse, classify, "always"),
    "token_classify": OperationEntry(types.TokenClassifyRequest, types.TokenClassifyResponse, token_classify, "always"),
    "fill_mask": OperationEntry(types.FillMaskRequest, types.FillMaskResponse, fill_mask, "without layers"),
    "tokenize": OperationEntry(types.TokenizeRequest, types.TokenizeResponse, tokenize),
}
