"""Responses: values and errors, decoded from REST JSON and gRPC messages, and merged for split requests."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from attendant_client.connections import with_hint
from attendant_client.errors import AttendantError
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.requests import CALLS
from attendant_client.types import AttendResponse, AttendResult, AttentionMap, LayerOutputs, Unit, Usage
from attendant_client.wire import enum_names, from_json, from_message

MODELS_PATH = "/v1/models"
ARRAYS = ("encode", "attend")
"""Operations that return base64 arrays."""
CODES = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
LABELS = {
    value.name: f'"{value.name.removeprefix(enum.values[0].name.removesuffix("UNSPECIFIED")).lower()}"'
    for enum in pb.DESCRIPTOR.enum_types_by_name.values()
    for value in enum.values
}
"""Maps proto enum labels to REST values, such as TRUNCATION_RIGHT to `"right"`."""

MergeableT = TypeVar("MergeableT", bound=Any)
T = TypeVar("T")


def decode_json(operation: str, document: Any) -> Any:
    """Decode an operation's REST response."""
    return from_json(CALLS[operation].response, document)


def read_message(kind: type[T], message: Message) -> T:
    """Read a message from a server that may be newer than this client."""
    return from_message(kind, message, lenient=True)


def decode_messages(operation: str, messages: Sequence[Message]) -> Any:
    """Decode an operation's gRPC response; `messages` has one element unless the operation streams."""
    if operation == "attend":
        return _decode_maps(messages)
    (message,) = messages
    response = read_message(CALLS[operation].response, message)
    if operation == "similarity" and response.similarity == "sparse" and response.pairs is not None:
        # Without shared entries, set an empty list, which gRPC does not distinguish from a missing list.
        return replace(response, pairs=[replace(pair, products=pair.products or []) for pair in response.pairs])
    return response


def _decode_maps(messages: Sequence[Any]) -> AttendResponse:
    header = messages[0].header
    maps: list[list[AttentionMap]] = [[] for _ in header.inputs]
    layers: list[list[LayerOutputs]] = [[] for _ in header.inputs]
    for message in messages[1:]:
        if message.HasField("map"):
            maps[message.map.input_index].append(read_message(AttentionMap, message.map))
        else:
            layers[message.layer_outputs.input_index].append(read_message(LayerOutputs, message.layer_outputs))
    results = [
        AttendResult(
            item.truncated,
            [read_message(Unit, unit) for unit in item.units],
            list(item.rows),
            list(item.columns),
            item_maps,
            item_layers or None,
        )
        for item, item_maps, item_layers in zip(header.inputs, maps, layers, strict=True)
    ]
    names = enum_names(header.DESCRIPTOR.fields_by_name["precision"].enum_type)
    precision: Any = names.get(header.precision, str(header.precision))
    return AttendResponse(header.model, precision, results, read_message(Usage, header.usage))


def merge(parts: Sequence[tuple[MergeableT, str | None]]) -> MergeableT:
    """Return one response with all results, in order. Raises `AttendantError` if the parts name different models."""
    responses = [response for response, _ in parts]
    if len({model for _, model in parts if model is not None}) > 1:
        raise AttendantError("ABORTED", "MODEL_CHANGED", "The model changed between two parts of the call. Repeat it.")
    if len(responses) == 1:
        return responses[0]
    usage = Usage(
        sum(response.usage.tokens for response in responses),
        sum(response.usage.truncated_inputs for response in responses),
    )
    return replace(responses[0], results=[result for response in responses for result in response.results], usage=usage)


def http_error(status: int, document: Any, retry_after: str | None) -> AttendantError:
    """Return the error for a response; `document` is None if the body is not the server's JSON."""
    error: Any = document.get("error") if isinstance(document, dict) else None
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    code = CODES.get(status, "UNKNOWN")
    match error:
        case {"code": str(name), "reason": str(reason), "message": str(message)}:
            details = {name: error.get(name) for name in ("field", "minimum", "maximum", "actual", "request_id")}
            return AttendantError(name, reason, message, retry_after_s=retry_after_s, **details)
        case {"code": str(name), "param": field, "message": str(message)}:  # /v1/models returns OpenAI's errors
            return AttendantError(code, name.upper(), message, field=field, retry_after_s=retry_after_s)
    # Of another server, or of a proxy, which sends no reason.
    reason = "UNAVAILABLE" if status in (429, 502, 503, 504) else code
    return AttendantError(code, reason, f"HTTP status {status}.", retry_after_s=retry_after_s)


def grpc_error(error: grpc.RpcError) -> AttendantError:
    """Return the error for a failed call."""
    code = error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return status_error(Status.FromString(value))
    # gRPC cancels calls that arrive while the server is stopping. Calls cancelled by the client do not raise RpcError.
    reason = "UNAVAILABLE" if code in ("UNAVAILABLE", "CANCELLED") else code
    return AttendantError(code, reason, with_hint(error.details() or code))


def status_error(status: Status) -> AttendantError:
    """Return the error for a status with details."""
    info, retry, retry_after_s = ErrorInfo(), RetryInfo(), None
    for detail in status.details:
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(RetryInfo.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    metadata = info.metadata
    actual = metadata.get("actual")
    return AttendantError(
        next(code.name for code in grpc.StatusCode if code.value[0] == status.code),
        info.reason,
        re.sub(r"\b[A-Z][A-Z0-9_]+\b", lambda match: LABELS.get(match[0], match[0]), status.message),
        field=metadata.get("field"),
        minimum=_number(metadata.get("minimum")),
        maximum=_number(metadata.get("maximum")),
        actual=_number(LABELS[actual].strip('"') if actual in LABELS else actual),
        request_id=metadata.get("request_id"),
        retry_after_s=retry_after_s,
    )


def _number(value: str | None) -> Any:
    """Convert an error detail to a number if possible."""
    for kind in (int, float):
        try:
            return value if value is None else kind(value)
        except ValueError:
            continue
    return value
