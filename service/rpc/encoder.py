"""attendant.v1.EncoderService, as proto/attendant/v1/encoder.proto."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import get_args

import grpc

from model.artifact import POOLINGS
from service.config import Settings
from service.engine.schema.encode import (
    DType,
    EncodeRequest,
    EncodeResponse,
    LayerReduce,
    Output,
    Token,
    TokenizeRequest,
    Word,
)
from service.engine.schema.explain import AttendResponse, CompareResponse
from service.errors import Internal, InvalidArgument, ServiceError
from service.lifecycle import Lifecycle
from service.pb import encoder_pb2 as pb
from service.pb import encoder_pb2_grpc
from service.rpc.explain import attend_request, attend_responses, compare_request, compare_response
from service.rpc.inputs import TRUNCATIONS, inputs_of, meaning, tensor
from service.rpc.interceptor import Malformed, refuse_malformed

SERVICE = "attendant.v1.EncoderService"
STREAM_WINDOW = 16
"""Requests of one stream that may be worked on at a time."""

OUTPUTS = (None, *get_args(Output))
LAYER_REDUCES = ("concat", *get_args(LayerReduce))
POOLING_MODES = (None, *POOLINGS)
DTYPES = ("float32", *get_args(DType))


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Translate, await, translate."""

    def __init__(self, host: Lifecycle, settings: Settings) -> None:
        self._host = host
        self._settings = settings

    async def Encode(self, request: pb.EncodeRequest, context: grpc.aio.ServicerContext) -> pb.EncodeResponse:
        engine = self._host.engine
        found = await engine.encode(_encode_request(request, _deadline(context)))
        _mark(context, found, engine.info.digest)
        return _encode_response(found)

    async def EncodeStream(
        self, request_iterator: AsyncIterator[pb.EncodeRequest | Malformed], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.EncodeStreamResponse]:
        window: asyncio.Queue[asyncio.Task[pb.EncodeStreamResponse] | None] = asyncio.Queue(STREAM_WINDOW)

        async def read() -> None:
            try:
                async for request in request_iterator:
                    await window.put(asyncio.create_task(self._reply(request, _deadline(context))))
            finally:
                await window.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await window.get()) is not None:
                yield await task
            await reader
        finally:
            reader.cancel()
            while not window.empty():
                if (left := window.get_nowait()) is not None:
                    left.cancel()

    async def Attend(
        self, request: pb.AttendRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.AttendResponse]:
        engine = self._host.engine
        found = await engine.attend(attend_request(request, _deadline(context)))
        _mark(context, found, engine.info.digest)
        for message in attend_responses(found):
            yield message

    async def Compare(self, request: pb.CompareRequest, context: grpc.aio.ServicerContext) -> pb.CompareResponse:
        engine = self._host.engine
        found = await engine.compare(compare_request(request, _deadline(context)))
        _mark(context, found, engine.info.digest)
        return compare_response(found)

    async def Tokenize(self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        asked = TokenizeRequest(inputs_of(request.inputs), request.model or None, wire="binary")
        found = await self._host.engine.tokenize(asked)
        return pb.TokenizeResponse(
            model=found.model,
            results=[
                pb.TokenizeResult(
                    token_count=result.token_count, tokens=_tokens(result.tokens), words=_words(result.words)
                )
                for result in found.results
            ],
        )

    async def GetModel(self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext) -> pb.GetModelResponse:
        facts = self._host.engine.info
        limits = facts.limits
        return pb.GetModelResponse(
            name=facts.name,
            aliases=facts.aliases,
            digest=facts.digest,
            source=facts.source,
            revision=facts.revision or "",
            licence=facts.licence or "",
            family=facts.family,
            layer_count=facts.layer_count,
            head_count=facts.head_count,
            width=facts.width,
            output_width=facts.output_width,
            vocabulary_size=facts.vocabulary_size,
            max_tokens=facts.max_tokens,
            pooling=POOLING_MODES.index(facts.pooling),  # type: ignore[arg-type]  # the number is right
            normalize=facts.normalize,
            prompts=facts.prompts,
            precision=facts.precision,
            provider=facts.provider,
            row_lengths=facts.row_lengths,
            layers=facts.layers,
            attention_kinds=facts.attention_kinds,
            limits=pb.Limits(
                max_inputs=limits.max_inputs,
                max_input_characters=limits.max_input_characters,
                max_request_bytes=limits.max_request_bytes,
                max_response_bytes=limits.max_response_bytes,
                max_queue_tokens=limits.max_queue_tokens,
                max_deadline_ms=limits.max_deadline_ms,
                max_explain_queue_tokens=limits.max_explain_queue_tokens,
                header_timeout_ms=limits.header_timeout_ms,
                body_timeout_ms=limits.body_timeout_ms,
            ),
            version=facts.version,
        )

    async def _reply(self, request: pb.EncodeRequest | Malformed, deadline: float | None) -> pb.EncodeStreamResponse:
        try:
            refuse_malformed(request)
            assert isinstance(request, pb.EncodeRequest)
            found = await self._host.engine.encode(_encode_request(request, deadline))
        except ServiceError as error:
            return pb.EncodeStreamResponse(error=_error(error))
        except Exception as unforeseen:
            raise Internal from unforeseen
        return pb.EncodeStreamResponse(response=_encode_response(found))


def _mark(
    context: grpc.aio.ServicerContext, found: EncodeResponse | AttendResponse | CompareResponse, digest: str
) -> None:
    """Say in the trailing metadata which model answered, and where the time went."""
    context.set_trailing_metadata(
        (
            *context.trailing_metadata(),
            ("x-attendant-model", f"{found.model}@{digest}"),
            ("server-timing", found.timing.describe()),
        )
    )


def _deadline(context: grpc.aio.ServicerContext) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def _encode_request(request: pb.EncodeRequest, deadline: float | None) -> EncodeRequest:
    return EncodeRequest(
        inputs=inputs_of(request.inputs),
        model=request.model or None,
        outputs=tuple(meaning(OUTPUTS, number, "outputs") or "pooled" for number in request.outputs) or ("pooled",),
        layers=tuple(request.layers) or (-1,),
        layer_reduce=meaning(LAYER_REDUCES, request.layer_reduce, "layer_reduce"),
        pooling=meaning(POOLING_MODES, request.pooling, "pooling"),
        normalize=request.normalize if request.HasField("normalize") else None,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        truncation=meaning(TRUNCATIONS, request.truncation, "truncation"),
        dtype=_dtype(request.dtype),
        wire="binary",
        deadline=deadline,
    )


def _dtype(number: int) -> DType:
    if number == pb.DTYPE_SQRT_UINT8:
        raise InvalidArgument("dtype DTYPE_SQRT_UINT8 is for attention maps; a vector's components may be below 0.")
    found: DType = meaning(DTYPES, number, "dtype")
    return found


def _encode_response(found: EncodeResponse) -> pb.EncodeResponse:
    return pb.EncodeResponse(
        model=found.model,
        precision=found.precision,
        results=[
            pb.EncodeResult(
                token_count=result.token_count,
                truncated=result.truncated,
                tokens=_tokens(result.tokens or ()),
                words=_words(result.words or ()),
                pooled=tensor(result.pooled),
                token_vectors=tensor(result.token_vectors),
                word_vectors=tensor(result.word_vectors),
                span_vectors=tensor(result.span_vectors),
                static_vectors=tensor(result.static_vectors),
            )
            for result in found.results
        ],
        usage=pb.Usage(tokens=found.token_count, truncated_inputs=found.truncated_inputs),
    )


def _tokens(tokens: Sequence[Token]) -> list[pb.Token]:
    return [
        pb.Token(
            id=token.id,
            text=token.text,
            start=token.start,
            end=token.end,
            word=token.word,
            segment=token.segment,
            special=token.special,
        )
        for token in tokens
    ]


def _words(words: Sequence[Word]) -> list[pb.Word]:
    return [pb.Word(text=word.text, start=word.start, end=word.end, segment=word.segment) for word in words]


def _error(error: ServiceError) -> pb.Error:
    number: int = grpc.StatusCode[error.code].value[0]
    return pb.Error(code=number, reason=error.reason, message=error.message)
