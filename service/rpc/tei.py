"""The servicers of tei.v1, proto/tei/v1/tei.proto."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from service.engine.engine import Engine
from service.engine.schema.model import ModelInfo
from service.lifecycle import Lifecycle
from service.pb import tei_pb2 as pb
from service.pb import tei_pb2_grpc
from service.rpc import tei_messages as messages
from service.rpc.context import Context, add_models, deadline_of, identity_of
from service.rpc.messages import Rejected, reject_malformed
from service.rpc.stream import respond_in_order
from service.tei.description import ComputeMetadata, describe_model

SERVICES = pb.DESCRIPTOR.services_by_name

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Work = Callable[[Engine, Request, float | None], Awaitable[Response]]
"""Returns the response to a message, whose deadline is a time.monotonic() reading."""


class Caller:
    """Runs the work of methods with the default model."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle

    async def unary(self, work: Work[Request, Response], request: Request, context: Context) -> Response:
        """Return the response, and send TEI's headers as its initial metadata."""
        engine = self.lifecycle.models.find()
        response = await work(engine, request, deadline_of(context))
        await _send_metadata(context, response, engine.info)
        return response

    def stream(
        self, work: Work[Request, Response], requests: AsyncIterator[Request | Rejected], context: Context
    ) -> AsyncGenerator[Response, None]:
        """Return an iterator over the responses in the order of the requests, up to the first error."""
        _ = self.lifecycle.models  # raises `Unavailable` before the first request

        async def respond(request: Request | Rejected) -> Response:
            reject_malformed(request)
            assert not isinstance(request, Rejected)
            return await work(self.lifecycle.models.find(), request, deadline_of(context))

        return respond_in_order(requests, respond)


class InfoServicer(tei_pb2_grpc.InfoServicer):
    """Describes the model."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        return messages.info(describe_model(self._caller.lifecycle.models.find()))


class EmbedServicer(tei_pb2_grpc.EmbedServicer):
    """Computes vectors."""

    def __init__(self, caller: Caller) -> None:
        self._unary, self._stream = caller.unary, caller.stream

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._unary(messages.embed, request, context)

    def EmbedStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.EmbedResponse]:
        return self._stream(messages.embed, request_iterator, context)

    async def EmbedSparse(self, request: pb.EmbedSparseRequest, context: Context) -> pb.EmbedSparseResponse:
        return await self._unary(messages.embed_sparse, request, context)

    def EmbedSparseStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.EmbedSparseResponse]:
        return self._stream(messages.embed_sparse, request_iterator, context)

    async def EmbedAll(self, request: pb.EmbedAllRequest, context: Context) -> pb.EmbedAllResponse:
        return await self._unary(messages.embed_all, request, context)

    def EmbedAllStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.EmbedAllResponse]:
        return self._stream(messages.embed_all, request_iterator, context)


class PredictServicer(tei_pb2_grpc.PredictServicer):
    """Classifies texts and pairs."""

    def __init__(self, caller: Caller) -> None:
        self._unary, self._stream = caller.unary, caller.stream

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:
        return await self._unary(messages.predict, request, context)

    def PredictStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.PredictResponse]:
        return self._stream(messages.predict, request_iterator, context)

    async def PredictPair(self, request: pb.PredictPairRequest, context: Context) -> pb.PredictResponse:
        return await self._unary(messages.predict_pair, request, context)

    def PredictPairStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.PredictResponse]:
        return self._stream(messages.predict_pair, request_iterator, context)


class RerankServicer(tei_pb2_grpc.RerankServicer):
    """Ranks texts."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        return await self._caller.unary(messages.rerank, request, context)

    async def RerankStream(
        self, request_iterator: AsyncIterator[pb.RerankStreamRequest | Rejected], context: Context
    ) -> pb.RerankResponse:
        engine, ranking = self._caller.lifecycle.models.find(), messages.StreamRanking()

        async def respond(numbered: tuple[int, pb.RerankStreamRequest]) -> None:
            await ranking.score(engine, numbered, deadline_of(context))

        scored = respond_in_order(ranking.receive(engine, request_iterator), respond)
        async with contextlib.aclosing(scored):
            async for _ in scored:
                pass
        response = ranking.response()
        await _send_metadata(context, response, engine.info)
        return response


class TokenizeServicer(tei_pb2_grpc.TokenizeServicer):
    """Converts texts to tokens and back."""

    def __init__(self, caller: Caller) -> None:
        self._unary, self._stream = caller.unary, caller.stream

    async def Tokenize(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        return await self._unary(messages.tokenize, request, context)

    def TokenizeStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.EncodeResponse]:
        return self._stream(messages.tokenize, request_iterator, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        return await self._unary(messages.decode, request, context)

    def DecodeStream(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.DecodeResponse]:
        return self._stream(messages.decode, request_iterator, context)


async def _send_metadata(context: Context, response: Any, info: ModelInfo) -> None:
    """Send TEI's headers, and add the model to the trailing metadata; the tokenizer's responses have neither."""
    if not hasattr(response, "metadata"):
        return
    metadata: pb.Metadata = response.metadata
    fields = {field.name: getattr(metadata, field.name) for field in metadata.DESCRIPTOR.fields}
    add_models(context, identity_of(info))
    await context.send_initial_metadata(tuple(ComputeMetadata(**fields).headers(info).items()))


def add_servicers(lifecycle: Lifecycle, server: grpc.aio.Server) -> None:
    """Serve all services of the package."""
    caller = Caller(lifecycle)
    tei_pb2_grpc.add_InfoServicer_to_server(InfoServicer(caller), server)  # type: ignore[no-untyped-call]
    tei_pb2_grpc.add_EmbedServicer_to_server(EmbedServicer(caller), server)  # type: ignore[no-untyped-call]
    tei_pb2_grpc.add_PredictServicer_to_server(PredictServicer(caller), server)  # type: ignore[no-untyped-call]
    tei_pb2_grpc.add_RerankServicer_to_server(RerankServicer(caller), server)  # type: ignore[no-untyped-call]
    tei_pb2_grpc.add_TokenizeServicer_to_server(TokenizeServicer(caller), server)  # type: ignore[no-untyped-call]
