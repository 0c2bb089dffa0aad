"""The messages of tei.v1 as operations, and their results as messages."""

import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from service.engine.engine import Engine
from service.engine.schema.encode import EncodeResponse, EncodeResult, Truncation
from service.errors import Empty, ServiceError
from service.limits import item_limits
from service.pb import tei_pb2 as pb
from service.rpc.codec import check_count, enum_value
from service.rpc.messages import Rejected, reject_malformed
from service.spelling import Remedy
from service.steps import Steps
from service.tei import inference
from service.tei.description import ComputeMetadata, Measured
from service.tei.inference import Options
from service.tei.spelling import TeiSpelling

MODEL_TYPES = {
    "embedding": pb.MODEL_TYPE_EMBEDDING,
    "classifier": pb.MODEL_TYPE_CLASSIFIER,
    "reranker": pb.MODEL_TYPE_RERANKER,
}
TRUNCATIONS = ("right", "left")
"""The truncation of each `TruncationDirection`."""


class TeiRpcSpelling(TeiSpelling):
    """The fields of messages, which have one input."""

    def path(self, path: str) -> str:
        path = path.replace("token_ids", "ids", 1) if path.startswith("token_ids") else path
        return re.sub(r"^(inputs|ids)\[0\]", r"\1", path).replace("inputs.pair", "inputs[1]")


TEI_RPC = TeiRpcSpelling()


def info(described: Mapping[str, Any]) -> pb.InfoResponse:
    """Return the description of the model."""
    fields = {field.name: described[field.name] for field in pb.InfoResponse.DESCRIPTOR.fields}
    return pb.InfoResponse(**fields | {"model_type": MODEL_TYPES[next(iter(described["model_type"]))]})


async def embed(engine: Engine, request: pb.EmbedRequest, deadline: float | None) -> pb.EmbedResponse:
    """Return the embedding of a text."""
    started = time.perf_counter()
    response = await inference.embed(
        engine,
        [request.inputs],
        _options(request, deadline),
        normalize=request.normalize or not request.HasField("normalize"),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
    )
    pooled = _only(response).pooled
    assert pooled is not None
    return pb.EmbedResponse(embeddings=pooled.to_list(), metadata=_metadata(response, len(request.inputs), started))


async def embed_sparse(
    engine: Engine, request: pb.EmbedSparseRequest, deadline: float | None
) -> pb.EmbedSparseResponse:
    """Return the sparse vector of a text."""
    started = time.perf_counter()
    response = await inference.embed_sparse(engine, [request.inputs], _options(request, deadline))
    sparse = _only(response).sparse
    assert sparse is not None
    entries = zip(sparse.token_ids, sparse.weights.to_list(), strict=True)
    return pb.EmbedSparseResponse(
        sparse_embeddings=[pb.SparseValue(index=number, value=weight) for number, weight in entries],
        metadata=_metadata(response, len(request.inputs), started),
    )


async def embed_all(engine: Engine, request: pb.EmbedAllRequest, deadline: float | None) -> pb.EmbedAllResponse:
    """Return the vector of each token of a text."""
    started = time.perf_counter()
    response = await inference.embed_all(engine, [request.inputs], _options(request, deadline))
    vectors = _only(response).token_vectors
    assert vectors is not None
    message = pb.EmbedAllResponse(metadata=_metadata(response, len(request.inputs), started))
    async for vector in Steps().each(vectors.values):
        message.token_embeddings.add().embeddings.extend(vector.tolist())
    return message


async def predict(engine: Engine, request: pb.PredictRequest, deadline: float | None) -> pb.PredictResponse:
    """Return the labels of a text."""
    return await _predict(engine, [request.inputs], request, deadline)


async def predict_pair(engine: Engine, request: pb.PredictPairRequest, deadline: float | None) -> pb.PredictResponse:
    """Return the labels of a text or a pair."""
    texts = list(request.inputs)
    inference.check_pair(texts, "inputs")
    return await _predict(engine, texts, request, deadline)


async def _predict(
    engine: Engine, texts: list[str], request: pb.PredictRequest | pb.PredictPairRequest, deadline: float | None
) -> pb.PredictResponse:
    started = time.perf_counter()
    options = _options(request, deadline)
    response = await inference.predict(engine, [texts], options, raw_scores=request.raw_scores)
    return pb.PredictResponse(
        predictions=[pb.Prediction(score=label.score, label=label.label) for label in response.results[0].labels],
        metadata=_metadata(response, sum(map(len, texts)), started),
    )


async def rerank(engine: Engine, request: pb.RerankRequest, deadline: float | None) -> pb.RerankResponse:
    """Return the texts by their score."""
    started = time.perf_counter()
    inference.check_not_empty(request.texts, "texts")
    check_count("documents", len(request.texts), item_limits([engine.info]), "texts")
    texts, options = list(request.texts), _options(request, deadline)
    response = await inference.rerank(engine, request.query, texts, options, raw_scores=request.raw_scores)
    ranks = [
        pb.Rank(index=result.index, text=texts[result.index] if request.return_text else None, score=result.score)
        for result in response.results
    ]
    characters = sum(map(len, (request.query, *texts)))
    return pb.RerankResponse(ranks=ranks, metadata=_metadata(response, characters, started))


