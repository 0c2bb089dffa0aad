"""The running server serves exactly the methods in the protos."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from attendant_client.pb import encoder_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from service.pb import inference_pb2, tei_pb2

METHODS = [
    method
    for file in (encoder_pb2, inference_pb2, tei_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")
"""Methods that need an admin key, which no option sets here."""
HEADS = ("tei.v1.Embed.EmbedSparse", "tei.v1.Predict.Predict", "tei.v1.Rerank.Rerank")
"""Prefixes of methods that need a model head, which the default model lacks."""


async def call_with_empty_request(channel: grpc.aio.Channel, method: MethodDescriptor) -> grpc.StatusCode:
    """Call a method according to its descriptor and return the status."""
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    multi_callable: Any = getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )

    async def requests() -> AsyncIterator[Any]:
        yield request()

    call = multi_callable(requests() if method.client_streaming else request())
    try:
        if method.server_streaming:
            [message async for message in call]
        else:
            await call
    except grpc.aio.AioRpcError:
        pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
async def test_every_method_is_served(channel: grpc.aio.Channel, method: MethodDescriptor) -> None:
    code = await call_with_empty_request(channel, method)
    if method.name in ADMIN:
        assert code == grpc.StatusCode.PERMISSION_DENIED
    elif method.full_name.startswith(HEADS):
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
    else:
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
