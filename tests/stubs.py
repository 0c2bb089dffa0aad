"""Stubs of the served services: the methods of a channel by their names in the proto."""

from typing import Any

from attendant_client.pb import encoder_pb2
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from service.pb import inference_pb2, tei_pb2


class Stub:
    """The methods of one service, for a synchronous or an asynchronous channel."""

    service: ServiceDescriptor

    def __init__(self, channel: Any) -> None:
        for method in self.service.methods:
            kind = (
                f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
            )
            call = getattr(channel, kind)(
                f"/{self.service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class EncoderServiceStub(Stub):
    service = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]


class GRPCInferenceServiceStub(Stub):
    service = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class InfoStub(Stub):
    service = tei_pb2.DESCRIPTOR.services_by_name["Info"]


class EmbedStub(Stub):
    service = tei_pb2.DESCRIPTOR.services_by_name["Embed"]


class PredictStub(Stub):
    service = tei_pb2.DESCRIPTOR.services_by_name["Predict"]


class RerankStub(Stub):
    service = tei_pb2.DESCRIPTOR.services_by_name["Rerank"]


class TokenizeStub(Stub):
    service = tei_pb2.DESCRIPTOR.services_by_name["Tokenize"]
