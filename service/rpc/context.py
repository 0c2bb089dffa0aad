"""Call context: deadline and response metadata; and the handlers of a service."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from attendant_client.types import ModelInfo
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from service.engine.lane import Timing

MODEL_HEADER = "x-attendant-model"

Context = Any
"""grpc.aio.ServicerContext; the package declares no types."""


def make_handler(service: ServiceDescriptor, methods: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the handler of all methods of a service, by their names in the proto."""
    handlers = {}
    for method in service.methods:
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        handlers[method.name] = make(
            methods[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def deadline_of(context: Context) -> float | None:
    """Return the client's deadline, a time.monotonic() reading; None if it set none."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def identity_of(info: ModelInfo) -> str:
    """Return a model's name and digest."""
    return f"{info.name}@{info.digest}"


def add_models(context: Context, *identities: str) -> None:
    """Add the models that computed the response to the trailing metadata."""
    if identities:
        context.set_trailing_metadata((*context.trailing_metadata(), (MODEL_HEADER, ", ".join(identities))))


def add_timing(context: Context, timing: Timing) -> None:
    """Add the duration of each stage to the trailing metadata."""
    context.set_trailing_metadata((*context.trailing_metadata(), ("server-timing", timing.describe())))
