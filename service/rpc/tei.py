"""The services of tei.v1, proto/tei/v1/tei.proto: converts messages to operations, and results to messages."""

import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

from attendant_client.types import EncodeResponse, EncodeResult, ModelInfo, Truncation

from service import tei
from service.engine.engine import Engine
from service.errors import Empty, ServiceError, UnknownValue
from service.lifecycle import Lifecycle
from service.operations.inputs import Call, item_limits
from service.operations.tokenize import decode as decode_ids
from service.pb import tei_pb2 as pb
from service.request_log import current_record
from service.rpc.messages import (
    Context,
    Message,
    Rejected,
    add_models,
    check_count,
    deadline_of,
    identity_of,
    reject_malformed,
)
from service.rpc.stream import respond_in_order
from service.spelling import Remedy, Spelling
from service.steps import Steps

SERVICES = pb.DESCRIPTOR.services_by_name

Requests = AsyncIterator[Message | Rejected]
Work = Callable[[Engine, Message, Call], Awaitable[Message]]
"""Returns the response to a message."""
MODEL_TYPES = {
    "embedding": pb.MODEL_TYPE_EMBEDDING,
    "classifier": pb.MODEL_TYPE_CLASSIFIER,
    "reranker": pb.MODEL_TYPE_RERANKER,
}
TRUNCATIONS: tuple[Truncation, ...] = ("right", "left")
"""The truncation of each `TruncationDirection`."""


class TeiRpcSpelling(Spelling):
    """Spells fields of messages with a single input."""

    def path(self, path: str) -> str:
        path = path.replace("token_ids", "ids", 1) if path.startswith("token_ids") else path
        return re.sub(r"^(inputs|ids)\[0\]", r"\1", path).replace("inputs.pair", "inputs[1]")


TEI_RPC = TeiRpcSpelling(options=tei.OPTIONS, values=tei.VALUES, cuts_texts=True)


