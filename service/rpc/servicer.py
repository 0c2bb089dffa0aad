"""The methods of attendant.v1.EncoderService, proto/attendant/v1/encoder.proto."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import AttendResponse, EncodeResponse, Operation, TokenizeResponse
from attendant_client.wire import to_message
from google.protobuf.message_factory import GetMessageClass

from service.engine.engine import Engine
from service.lifecycle import Lifecycle
from service.operations.inputs import Call, item_limits
from service.operations.table import OPERATIONS
from service.request_log import RequestLog, RequestRecord, current_record
from service.rpc.messages import (
    PROTO,
    Context,
    Message,
    Rejected,
    add_models,
    add_timing,
    deadline_of,
    identity_of,
    read_request,
    reject_malformed,
    status_of,
    write_response,
)
from service.rpc.stream import Failed, StreamWork, respond_in_order, run_in_stream
from service.steps import convert

SERVICE = pb.DESCRIPTOR.services_by_name["EncoderService"]
UNARY = {
    method.name: (name, GetMessageClass(method.output_type))
    for method in SERVICE.methods
    for name in OPERATIONS
    if name.replace("_", "") == method.name.lower() and not method.server_streaming
}
"""The methods with one response: their operations and responses."""


class EncoderServicer:
    """Translates requests and responses."""

    def __init__(self, lifecycle: Lifecycle, requests: RequestLog) -> None:
        self._lifecycle = lifecycle
        self._requests = requests

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by their names."""
        streams: dict[str, Callable[..., Any]] = {"EncodeStream": self.encode_stream, "Attend": self.attend}
        models = {"GetModel": self.get_model, "ListModels": self.list_models}
        return {method: self._respond(*entry) for method, entry in UNARY.items()} | streams | models

    def _respond(self, operation: Operation, kind: type[Any]) -> Callable[[Message, Context], Awaitable[Message]]:
        """Return the method that runs an operation."""

        async def respond(request: Message, context: Context) -> Message:
            engine = self._lifecycle.models.find(request.model or None)
            response = await self._run(operation, engine, request, context)
            return await write_response(response, kind())

        return respond

    async def _run(self, operation: Operation, engine: Engine, request: Message, context: Context) -> Any:
        """Return the response of an operation, and add its metadata."""
        entry, call = OPERATIONS[operation], Call(deadline_of(context), "binary")
        response = await entry.run(engine, read_request(entry.request, request, item_limits([engine.info])), call)
        if not isinstance(response, TokenizeResponse):
            add_models(context, identity_of(engine.info))
            add_timing(context, call.timing)
        return response

    async def attend(self, request: pb.AttendRequest, context: Context) -> AsyncIterator[pb.AttendResponse]:
        """Yield the header, then one message per map or layer. Each array is freed once its message is built."""
        engine = self._lifecycle.models.find(request.model or None)
        response: AttendResponse = await self._run("attend", engine, request, context)
        header = pb.AttendHeader(inputs=await convert(_describe_input, response.results))
        yield pb.AttendResponse(header=to_message(response, header))
        for index, result in enumerate(response.results):
            result.maps.reverse()
            while result.maps:
                yield pb.AttendResponse(map=to_message(result.maps.pop(), pb.AttentionMap(input_index=index)))
            for outputs in result.layer_outputs or ():
                layer = to_message(outputs, pb.LayerOutputs(input_index=index))
                yield pb.AttendResponse(layer_outputs=layer)

    async def encode_stream(
        self, request_iterator: AsyncIterator[pb.EncodeStreamRequest | Rejected], context: Context
    ) -> AsyncIterator[pb.EncodeStreamResponse]:
        """Yield the responses in the order of the requests."""
        call = current_record()
        assert call is not None
        _ = self._lifecycle.models  # raises `Unavailable` before the first request
        used: dict[str, None] = {}  # in order of first use
        stream = StreamWork()

        async def respond(request: pb.EncodeStreamRequest | Rejected) -> pb.EncodeStreamResponse:
            return await self._stream_response(request, deadline_of(context), call, stream, used)

        responses = respond_in_order(request_iterator, respond)
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response
        add_models(context, *used)

    async def _stream_response(
        self,
        message: pb.EncodeStreamRequest | Rejected,
        deadline: float | None,
        call: RequestRecord,
        stream: StreamWork,
        used: dict[str, None],
    ) -> pb.EncodeStreamResponse:
        """Return the response to one request of a stream; add its model to `used`. Errors fail only this request."""
        request_id = "" if isinstance(message, Rejected) else message.id

        async def encode() -> EncodeResponse:
            reject_malformed(message)
            assert isinstance(message, pb.EncodeStreamRequest)
            engine, entry = self._lifecycle.models.find(message.request.model or None), OPERATIONS["encode"]
            used[identity_of(engine.info)] = None
            request = read_request(entry.request, message.request, item_limits([engine.info]))
            response: EncodeResponse = await entry.run(engine, request, Call(deadline, "binary"))
            return response

        result = await run_in_stream(encode, call, self._requests, stream)
        if isinstance(result, Failed):
            result.error.spell(PROTO)
            return pb.EncodeStreamResponse(id=request_id, error=status_of(result.error, result.request_id))
        response = pb.EncodeStreamResponse(id=request_id)
        await write_response(result, response.response)
        return response

    async def get_model(self, request: pb.GetModelRequest, context: Context) -> Message:
        """Return a served model."""
        return to_message(self._lifecycle.models.find(request.model or None).info, pb.Model())

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Return the served models; the first is the default model."""
        infos = self._lifecycle.models.infos
        return pb.ListModelsResponse(models=[to_message(info, pb.Model()) for info in infos])


def _describe_input(result: Any) -> Message:
    return to_message(result, pb.AttendInputInfo(map_count=len(result.maps)))
