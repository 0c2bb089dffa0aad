"""attendant.v1.EncoderService of proto/attendant/v1/encoder.proto."""

import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import get_args

import grpc

from model.artifact import POOLINGS
from service.config import Settings
from service.engine.engine import Engine
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
from service.limits import item_limits
from service.metrics import Metrics
from service.pb import encoder_pb2 as pb
from service.pb import encoder_pb2_grpc
from service.request_ids import HEADER
from service.rpc.codec import TRUNCATIONS, check_count, enum_value, tensor, to_inputs
from service.rpc.explain import attend_request, attend_responses, compare_request, compare_response
from service.rpc.interceptor import log_internal
from service.rpc.messages import Rejected, reject_malformed
from service.rpc.stream import respond_in_order

SERVICE = "attendant.v1.EncoderService"
STREAM_WINDOW = 16
"""Requests of one stream that are in progress at a time."""

OUTPUTS = (None, *get_args(Output))
LAYER_REDUCES = ("concat", *get_args(LayerReduce))
POOLING_MODES = (None, *POOLINGS)
DTYPES = ("float32", *get_args(DType))


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Translates requests and responses."""

    def __init__(self, lifecycle: Lifecycle, settings: Settings, metrics: Metrics) -> None:
        self._lifecycle = lifecycle
        self._settings = settings
        self._metrics = metrics

    async def Encode(self, request: pb.EncodeRequest, context: grpc.aio.ServicerContext) -> pb.EncodeResponse:
        engine = self._lifecycle.engine
        response = await engine.encode(_encode_request(request, self._limits(engine), _deadline(context)))
        _add_metadata(context, response, engine.info.digest)
        return _encode_response(response)

    async def EncodeStream(
        self, request_iterator: AsyncIterator[pb.EncodeRequest | Rejected], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.EncodeStreamResponse]:
        call_id = dict(context.trailing_metadata())[HEADER]

        async def respond(request: pb.EncodeRequest | Rejected) -> pb.EncodeStreamResponse:
            return await self._stream_response(request, _deadline(context), call_id)

        responses = respond_in_order(request_iterator, respond, STREAM_WINDOW)
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response

    async def Attend(
        self, request: pb.AttendRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.AttendResponse]:
        engine = self._lifecycle.engine
        response = await engine.attend(attend_request(request, self._limits(engine), _deadline(context)))
        _add_metadata(context, response, engine.info.digest)
        for message in attend_responses(response):
            yield message

    async def Compare(self, request: pb.CompareRequest, context: grpc.aio.ServicerContext) -> pb.CompareResponse:
        engine = self._lifecycle.engine
        response = await engine.compare(compare_request(request, self._limits(engine), _deadline(context)))
        _add_metadata(context, response, engine.info.digest)
        return compare_response(response)

    async def Tokenize(self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        engine = self._lifecycle.engine
        inputs = to_inputs(request.inputs, self._limits(engine))
        response = await engine.tokenize(
            TokenizeRequest(inputs, request.model or None, wire="binary", deadline=_deadline(context))
        )
        return pb.TokenizeResponse(
            model=response.model,
            results=[
                pb.TokenizeResult(
                    token_count=result.token_count, tokens=_tokens(result.tokens), words=_words(result.words)
                )
                for result in response.results
            ],
        )

    async def GetModel(self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext) -> pb.GetModelResponse:
        info = self._lifecycle.engine.info
        return pb.GetModelResponse(
            name=info.name,
            aliases=info.aliases,
            digest=info.digest,
            source=info.source,
            revision=info.revision or "",
            licence=info.licence or "",
            family=info.family,
            layer_count=info.layer_count,
            head_count=info.head_count,
            width=info.width,
            output_width=info.output_width,
            vocabulary_size=info.vocabulary_size,
            max_tokens=info.max_tokens,
            pooling=POOLING_MODES.index(info.pooling),  # type: ignore[arg-type]  # the number is right
            normalize=info.normalize,
            prompts=info.prompts,
            precision=info.precision,
            provider=info.provider,
            threads=info.threads,
            backend_reason=info.backend_reason,
            row_lengths=info.row_lengths,
            layers=info.layers,
            attention_kinds=info.attention_kinds,
            limits=pb.Limits(**asdict(info.limits)),
            version=info.version,
        )

    def _limits(self, engine: Engine) -> Mapping[str, int]:
        return item_limits(engine.info)

    async def _stream_response(
        self, request: pb.EncodeRequest | Rejected, deadline: float | None, call_id: str
    ) -> pb.EncodeStreamResponse:
        """Return the response to one request of a stream; an error ends that request alone."""
        error: ServiceError
        try:
            reject_malformed(request)
            assert isinstance(request, pb.EncodeRequest)
            engine = self._lifecycle.engine
            response = await engine.encode(_encode_request(request, self._limits(engine), deadline))
        except ServiceError as raised:
            error = raised.with_traceback(None)
        except Exception as exception:  # noqa: BLE001  # log_internal logs it
            error = Internal()
            error.__cause__ = exception
        else:
            return pb.EncodeStreamResponse(response=_encode_response(response))
        log_internal(error, f"/{SERVICE}/EncodeStream", call_id)
        self._metrics.count_rejection(error.label)
        return pb.EncodeStreamResponse(error=_error(error, call_id))


def _add_metadata(
    context: grpc.aio.ServicerContext, response: EncodeResponse | AttendResponse | CompareResponse, digest: str
) -> None:
    """Name in the trailing metadata the model and the time of each stage."""
    context.set_trailing_metadata(
        (
            *context.trailing_metadata(),
            ("x-attendant-model", f"{response.model}@{digest}"),
            ("server-timing", response.timing.describe()),
        )
    )


def _deadline(context: grpc.aio.ServicerContext) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def _encode_request(request: pb.EncodeRequest, limits: Mapping[str, int], deadline: float | None) -> EncodeRequest:
    check_count("outputs", len(request.outputs), limits)
    check_count("layers", len(request.layers), limits)
    return EncodeRequest(
        inputs=to_inputs(request.inputs, limits),
        model=request.model or None,
        outputs=tuple(enum_value(OUTPUTS, number, "outputs") or "pooled" for number in request.outputs) or ("pooled",),
        layers=tuple(request.layers) or (-1,),
        layer_reduce=enum_value(LAYER_REDUCES, request.layer_reduce, "layer_reduce"),
        pooling=enum_value(POOLING_MODES, request.pooling, "pooling"),
        normalize=request.normalize if request.HasField("normalize") else None,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        dtype=_dtype(request.dtype),
        wire="binary",
        deadline=deadline,
    )


def _dtype(number: int) -> DType:
    if number == pb.DTYPE_SQRT_UINT8:
        raise InvalidArgument(
            "dtype: DTYPE_SQRT_UINT8 is for attention maps (components of embeddings may be negative). Use another."
        )
    dtype: DType = enum_value(DTYPES, number, "dtype")
    return dtype


def _encode_response(response: EncodeResponse) -> pb.EncodeResponse:
    return pb.EncodeResponse(
        model=response.model,
        precision=response.precision,
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
            for result in response.results
        ],
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
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


def _error(error: ServiceError, call_id: str) -> pb.Error:
    number: int = grpc.StatusCode[error.code].value[0]
    retry_after_ms = None if error.retry_after_s is None else max(1, round(error.retry_after_s * 1000))
    return pb.Error(
        code=number, reason=error.reason, message=error.message, retry_after_ms=retry_after_ms, request_id=call_id
    )
