"""Requests of TEI's REST API over its gRPC API: one message for a text, a stream for a list of texts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.pb import tei_pb2 as pb
from tests import stubs

CODES = {
    400: {"INVALID_ARGUMENT"},
    413: {"RESOURCE_EXHAUSTED"},
    422: {"INVALID_ARGUMENT", "NOT_FOUND"},
    424: {"FAILED_PRECONDITION"},
}
"""The gRPC codes of the errors that have an HTTP status."""
Body = dict[str, Any]


def compare_with_rest(
    channel: grpc.Channel, path: str, request: Body, response: httpx.Response, tolerance: float
) -> None:
    """Send a request over gRPC, if it has messages for it, and compare the response or the error with REST."""
    if path not in CONVERSIONS:
        return
    service, name, kind, messages = CONVERSIONS[path](request)
    if not messages:
        return
    stub = getattr(stubs, f"{service}Stub")(channel)
    unary, stream = getattr(stub, name), getattr(stub, f"{name}Stream")
    if response.status_code != 200:
        with pytest.raises(grpc.RpcError) as raised:
            _ = unary(messages[0]) if len(messages) == 1 else list(stream(iter(messages)))
        assert raised.value.code().name in CODES[response.status_code], response.text[:200]
        return
    results, rest = [unary(messages[0])] if len(messages) == 1 else list(stream(iter(messages))), response.json()
    if path == "/rerank":
        for result in (*results, stream(stream_messages(messages[0]))):
            compare_ranks(result, rest, request, tolerance)
        return
    is_batch = path != "/predict" or isinstance(rest[0], list)
    for result, expected in zip(results, rest if is_batch else [rest], strict=True):
        COMPARISONS[kind](getattr(result, kind), expected, tolerance)
        if service != "Tokenize":
            assert result.metadata.compute_tokens > 0
            assert result.metadata.total_time_ns >= result.metadata.inference_time_ns > 0


Conversion = tuple[str, str, str, list[Any]]
"""The service, the unary method, the field of its response, and the messages."""


def embed(request: Body) -> Conversion:
    options: Body = {name: request[name] for name in ("normalize", "dimensions") if name in request}
    return "Embed", "Embed", "embeddings", prompted(pb.EmbedRequest, request, **options)


def embed_all(request: Body) -> Conversion:
    return "Embed", "EmbedAll", "token_embeddings", prompted(pb.EmbedAllRequest, request)


def embed_sparse(request: Body) -> Conversion:
    return "Embed", "EmbedSparse", "sparse_embeddings", prompted(pb.EmbedSparseRequest, request)


def tokenize(request: Body) -> Conversion:
    options: Body = {
        "prompt_name": request.get("prompt_name"),
        "add_special_tokens": flag(request, "add_special_tokens"),
    }
    return "Tokenize", "Tokenize", "tokens", [pb.EncodeRequest(inputs=text, **options) for text in texts_of(request)]


def decode(request: Body) -> Conversion:
    ids = request["ids"] if not request["ids"] or isinstance(request["ids"][0], list) else [request["ids"]]
    skip = flag(request, "skip_special_tokens")
    return "Tokenize", "Decode", "text", [pb.DecodeRequest(ids=item, skip_special_tokens=skip) for item in ids]


def predict(request: Body) -> Conversion:
    sent, options = request["inputs"], {"raw_scores": request.get("raw_scores") is True, **truncation(request)}
    if isinstance(sent, str):
        return "Predict", "Predict", "predictions", [pb.PredictRequest(inputs=sent, **options)]
    pairs = sent if sent and isinstance(sent[0], list) else [sent]
    return "Predict", "PredictPair", "predictions", [pb.PredictPairRequest(inputs=pair, **options) for pair in pairs]


def rerank(request: Body) -> Conversion:
    flags: Body = {name: request.get(name) is True for name in ("raw_scores", "return_text")}
    flags |= truncation(request)
    message = pb.RerankRequest(query=request["query"], texts=request["texts"], **flags)
    return "Rerank", "Rerank", "ranks", [message]


CONVERSIONS: dict[str, Callable[[Body], Conversion]] = {
    "/": embed,
    "/embed": embed,
    "/embed_all": embed_all,
    "/embed_sparse": embed_sparse,
    "/tokenize": tokenize,
    "/decode": decode,
    "/predict": predict,
    "/rerank": rerank,
}


def texts_of(request: Body) -> list[str]:
    """Return the texts, or none if any input has token ids."""
    texts = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
    return texts if all(isinstance(text, str) for text in texts) else []


def flag(request: Body, name: str) -> bool:
    """Return an option that null and absence set in REST, but not in gRPC."""
    return request.get(name) is not False


def truncation(request: Body) -> Body:
    side = request.get("truncation_direction")
    direction = {} if side is None else {"truncation_direction": f"TRUNCATION_DIRECTION_{side.upper()}"}
    return {"truncate": flag(request, "truncate"), **direction}


def prompted(kind: Callable[..., Any], request: Body, **options: Any) -> list[Any]:
    options |= {"prompt_name": request.get("prompt_name"), **truncation(request)}
    return [kind(inputs=text, **options) for text in texts_of(request)]


def stream_messages(request: pb.RerankRequest) -> Iterator[pb.RerankStreamRequest]:
    """Yield one message per text; only the first one contains the options of the response."""
    for index, text in enumerate(request.texts):
        first = {"raw_scores": request.raw_scores, "return_text": request.return_text} if index == 0 else {}
        yield pb.RerankStreamRequest(
            query=request.query, text=text, truncate=request.truncate,
            truncation_direction=request.truncation_direction if request.HasField("truncation_direction") else None,
            **first,
        )  # fmt: skip


def compare_ranks(result: pb.RerankResponse, rest: Sequence[Body], request: Body, tolerance: float) -> None:
    """Scores may be so close that batches rank them differently, so compare them by index."""
    expected = {rank["index"]: rank["score"] for rank in rest}
    assert {rank.index: rank.score for rank in result.ranks} == pytest.approx(expected, abs=tolerance)
    scores = [rank.score for rank in result.ranks]
    assert scores == sorted(scores, reverse=True)
    for rank in result.ranks:
        assert rank.HasField("text") == bool(request.get("return_text"))
        assert rank.text in ("", request["texts"][rank.index])


def compare_sparse(values: Any, expected: Sequence[Body], tolerance: float) -> None:
    assert [value.index for value in values] == [entry["index"] for entry in expected]
    assert [value.value for value in values] == pytest.approx([entry["value"] for entry in expected], abs=tolerance)


def compare_predictions(predictions: Any, expected: Sequence[Body], tolerance: float) -> None:
    scores = {item["label"]: item["score"] for item in expected}
    assert {item.label: item.score for item in predictions} == pytest.approx(scores, abs=tolerance)


def compare_tokens(tokens: Any, expected: Sequence[Body], tolerance: float) -> None:
    del tolerance
    names = ("id", "text", "special", "start", "stop")
    absent = [{name: None for name in ("start", "stop") if not token.HasField(name)} for token in tokens]
    found = [{name: getattr(token, name) for name in names} for token in tokens]
    assert [token | missing for token, missing in zip(found, absent, strict=True)] == list(expected)


def compare_text(text: str, expected: str, tolerance: float) -> None:
    del tolerance
    assert text == expected


def compare_vector(vector: Any, expected: Sequence[float], tolerance: float) -> None:
    np.testing.assert_allclose(vector, expected, rtol=0, atol=tolerance)


def compare_vectors(vectors: Any, expected: Sequence[Sequence[float]], tolerance: float) -> None:
    """Vectors of tokens have no common length. In bfloat16, they differ by 1% between two shapes of the batch."""
    actual, wanted = np.array([vector.embeddings for vector in vectors]), np.array(expected)
    differences = np.linalg.norm(actual - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert differences.max() <= 30 * tolerance


COMPARISONS: dict[str, Callable[[Any, Any, float], None]] = {
    "embeddings": compare_vector,
    "token_embeddings": compare_vectors,
    "sparse_embeddings": compare_sparse,
    "predictions": compare_predictions,
    "tokens": compare_tokens,
    "text": compare_text,
}