async def embed(engine: Engine, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
    """Return the embedding of a text."""
    started = time.perf_counter()
    response = await tei.embed(
        engine,
        [request.inputs],
        _options(request, call),
        normalize=request.normalize or not request.HasField("normalize"),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
    )
    pooled = _only(response).pooled
    assert pooled is not None
    return pb.EmbedResponse(
        embeddings=pooled.tolist(), metadata=_metadata(response, call, len(request.inputs), started)
    )


async def embed_sparse(engine: Engine, request: pb.EmbedSparseRequest, call: Call) -> pb.EmbedSparseResponse:
    """Return the sparse vector of a text."""
    started = time.perf_counter()
    response = await tei.embed_sparse(engine, [request.inputs], _options(request, call))
    sparse = _only(response).sparse
    assert sparse is not None
    entries = zip(sparse.token_ids.tolist(), sparse.weights.tolist(), strict=True)
    return pb.EmbedSparseResponse(
        sparse_embeddings=[pb.SparseValue(index=number, value=weight) for number, weight in entries],
        metadata=_metadata(response, call, len(request.inputs), started),
    )


async def embed_all(engine: Engine, request: pb.EmbedAllRequest, call: Call) -> pb.EmbedAllResponse:
    """Return the vector of each token of a text."""
    started = time.perf_counter()
    response = await tei.embed_all(engine, [request.inputs], _options(request, call))
    vectors = _only(response).token_vectors
    assert vectors is not None
    message = pb.EmbedAllResponse(metadata=_metadata(response, call, len(request.inputs), started))
    async for vector in Steps().each(vectors):
        message.token_embeddings.add().embeddings.extend(vector.tolist())
    return message


async def predict(engine: Engine, request: pb.PredictRequest, call: Call) -> pb.PredictResponse:
    """Return the labels of a text."""
    return await _predict(engine, [request.inputs], request, call)


async def predict_pair(engine: Engine, request: pb.PredictPairRequest, call: Call) -> pb.PredictResponse:
    """Return the labels of a text or a pair."""
    texts = list(request.inputs)
    tei.check_pair(texts, "inputs")
    return await _predict(engine, texts, request, call)


async def _predict(
    engine: Engine, texts: list[str], request: pb.PredictRequest | pb.PredictPairRequest, call: Call
) -> pb.PredictResponse:
    started = time.perf_counter()
    options = _options(request, call)
    response = await tei.predict(engine, [texts], options, raw_scores=request.raw_scores)
    return pb.PredictResponse(
        predictions=[pb.Prediction(score=label.score, label=label.label) for label in response.results[0].labels],
        metadata=_metadata(response, call, sum(map(len, texts)), started),
    )


async def rerank(engine: Engine, request: pb.RerankRequest, call: Call) -> pb.RerankResponse:
    """Return the texts, best first."""
    started = time.perf_counter()
    tei.check_not_empty(request.texts, "texts")
    check_count("documents", len(request.texts), item_limits([engine.info]), "texts")
    texts, options = list(request.texts), _options(request, call)
    response = await tei.rerank(engine, request.query, texts, options, raw_scores=request.raw_scores)
    ranks = [
        pb.Rank(
            index=result.index, text=texts[result.index] if request.return_text else None, score=result.relevance_score
        )
        for result in response.results
    ]
    characters = sum(map(len, (request.query, *texts)))
    return pb.RerankResponse(ranks=ranks, metadata=_metadata(response, call, characters, started))


class StreamRanking:
    """Ranks the pairs in a stream. The first message selects the options of the response."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: pb.RerankStreamRequest | None = None
        self._ranks: list[pb.Rank] = []
        self._metadata: list[pb.Metadata] = []

    async def receive(
        self, engine: Engine, requests: AsyncIterator[pb.RerankStreamRequest | Rejected]
    ) -> AsyncIterator[tuple[int, pb.RerankStreamRequest]]:
        """Yield the index of each message and the message. Raises a `ServiceError` over the limits."""
        tei.check_ranks(engine)
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

    async def score(self, engine: Engine, numbered: tuple[int, pb.RerankStreamRequest], call: Call) -> None:
        """Add the score of a message."""
        index, request = numbered
        assert self._first is not None
        started = time.perf_counter()
        options = _options(request, call)
        try:
            response = await tei.rerank(
                engine, request.query, [request.text], options, raw_scores=self._first.raw_scores
            )
        except ServiceError as error:
            error.field = "text" if error.field == "texts[0]" else error.field
            raise
        text = request.text if self._first.return_text else None
        self._ranks.append(pb.Rank(index=index, text=text, score=response.results[0].relevance_score))
        self._metadata.append(_metadata(response, call, len(request.query) + len(request.text), started))

    def response(self) -> pb.RerankResponse:
        """Return the ranking. Raises `Empty` if there were no messages."""
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


async def tokenize(engine: Engine, request: pb.EncodeRequest, call: Call) -> pb.EncodeResponse:
    """Return the tokens of a text."""
    options = tei.Options(prompt_name=_prompt_name(request), call=call)
    ((text, result),) = await tei.tokenize(engine, [request.inputs], options)
    tokens = tei.describe_tokens(text, result.tokens, special=request.add_special_tokens)
    return pb.EncodeResponse(tokens=[pb.SimpleToken(**token) for token in tokens])


async def decode(engine: Engine, request: pb.DecodeRequest, call: Call) -> pb.DecodeResponse:
    """Return the text of token ids."""
    check_count("token_ids", len(request.ids), item_limits([engine.info]), "ids")
    (text,) = await decode_ids(engine, [list(request.ids)], call, skip_special_tokens=request.skip_special_tokens)
    return pb.DecodeResponse(text=text)


def _options(request: Any, call: Call) -> tei.Options:
    """Return the options of a message whose input may be truncated."""
    truncation: Truncation = "auto"
    if request.HasField("truncation_direction"):
        number = request.truncation_direction
        if not 0 <= number < len(TRUNCATIONS):
            remedy = "Use a value of the enum."
            raise UnknownValue("unknown value", remedy, field="truncation_direction", actual=number)
        truncation = TRUNCATIONS[number]
    has_prompt = "prompt_name" in request.DESCRIPTOR.fields_by_name
    return tei.Options(truncation if request.truncate else "error", _prompt_name(request) if has_prompt else None, call)


def _prompt_name(request: Any) -> str | None:
    return request.prompt_name if request.HasField("prompt_name") else None


def _only(response: EncodeResponse) -> EncodeResult:
    (result,) = response.results
    return result


def _metadata(response: Any, call: Call, characters: int, started: float) -> pb.Metadata:
    """Return the size and duration of a request. `started` is a time.perf_counter() reading."""
    measured = tei.ComputeMetadata.measure(response.token_count, call, characters, time.perf_counter() - started)
    return pb.Metadata(**asdict(measured))


# Methods


class TeiServicer:
    """Runs the methods of all services with the default model."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by their names, which are unique in the package."""
        works: dict[str, Work] = {
            "Embed": embed, "EmbedSparse": embed_sparse, "EmbedAll": embed_all, "Predict": predict,
            "PredictPair": predict_pair, "Tokenize": tokenize, "Decode": decode,
        }  # fmt: skip
        streams = {f"{name}Stream": self._stream(work) for name, work in works.items()}
        ranking = {"Rerank": self._unary(rerank), "RerankStream": self.rerank_stream}
        return {name: self._unary(work) for name, work in works.items()} | streams | ranking | {"Info": self.info}

    async def info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        """Return the description of the model."""
        described = tei.describe_model(self._lifecycle.models.find())
        fields = {field.name: described[field.name] for field in pb.InfoResponse.DESCRIPTOR.fields}
        return pb.InfoResponse(**fields | {"model_type": MODEL_TYPES[next(iter(described["model_type"]))]})

    def _unary(self, work: Work) -> Callable[[Message, Context], Awaitable[Message]]:
        """Return the method that runs `work` and sends TEI's headers as initial metadata."""

        async def respond(request: Message, context: Context) -> Message:
            engine = self._lifecycle.models.find()
            response = await work(engine, request, Call(deadline_of(context), "binary"))
            await _send_metadata(context, response, engine.info)
            return response

        return respond

    def _stream(self, work: Work) -> Callable[[Requests, Context], AsyncGenerator[Message, None]]:
        """Return the method that yields the responses in the order of the requests, up to the first error."""

        async def respond_all(request_iterator: Requests, context: Context) -> AsyncGenerator[Message, None]:
            _ = self._lifecycle.models  # raises `Unavailable` before the first request
            record = current_record()
            assert record is not None
            used: dict[str, None] = {}  # in order of first use

            async def respond(request: Message | Rejected) -> Message:
                reject_malformed(request)
                engine = self._lifecycle.models.find()
                engine.acquire()
                record.release()  # a later message may use another engine, and an idle stream uses none
                try:
                    response = await work(engine, request, Call(deadline_of(context), "binary"))
                finally:
                    engine.release()
                if hasattr(response, "metadata"):
                    used[identity_of(engine.info)] = None
                return response

            responses = respond_in_order(request_iterator, respond)
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
            add_models(context, *used)

        return respond_all

    async def rerank_stream(self, request_iterator: Requests, context: Context) -> pb.RerankResponse:
        """Return the ranking of the pairs in a stream."""
        engine, ranking = self._lifecycle.models.find(), StreamRanking()

        async def respond(numbered: tuple[int, Message]) -> None:
            await ranking.score(engine, numbered, Call(deadline_of(context), "binary"))

        scored = respond_in_order(ranking.receive(engine, request_iterator), respond)
        async with contextlib.aclosing(scored):
            async for _ in scored:
                pass
        response = ranking.response()
        await _send_metadata(context, response, engine.info)
        return response


async def _send_metadata(context: Context, response: Any, info: ModelInfo) -> None:
    """Send TEI's headers, and add the model to the trailing metadata. Responses of the tokenizer contain neither."""
    if not hasattr(response, "metadata"):
        return
    metadata: pb.Metadata = response.metadata
    fields = {field.name: getattr(metadata, field.name) for field in metadata.DESCRIPTOR.fields}
    add_models(context, identity_of(info))
    await context.send_initial_metadata(tuple(tei.ComputeMetadata(**fields).headers(info).items()))
