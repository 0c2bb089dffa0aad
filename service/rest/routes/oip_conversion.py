"""Conversion between bodies of the Open Inference Protocol and its tensors, with the binary data extension."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request, Response

from service.engine.schema.encode import Wire
from service.engine.schema.model import ModelInfo
from service.errors import (
    InvalidArgument,
    InvalidHeader,
    MalformedRequest,
    OutOfRange,
    ServiceError,
    WrongShape,
    WrongType,
    json_type,
    missing_or_conflicting,
)
from service.limits import item_limits
from service.oip.inference import MAX_TENSORS, InferRequest, InferResponse, RequestedOutput
from service.oip.models import VERSION
from service.oip.tensors import MAX_AXES, InputTensor, OutputTensor
from service.rest.codec import JSON
from service.rest.compression import accepted
from service.rest.requests import parse_json
from service.rest.responses import PART_BYTES, encoded_response, render
from service.rest.routes.oip_bodies import InferBody, InferInputBody

BINARY = "application/octet-stream"
MEDIA_TYPES = (JSON, BINARY)
LENGTH_HEADER = "Inference-Header-Content-Length"
"""The size of the JSON at the start of a body. Bytes of tensors follow it."""
SIZE_PARAMETER, BINARY_PARAMETER, DEFAULT_PARAMETER = "binary_data_size", "binary_data", "binary_data_output"
MAX_DIGITS = 18


def render_error(error: ServiceError) -> bytes:
    """Return the error body of the protocol."""
    return orjson.dumps({"error": error.message})


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error; the protocol uses 400 for all invalid content."""
    is_invalid = isinstance(error, InvalidArgument) or error.reason == "PROMPT_NOT_FOUND"
    return MalformedRequest.http_status if is_invalid else error.http_status


def split_body(body: bytes | bytearray, length: str | None) -> tuple[bytes | bytearray, bytes]:
    """Return the JSON and the bytes after it; `length` is the value of `LENGTH_HEADER`."""
    if length is None:
        return body, b""
    length = length.strip(" \t")
    if not (length.isascii() and length.isdigit() and len(length) <= MAX_DIGITS):
        raise InvalidHeader("not a size in bytes", "Send digits only.", field=LENGTH_HEADER)
    size = int(length)
    if size > len(body):
        raise InvalidHeader(
            "over the size of the body", "Send the size of the JSON.",
            field=LENGTH_HEADER, actual=size, maximum=len(body), unit="bytes",
        )  # fmt: skip
    return body[:size], bytes(body[size:])


def parse_body(document: bytes | bytearray, infos: Sequence[ModelInfo], *, has_length: bool) -> InferBody:
    """Parse the JSON of a request; `has_length` says whether the request has a `LENGTH_HEADER`."""
    try:
        return parse_json(document, InferBody, item_limits(infos) | {"tensors": MAX_TENSORS, "axes": MAX_AXES})
    except MalformedRequest:
        if has_length or SIZE_PARAMETER.encode() not in document:
            raise
        problem, remedy = f"missing, but the body has {SIZE_PARAMETER}", "Send the size of the JSON."
        raise InvalidHeader(problem, remedy, field=LENGTH_HEADER) from None


def infer_request(body: InferBody, binary: bytes, deadline: float | None) -> tuple[InferRequest, list[bool]]:
    """Return the request, and for each output whether its elements are to follow the JSON as bytes."""
    parameters = body.parameters or {}
    default = _flag(parameters, DEFAULT_PARAMETER, f"parameters.{DEFAULT_PARAMETER}", default=False)
    outputs = [
        RequestedOutput(f"outputs[{index}]", output.name, output.parameters or {})
        for index, output in enumerate(body.outputs or ())
    ]
    flags = [
        _flag(output.parameters, BINARY_PARAMETER, f"{output.field}.parameters.{BINARY_PARAMETER}", default=default)
        for output in outputs
    ] or [default]
    wire: Wire = "binary" if all(flags) else "json"
    return InferRequest(_tensors(body.inputs, binary), outputs, parameters, wire, deadline), flags


def _flag(parameters: Mapping[str, Any], name: str, field: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise WrongType("wrong type", "Send true or false.", field=field, actual=json_type(value))
    return value


def _tensors(inputs: Sequence[InferInputBody], binary: bytes) -> list[InputTensor]:
    tensors, start = [], 0
    for index, item in enumerate(inputs):
        field, parameters = f"inputs[{index}]", item.parameters or {}
        raw = None
        if SIZE_PARAMETER in parameters:
            size = _size(parameters[SIZE_PARAMETER], f"{field}.parameters.{SIZE_PARAMETER}", len(binary) - start)
            raw = binary[start : start + size]
            start += size
        if (raw is None) == (item.data is None):
            raise missing_or_conflicting(("data", SIZE_PARAMETER), raw is None, field)
        elements = f"{field}.data" if raw is None else field
        tensors.append(InputTensor(field, item.name, item.datatype, item.shape, parameters, elements, raw, item.data))
    if start != len(binary):
        problem = f"{len(binary)} bytes of binary data, but the sum of {SIZE_PARAMETER} is {start}"
        raise WrongShape(problem, f"Correct {SIZE_PARAMETER} or {LENGTH_HEADER}.", field="inputs")
    return tensors


def _size(value: Any, field: str, limit: int) -> int:
    if type(value) is not int:  # bool is a subclass of int
        raise WrongType("wrong type", "Send an integer.", field=field, actual=json_type(value))
    if not 0 <= value <= limit:
        problem = "negative" if value < 0 else "over the size of the binary data"
        raise OutOfRange(problem, "Send the size of the tensor.", field=field, actual=value, minimum=0, maximum=limit)
    return value


async def infer_response(
    request: Request, body: InferBody, response: InferResponse, flags: Sequence[bool], headers: dict[str, str]
) -> Response:
    """Return the outputs as JSON or, according to `flags`, as bytes after it."""
    binary: list[bytes] = []
    outputs = [_output(output, flag, binary) for output, flag in zip(response.outputs, flags, strict=True)]
    document: dict[str, Any] = {"model_name": response.model, "model_version": VERSION, "outputs": outputs}
    if body.id is not None:
        document["id"] = body.id
    parts = await render(document)
    if not binary:
        return await encoded_response(request, parts, JSON, headers, compress=True)
    headers = {**headers, LENGTH_HEADER: str(sum(map(len, parts)))}
    for data in binary:
        parts += [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    # Floats shrink by a tenth, and compression takes longer than inference. HTTP libraries accept several codings
    # unless told otherwise; a client that names one asks for it.
    asked = len(accepted(request.headers.get("accept-encoding", ""))) == 1
    return await encoded_response(request, parts, BINARY, headers, compress=asked)


def _output(output: OutputTensor, as_bytes: bool, binary: list[bytes]) -> dict[str, Any]:
    """Return an output as JSON; its bytes, if it is to have some, are appended to `binary`."""
    described: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    if as_bytes:
        binary.append(output.to_bytes())
        described["parameters"] = {SIZE_PARAMETER: len(binary[-1])}
    else:
        described["data"] = output.flat()
    return described