class StreamRanking:
    """The ranking of the pairs in a stream; the first message selects the options of the response."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: pb.RerankStreamRequest | None = None
        self._ranks: list[pb.Rank] = []
        self._metadata: list[pb.Metadata] = []

    async def receive(
        self, engine: Engine, requests: AsyncIterator[pb.RerankStreamRequest | Rejected]
    ) -> AsyncIterator[tuple[int, pb.RerankStreamRequest]]:
        """Yield the index of each message and the message. Raises a `ServiceError` over the limits."""
        inference.check_ranks(engine)
        limits, index, size = item_limits([engine.info]), 0, 0
        async for request in requests:
            reject_malformed(request)
            assert not isinstance(request, Rejected)
            check_count("documents", index + 1, limits, "text")
            self._first = self._first or request
            if self._first.return_text:
                size += len(request.text)
                engine.check_response_size(size, index + 1, lambda: Remedy("Leave return_text out"))
            yield index, request
            index += 1

    async def score(self, engine: Engine, numbered: tuple[int, pb.RerankStreamRequest], deadline: float | None) -> None:
        """Add the score of a message."""
        index, request = numbered
        assert self._first is not None
        started = time.perf_counter()
        options = _options(request, deadline)
        try:
            response = await inference.rerank(
                engine, request.query, [request.text], options, raw_scores=self._first.raw_scores
            )
        except ServiceError as error:
            error.field = "text" if error.field == "texts[0]" else error.field
            raise
        text = request.text if self._first.return_text else None
        self._ranks.append(pb.Rank(index=index, text=text, score=response.results[0].score))
        self._metadata.append(_metadata(response, len(request.query) + len(request.text), started))

    def response(self) -> pb.RerankResponse:
        """Return the ranking. Raises `Empty` without a message."""
        if not self._ranks:
            raise Empty("Stream without a message", "Send at least one.")
        count = len(self._metadata)
        metadata = pb.Metadata(
            compute_chars=sum(item.compute_chars for item in self._metadata),
            compute_tokens=sum(item.compute_tokens for item in self._metadata),
            total_time_ns=int((time.perf_counter() - self._started) * 1e9),
            tokenization_time_ns=sum(item.tokenization_time_ns for item in self._metadata) // count,
            queue_time_ns=sum(item.queue_time_ns for item in self._metadata) // count,
            inference_time_ns=sum(item.inference_time_ns for item in self._metadata) // count,
        )
        ranks = sorted(self._ranks, key=lambda rank: (-rank.score, rank.index))
        return pb.RerankResponse(ranks=ranks, metadata=metadata)


async def tokenize(engine: Engine, request: pb.EncodeRequest, deadline: float | None) -> pb.EncodeResponse:
    """Return the tokens of a text."""
    options = Options(prompt_name=_prompt_name(request), wire="binary", deadline=deadline)
    ((text, result),) = await inference.tokenize(engine, [request.inputs], options)
    tokens = inference.describe_tokens(text, result.tokens, special=request.add_special_tokens)
    return pb.EncodeResponse(tokens=[pb.SimpleToken(**token) for token in tokens])


async def decode(engine: Engine, request: pb.DecodeRequest, deadline: float | None) -> pb.DecodeResponse:
    """Return the text of token ids."""
    check_count("token_ids", len(request.ids), item_limits([engine.info]), "ids")
    (text,) = await inference.decode(
        engine, [list(request.ids)], skip_special_tokens=request.skip_special_tokens, deadline=deadline
    )
    return pb.DecodeResponse(text=text)


def _options(request: Any, deadline: float | None) -> Options:
    """Return the options of a message that may truncate its input."""
    truncation: Truncation = "auto"
    if request.HasField("truncation_direction"):
        truncation = enum_value(TRUNCATIONS, request.truncation_direction, "truncation_direction")
    has_prompt = "prompt_name" in request.DESCRIPTOR.fields_by_name
    return Options(
        truncation if request.truncate else "error", _prompt_name(request) if has_prompt else None, "binary", deadline
    )


def _prompt_name(request: Any) -> str | None:
    return request.prompt_name if request.HasField("prompt_name") else None


def _only(response: EncodeResponse) -> EncodeResult:
    (result,) = response.results
    return result


def _metadata(response: Measured, characters: int, started: float) -> pb.Metadata:
    """Return size and duration of a request that `started` at a time.perf_counter() reading."""
    measured = ComputeMetadata.measure(response, characters, time.perf_counter() - started)
    return pb.Metadata(**asdict(measured))
