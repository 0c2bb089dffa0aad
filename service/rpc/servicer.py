"""The servicer of attendant.v1.EncoderService, proto/attendant/v1/encoder.proto."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, get_args

import grpc

from service.config import Settings
from service.engine.engine import Engine
from service.engine.schema.encode import (
    DType,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    LayerReduce,
    Side,
    Timing,
    Token,
    TokenizeRequest,
    TokenizeResult,
)
from service.engine.schema.model import ModelInfo
from service.engine.schema.operations import Output
from service.errors import UnknownValue
from service.lifecycle import Lifecycle
from service.limits import item_limits, reject_spans
from service.pb import encoder_pb2 as pb
from service.pb import encoder_pb2_grpc
from service.request_log import RequestLog, RequestRecord, current_record
from service.rpc.codec import PROTO, TRUNCATIONS, check_count, enum_label, enum_value, tensor, to_inputs, to_layers
from service.rpc.context import add_models, add_timing, deadline_of, identity_of
from service.rpc.entities import token_classify_request, token_classify_response
from service.rpc.explain import attend_request, attend_responses, compare_request, compare_response
from service.rpc.fill_mask import fill_mask_request, fill_mask_response
from service.rpc.labels import classify_request, classify_response, rerank_request, rerank_response
from service.rpc.messages import Rejected, reject_malformed
from service.rpc.model_info import POOLING_MODES, model_message
from service.rpc.similarity import similarity_request, similarity_response
from service.rpc.status import status_of
from service.rpc.stream import Failed, respond_in_order, run_in_stream
from service.steps import Steps

SERVICE = "attendant.v1.EncoderService"

OUTPUTS = (None, *get_args(Output))
ROLES = (None, *get_args(Side))
LAYER_REDUCES = ("concat", *get_args(LayerReduce))
DTYPES = ("float32", *get_args(DType))


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Translates requests and responses."""

    def __init__(self, lifecycle: Lifecycle, settings: Settings, requests: RequestLog) -> None:
        self._lifecycle = lifecycle
        self._settings = settings
        self._requests = requests

    async def Encode(self, request: pb.EncodeRequest, context: grpc.aio.ServicerContext) -> pb.EncodeResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.encode(_encode_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return await _encode_response(response)

    async def EncodeStream(
        self, request_iterator: AsyncIterator[pb.EncodeStreamRequest | Rejected], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.EncodeStreamResponse]:
        call = current_record()
        assert call is not None
        _ = self._lifecycle.models  # raises `Unavailable` before the first request
        used: dict[str, None] = {}  # in the order of their first use

        async def respond(request: pb.EncodeStreamRequest | Rejected) -> pb.EncodeStreamResponse:
            return await self._stream_response(request, deadline_of(context), call, used)

        responses = respond_in_order(request_iterator, respond)
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response
        add_models(context, *used)

    async def Attend(
        self, request: pb.AttendRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.AttendResponse]:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.attend(attend_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        async for message in attend_responses(response):
            yield message

    async def Compare(self, request: pb.CompareRequest, context: grpc.aio.ServicerContext) -> pb.CompareResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.compare(compare_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return compare_response(response)

    async def Similarity(
        self, request: pb.SimilarityRequest, context: grpc.aio.ServicerContext
    ) -> pb.SimilarityResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.similarity(similarity_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return await similarity_response(response)

    async def Rerank(self, request: pb.RerankRequest, context: grpc.aio.ServicerContext) -> pb.RerankResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.rerank(rerank_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return await rerank_response(response)

    async def Classify(self, request: pb.ClassifyRequest, context: grpc.aio.ServicerContext) -> pb.ClassifyResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.classify(classify_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return await classify_response(response)

    async def TokenClassify(
        self, request: pb.TokenClassifyRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenClassifyResponse:
        engine = self._lifecycle.models.find(request.model or None)
        work = engine.token_classify(token_classify_request(request, self._limits(engine), deadline_of(context)))
        response = await work
        _add_metadata(context, response, engine.info)
        return await token_classify_response(response)

    async def FillMask(self, request: pb.FillMaskRequest, context: grpc.aio.ServicerContext) -> pb.FillMaskResponse:
        engine = self._lifecycle.models.find(request.model or None)
        response = await engine.fill_mask(fill_mask_request(request, self._limits(engine), deadline_of(context)))
        _add_metadata(context, response, engine.info)
        return await fill_mask_response(response)

    async def Tokenize(self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        engine = self._lifecycle.models.find(request.model or None)
        inputs = to_inputs(request.inputs, self._limits(engine))
        reject_spans(inputs)
        response = await engine.tokenize(TokenizeRequest(inputs, wire="binary", deadline=deadline_of(context)))
        message = pb.TokenizeResponse(model=response.model, usage=pb.Usage(tokens=response.token_count))
        steps = Steps()
        async for result in steps.each(response.results):
            described = message.results.add(token_count=result.token_count)
            await _add_tokens_and_words(described, result, steps)
        return message

    async def GetModel(self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext) -> pb.Model:
        return model_message(self._lifecycle.models.find(request.model or None).info)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=map(model_message, self._lifecycle.models.infos))

    def _limits(self, engine: Engine) -> Mapping[str, int]:
        return item_limits([engine.info])

    async def _stream_response(
        self,
        message: pb.EncodeStreamRequest | Rejected,
        deadline: float | None,
        call: RequestRecord,
        used: dict[str, None],
    ) -> pb.EncodeStreamResponse:
        """Return the response to one request of a stream, and add its model to `used`.

        An error fails that request alone.
        """
        request_id = "" if isinstance(message, Rejected) else message.id

        async def encode() -> EncodeResponse:
            reject_malformed(message)
            assert isinstance(message, pb.EncodeStreamRequest)
            engine = self._lifecycle.models.find(message.request.model or None)
            used[identity_of(engine.info)] = None
            return await engine.encode(_encode_request(message.request, self._limits(engine), deadline))

        result = await run_in_stream(encode, call, self._requests)
        if isinstance(result, Failed):
            result.error.spell(PROTO)
            return pb.EncodeStreamResponse(id=request_id, error=status_of(result.error, result.request_id))
        return pb.EncodeStreamResponse(id=request_id, response=await _encode_response(result))


class _Response(Protocol):
    """A response that names its model and the time of each stage."""

    @property
    def model(self) -> str: ...
    @property
    def timing(self) -> Timing: ...


def _add_metadata(context: grpc.aio.ServicerContext, response: _Response, info: ModelInfo) -> None:
    add_models(context, identity_of(info))
    add_timing(context, response.timing)


def _encode_request(request: pb.EncodeRequest, limits: Mapping[str, int], deadline: float | None) -> EncodeRequest:
    check_count("outputs", len(request.outputs), limits)
    check_count("layers", len(request.layers), limits)
    return EncodeRequest(
        inputs=to_inputs(request.inputs, limits),
        outputs=tuple(
            enum_value(OUTPUTS, number, f"outputs[{index}]") or "pooled" for index, number in enumerate(request.outputs)
        )
        or ("pooled",),
        layers=to_layers(request),
        layer_reduce=enum_value(LAYER_REDUCES, request.layer_reduce, "layer_reduce"),
        pooling=enum_value(POOLING_MODES, request.pooling, "pooling"),
        normalize=request.normalize if request.HasField("normalize") else None,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        truncation=enum_value(TRUNCATIONS, request.truncation, "truncation"),
        prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
        prompt=request.prompt if request.HasField("prompt") else None,
        role=enum_value(ROLES, request.role, "role"),
        dtype=_dtype(request.dtype),
        wire="binary",
        deadline=deadline,
    )


def _dtype(number: int) -> DType:
    if number == pb.DTYPE_SQRT_UINT8:
        raise UnknownValue(
            "DTYPE_SQRT_UINT8 is not supported for embeddings (they may be negative)",
            "Use DTYPE_FLOAT16.",
            field="dtype",
        )
    dtype: DType = enum_value(DTYPES, number, "dtype")
    return dtype


async def _encode_response(response: EncodeResponse) -> pb.EncodeResponse:
    message = pb.EncodeResponse(
        model=response.model,
        precision=enum_label("PRECISION", response.precision),
        usage=pb.Usage(tokens=response.token_count, truncated_inputs=response.truncated_inputs),
        prompt_name=None if response.prompt is None else response.prompt.name,
        prompt=None if response.prompt is None else response.prompt.text,
    )
    steps = Steps()
    async for result in steps.each(response.results):
        encoded = message.results.add(
            token_count=result.token_count,
            truncated=result.truncated,
            pooled=tensor(result.pooled),
            token_vectors=tensor(result.token_vectors),
            word_vectors=tensor(result.word_vectors),
            span_vectors=tensor(result.span_vectors),
            static_vectors=tensor(result.static_vectors),
            multi_vector=tensor(result.multi_vector),
            sparse=None
            if result.sparse is None
            else pb.SparseVector(
                token_ids=result.sparse.token_ids, tokens=result.sparse.tokens, weights=tensor(result.sparse.weights)
            ),
        )
        async for token in steps.each(result.multi_vector_tokens or ()):
            encoded.multi_vector_tokens.append(_token(token))
        await _add_tokens_and_words(encoded, result, steps)
    return message


async def _add_tokens_and_words(
    message: pb.EncodeResult | pb.TokenizeResult, result: EncodeResult | TokenizeResult, steps: Steps
) -> None:
    async for token in steps.each(result.tokens or ()):
        message.tokens.append(_token(token))
    async for word in steps.each(result.words or ()):
        message.words.add(text=word.text, start=word.start, end=word.end, segment=word.segment)


def _token(token: Token) -> pb.Token:
    return pb.Token(
        id=token.id,
        text=token.text,
        start=token.start,
        end=token.end,
        word_index=token.word_index,
        segment=token.segment,
        special=token.special,
    )
