"""The Open Inference Protocol, version 2: health, metadata, inference, statistics and the list of models.

With the binary data extension, tensors are either JSON or little-endian bytes after the JSON.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from attendant_client.types import ModelInfo
from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from service.engine.engine import Engine
from service.errors import (
    InvalidArgument,
    InvalidHeader,
    MalformedRequest,
    NotFound,
    OutOfRange,
    ServiceError,
    Unavailable,
    WrongShape,
    WrongType,
    json_type,
    missing_or_conflicting,
)
from service.lifecycle import Lifecycle
from service.oip.inference import ATTENTION, MAX_TENSORS, InferRequest, InferResponse, RequestedOutput, infer
from service.oip.models import (
    NAME,
    UNLOAD_PARAMETERS,
    VERSION,
    check_parameters,
    describe_config,
    describe_model,
    describe_repository,
    describe_server,
    describe_statistics,
    find_model,
)
from service.oip.tensors import MAX_AXES, InputTensor, OutputTensor
from service.operations.inputs import Wire, item_limits
from service.rest.api import (
    ERRORS,
    GET_STATUSES,
    NAME_PARAMETER,
    WITHOUT_422,
    Api,
    Exchange,
    Handler,
    Route,
    message_error,
)
from service.rest.bodies import JSON, FirstError, ForeignModel, at_most, parse_json, unknown_fields
from service.rest.responses import PART_BYTES, accepted_codings, encoded_response, json_response, render

PREFIX = "/v2"
MODEL_PATH = "/v2/models/{name:path}"
VERSION_SUFFIX = f"/versions/{VERSION}"
INFER = "/infer"
READS = ("/ready", "/config", "/stats")
INFER_PATH = re.compile(rf"/v2/models/(?P<name>.+?)(?P<version>{VERSION_SUFFIX})?{INFER}")
LOAD_PATH = re.compile(r"/v2/repository/models/.+/(load|unload)")
ATTENTION_NAME = f'"{ATTENTION}"'.encode()
"""The output's name in JSON. Quotes within strings are escaped, so no text in JSON contains it."""
BINARY = "application/octet-stream"
LENGTH_HEADER = "Inference-Header-Content-Length"
"""Header with the size of the JSON at the start of a body. Tensor bytes follow the JSON."""
SIZE_PARAMETER, BINARY_PARAMETER, DEFAULT_PARAMETER = "binary_data_size", "binary_data", "binary_data_output"
MAX_DIGITS = 18


# Requests and responses


Datatype = Literal["BYTES", "INT64", "INT32", "BOOL", "FP32"]


class OipInput(ForeignModel):
    """An input tensor."""

    name: str = Field(description="`text`, `input_ids` or `attention_mask`.")
    shape: Annotated[list[int], FirstError(), at_most("axes")] = Field(description="Sizes of the axes.")
    datatype: str = Field(description="Element type.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data_size`: number of bytes after the JSON that are the elements."
    )
    data: Any = Field(None, description="Elements in row-major order, flat or nested.")


class OipRequestedOutput(ForeignModel):
    """An output to return."""

    name: str = Field(description="`pooled`, `tokens`, `token_counts` or `attention`.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data`: whether the elements are to follow the JSON as bytes."
    )


class OipInferRequest(ForeignModel):
    """The body of POST /v2/models/{name}/infer."""

    id: str | None = Field(None, description="Identifier that the response repeats.")
    parameters: dict[str, Any] | None = Field(None, description="Options, such as `normalize` or `truncation`.")
    inputs: Annotated[list[OipInput], FirstError(), at_most("tensors")] = Field(description="Input tensors.")
    outputs: Annotated[list[OipRequestedOutput], FirstError(), at_most("tensors")] | None = Field(
        None, description="Outputs to return. null is `pooled`."
    )


class OipIndexRequest(ForeignModel):
    """The optional body of POST /v2/repository/index."""

    ready: bool | None = Field(None, description="Whether to return the models that are ready, and no others.")


class OipLoadRequest(ForeignModel):
    """The optional body of a request to load or unload a model."""

    parameters: dict[str, Any] | None = Field(
        None, description="Only `unload_dependents`, which has no effect, is supported, for unloading."
    )


class OipErrorResponse(BaseModel):
    """The body of every error of the Open Inference Protocol."""

    error: str = Field(description="Message for people.")


class OipLiveResponse(BaseModel):
    """The response of GET /v2/health/live."""

    live: bool


class OipReadyResponse(BaseModel):
    """The response of GET /v2/health/ready."""

    ready: bool


class OipModelReadyResponse(BaseModel):
    """The response of GET /v2/models/{name}/ready."""

    name: str = Field(description="Name of the served model.")
    ready: bool


class OipServerResponse(BaseModel):
    """The response of GET /v2."""

    name: str = Field(description="Name of the server.")
    version: str = Field(description="Version of the server.")
    extensions: list[str] = Field(description="Extensions of the protocol that the server has.")


class OipTensor(BaseModel):
    """An input or output of a model."""

    name: str
    datatype: Datatype
    shape: list[int] = Field(description="Sizes of the axes; -1 for a size that depends on the request.")


class OipModelResponse(BaseModel):
    """The response of GET /v2/models/{name}."""

    name: str = Field(description="Name of the served model.")
    versions: list[str] = Field(description='Always `["1"]`.')
    platform: str = Field(description="Software that runs the model.")
    inputs: list[OipTensor] = Field(description="Inputs that a request may have.")
    outputs: list[OipTensor] = Field(description="Outputs that a request may select.")


class OipConfigOutput(BaseModel):
    """An output in a model configuration."""

    name: str
    data_type: str
    dims: list[int]


class OipConfigInput(OipConfigOutput):
    """An input in a model configuration."""

    optional: bool


class OipTransactionPolicy(BaseModel):
    """How responses relate to requests."""

    decoupled: bool


class OipConfigResponse(BaseModel):
    """The response of GET /v2/models/{name}/config: a part of Triton's model configuration."""

    name: str = Field(description="Name of the served model.")
    platform: str = Field(description="Software that runs the model.")
    backend: str = Field(description="Software that runs the model.")
    max_batch_size: int = Field(description="0: the sizes of the axes include the number of inputs.")
    input: list[OipConfigInput]
    output: list[OipConfigOutput]
    model_transaction_policy: OipTransactionPolicy


class OipDuration(BaseModel):
    """A number of events and their total duration."""

    count: int
    ns: int | None = Field(None, description="Nanoseconds; absent if they are not measured.")


class OipStages(BaseModel):
    """The stages of the requests of all APIs."""

    success: OipDuration = Field(description="Requests with a result.")
    fail: OipDuration = Field(description="Requests that failed with an error of the server.")
    queue: OipDuration = Field(description="Waits for the first batch, per request.")
    compute_input: OipDuration = Field(description="Tokenization, per request.")
    compute_infer: OipDuration = Field(description="Inference, per batch.")
    compute_output: OipDuration = Field(description="Postprocessing, per request.")


class OipModelStatistics(BaseModel):
    """The statistics of one model."""

    name: str = Field(description="Name of the served model.")
    version: str = Field(description="Always `1`.")
    inference_count: int = Field(description="Number of inputs that the model has run.")
    execution_count: int = Field(description="Number of batches that the model has run.")
    inference_stats: OipStages


class OipStatisticsResponse(BaseModel):
    """The response of GET /v2/models/stats."""

    model_stats: list[OipModelStatistics]


class OipIndexEntry(BaseModel):
    """A model."""

    name: str = Field(description="Name of the model, or an alias of a served one.")
    version: str = Field(description="Always `1`.")
    state: Literal["READY", "LOADING", "UNAVAILABLE"] = Field(description="`READY` if requests are accepted.")
    reason: str = Field(description="Why it is not ready.")


class OipLoadResponse(BaseModel):
    """The response of a request to load or unload a model: an empty object."""


class OipOutput(BaseModel):
    """An output tensor."""

    name: str
    datatype: Datatype
    shape: list[int] = Field(description="Sizes of the axes.")
    parameters: dict[str, int] | None = Field(
        None, description="`binary_data_size`: number of bytes after the JSON that are the elements."
    )
    data: list[float] | None = Field(None, description="Elements in row-major order, flat.")


class OipInferResponse(BaseModel):
    """The response of POST /v2/models/{name}/infer."""

    model_name: str = Field(description="Name of the served model.")
    model_version: str = Field(description="Always `1`.")
    id: str | None = Field(None, description="Identifier of the request.")
    outputs: list[OipOutput] = Field(description="Outputs in the order of the request.")


# Tensors


def split_body(body: bytes | bytearray, length: str | None) -> tuple[bytes | bytearray, bytes]:
    """Split a body into JSON and the bytes after it; `length` is the value of `LENGTH_HEADER`."""
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


def parse_body(document: bytes | bytearray, infos: Sequence[ModelInfo], *, has_length: bool) -> OipInferRequest:
    """Parse the JSON of a request; `has_length` tells whether the request contains a `LENGTH_HEADER`."""
    try:
        return parse_json(document, OipInferRequest, item_limits(infos) | {"tensors": MAX_TENSORS, "axes": MAX_AXES})
    except MalformedRequest:
        if has_length or SIZE_PARAMETER.encode() not in document:
            raise
        problem, remedy = f"missing, but the body has {SIZE_PARAMETER}", "Send the size of the JSON."
        raise InvalidHeader(problem, remedy, field=LENGTH_HEADER) from None


def infer_request(body: OipInferRequest, binary: bytes, deadline: float | None) -> tuple[InferRequest, list[bool]]:
    """Return the request, and for each output whether to send its elements as bytes after the JSON."""
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


def _tensors(inputs: Sequence[OipInput], binary: bytes) -> list[InputTensor]:
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
    request: Request, body: OipInferRequest, response: InferResponse, flags: Sequence[bool], headers: dict[str, str]
) -> Response:
    """Return the outputs as JSON or, where `flags` is set, as bytes after the JSON."""
    binary: list[bytes] = []
    outputs = [_output(output, flag, binary) for output, flag in zip(response.outputs, flags, strict=True)]
    document: dict[str, Any] = {"model_name": response.first.model, "model_version": VERSION, "outputs": outputs}
    if body.id is not None:
        document["id"] = body.id
    parts = await render(document)
    if not binary:
        return await encoded_response(request, parts, JSON, headers, compress=True)
    headers = {**headers, LENGTH_HEADER: str(sum(map(len, parts)))}
    for data in binary:
        parts += [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    # Floats shrink by only a tenth, and compression takes longer than inference. HTTP libraries accept several codings
    # by default; a client that names a single coding asks for compression.
    asked = len(accepted_codings(request)) == 1
    return await encoded_response(request, parts, BINARY, headers, compress=asked)


def _output(output: OutputTensor, as_bytes: bool, binary: list[bytes]) -> dict[str, Any]:
    """Return an output as JSON; with `as_bytes`, append its elements to `binary` instead."""
    described: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    if as_bytes:
        binary.append(output.to_bytes())
        described["parameters"] = {SIZE_PARAMETER: len(binary[-1])}
    else:
        described["data"] = output.values.reshape(-1)
    return described


# Routes


async def live(exchange: Exchange, body: None) -> Any:
    """Return 200 unless the model failed to load; also while loading and draining."""
    return await _probe(exchange, "live", exchange.lifecycle.alive)


async def ready(exchange: Exchange, body: None) -> Any:
    """Return 200 while requests are accepted, otherwise 503."""
    return await _probe(exchange, "ready", exchange.lifecycle.ready)


async def _probe(exchange: Exchange, name: str, passed: bool) -> Response:
    response = await json_response(exchange.request, {name: passed})
    response.status_code = 200 if passed else 503
    return response


async def server_metadata(exchange: Exchange, body: None) -> Any:
    """Return the name, version and protocol extensions of the server."""
    return describe_server()


async def statistics(exchange: Exchange, body: None) -> Any:
    """Return counts and durations of all models since the start of the server, for requests of all APIs."""
    return await describe_statistics(exchange.lifecycle.models.infos, exchange.services.metrics)


async def repository_index(exchange: Exchange, body: OipIndexRequest) -> Any:
    """Return the names and aliases of the served models, and the unloaded models of the models file."""
    lifecycle = exchange.lifecycle
    return describe_repository(lifecycle.models, lifecycle.unserved, only_ready=bool(body.ready))


async def load(exchange: Exchange, body: None) -> Any:
    """Serve a model of the models file, with what the file and the artifact contain now. Needs an admin key."""
    admin = await _check_admin(exchange, "load")
    await exchange.lifecycle.repository.load(exchange.request.path_params["name"], admin)
    return {}


async def unload(exchange: Exchange, body: None) -> Any:
    """Stop serving a model of the models file, once its requests are finished. Needs an admin key."""
    admin = await _check_admin(exchange, "unload", UNLOAD_PARAMETERS)
    await exchange.lifecycle.repository.unload(exchange.request.path_params["name"], admin)
    return {}


async def _check_admin(exchange: Exchange, operation: str, parameters: Sequence[str] = ()) -> str:
    """Return the name of the admin who sent the request; the body is read after that."""
    admin = exchange.services.access.check_admin(dict(exchange.request.scope["headers"]), operation)
    exchange.record.is_known = True
    body = await exchange.services.reader.read_optional(exchange.request, OipLoadRequest)
    exchange.ignore(unknown_fields(body), OipLoadRequest)
    check_parameters(body.parameters or {}, parameters)
    return admin


async def infer_model(exchange: Exchange, body: None) -> Any:
    """Run a model on texts or token ids. Tensors are JSON, or little-endian bytes after the JSON."""
    infos = exchange.lifecycle.models.infos
    content = await exchange.services.reader.read_bytes(exchange.request, (JSON, BINARY))
    length = exchange.request.headers.get(LENGTH_HEADER)
    document, binary = split_body(content, length)
    parsed = parse_body(document, infos, has_length=length is not None)
    exchange.ignore(unknown_fields(parsed), OipInferRequest)
    engine = _model_of(exchange)
    request, flags = infer_request(parsed, binary, exchange.deadline)
    response = await infer(engine, request)
    exchange.call.timing = response.timing
    exchange.add_metadata(engine, response.first)
    return await infer_response(exchange.request, parsed, response, flags, exchange.headers)


async def model_ready(exchange: Exchange, body: None) -> Any:
    """Return 200 while requests for a model are accepted, otherwise an error."""
    name, lifecycle = _model_of(exchange).info.name, exchange.lifecycle
    if not lifecycle.ready:
        raise Unavailable(f"Server is not ready (status {lifecycle.status.value})", "Retry later.")
    return {"name": name, "ready": True}


async def model_config(exchange: Exchange, body: None) -> Any:
    """Return the tensors of a model in the format of Triton's model configuration."""
    return describe_config(_model_of(exchange).info)


async def model_statistics(exchange: Exchange, body: None) -> Any:
    """Return counts and durations of a model since the start of the server, for requests of all APIs."""
    return await describe_statistics([_model_of(exchange).info], exchange.services.metrics)


async def model_metadata(exchange: Exchange, body: None) -> Any:
    """Return the tensors that a model accepts and returns."""
    if exchange.request.path_params["name"].endswith(INFER):  # model names may contain slashes
        raise HTTPException(405, headers={"Allow": "POST"})
    return describe_model(_model_of(exchange).info)


async def unknown_path(exchange: Exchange, body: None) -> Any:
    """Fail: under a model's path, only `INFER` supports POST."""
    name = exchange.request.path_params["name"]
    if not name.endswith((*READS, VERSION_SUFFIX)):
        check_path(name, exchange.lifecycle)
    raise HTTPException(405, headers={"Allow": "GET"})


def parse_infer_path(path: str) -> tuple[str, str]:
    """Return the route and model name of an inference request's path; two empty strings for any other path."""
    match = INFER_PATH.fullmatch(path)
    if match is None:
        return "", ""
    version = "/versions/{version}" if match["version"] else ""
    return f"/v2/models/{{name}}{version}{INFER}", match["name"]


def is_for_fast_lane(body: bytes) -> bool:
    """Return whether an uncompressed body requests no attention maps, without parsing it."""
    return ATTENTION_NAME not in body


def check_path(name: str, lifecycle: Lifecycle) -> None:
    """Raise `NotFound` for a served model's path with an unknown ending. Model names may contain slashes."""
    names = lifecycle.models.names
    if name not in names and any(name.startswith(f"{served}/") for served in names):
        known = ", ".join(suffix.removeprefix("/") for suffix in (INFER, *READS))
        raise NotFound("Path not found", f"The paths under that of a model are {known} and versions/{VERSION}.")


def _model_of(exchange: Exchange) -> Engine:
    """Return the engine of the model in the path. Raises `NotFound` for an unknown model or path."""
    parameters, lifecycle = exchange.request.path_params, exchange.lifecycle
    check_path(parameters["name"], lifecycle)
    return find_model(lifecycle.models, parameters["name"], parameters.get("version", ""))


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error; the protocol uses 400 for all invalid content."""
    is_invalid = isinstance(error, InvalidArgument) or error.reason == "PROMPT_NOT_FOUND"
    return MalformedRequest.http_status if is_invalid else error.http_status


def _parameter(name: str, where: str, description: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "description": description, "schema": {"type": kind} | more}


VERSION_PARAMETER = _parameter("version", "path", "Version of the model: `1`.") | {"required": True}
LENGTH_PARAMETER = _parameter(
    LENGTH_HEADER, "header", "Size of the JSON at the start of the body, if bytes of tensors follow it.", "integer",
    minimum=0,
)  # fmt: skip


def _model_routes(suffix: str, name: str, handler: Handler, response: Any, **more: Any) -> list[Route]:
    """Return the routes of a model, with and without a version."""
    parameters = more.pop("parameters", ())
    more = dict[str, Any](statuses=GET_STATUSES, headers="bodies" in more) | more
    version = Route(
        f"{MODEL_PATH}/versions/{{version}}{suffix}", f"oip_model_version_{name}", handler, response,
        parameters=(NAME_PARAMETER, VERSION_PARAMETER, *parameters), **more,
    )  # fmt: skip
    plain = Route(
        f"{MODEL_PATH}{suffix}",
        f"oip_model_{name}",
        handler,
        response,
        parameters=(NAME_PARAMETER, *parameters),
        **more,
    )
    return [version, plain]


def _load_route(name: str, handler: Handler) -> Route:
    return Route(
        f"/v2/repository/models/{{name:path}}/{name}", f"oip_{name}", handler, OipLoadResponse, (OipLoadRequest,),
        statuses=LOAD_STATUSES, parameters=(NAME_PARAMETER,), headers=False, reads_body=False, requires_body=False,
    )  # fmt: skip


LOAD_STATUSES = (400, 401, 403, 404, 408, 409, 413, 415, 500, 501, 503)
INDEX_STATUSES = (400, 401, 403, 408, 413, 415, 500, 503)

API = Api(
    NAME,
    "oip",
    "The Open Inference Protocol, version 2, as KServe's and Triton's clients speak it.",
    (  # the first matching route applies, so the longest paths come first
        Route(
            "/v2/health/live", "oip_live", live, OipLiveResponse, errors=(OipLiveResponse,), statuses=(503,),
            is_probe=True,
        ),
        Route(
            "/v2/health/ready", "oip_ready", ready, OipReadyResponse, errors=(OipReadyResponse,), statuses=(503,),
            is_probe=True,
        ),
        Route(
            PREFIX, "oip_server_metadata", server_metadata, OipServerResponse, statuses=(401, 403, 500), headers=False
        ),
        Route(
            "/v2/models/stats", "oip_statistics", statistics, OipStatisticsResponse, statuses=GET_STATUSES,
            headers=False,
        ),
        Route(
            "/v2/repository/index", "oip_repository_index", repository_index, list[OipIndexEntry], (OipIndexRequest,),
            statuses=INDEX_STATUSES, headers=False, requires_body=False,
        ),
        _load_route("load", load),
        _load_route("unload", unload),
        *_model_routes(
            INFER, "infer", infer_model, OipInferResponse, bodies=(OipInferRequest,), statuses=WITHOUT_422,
            parameters=(LENGTH_PARAMETER,), reads_body=False,
        ),
        *_model_routes("/ready", "ready", model_ready, OipModelReadyResponse),
        *_model_routes("/config", "config", model_config, OipConfigResponse),
        *_model_routes("/stats", "statistics", model_statistics, OipStatisticsResponse),
        *_model_routes("", "metadata", model_metadata, OipModelResponse),
        Route(MODEL_PATH, "oip_unknown_path", unknown_path, None, (OipLoadRequest,), reads_body=False, is_public=False),
    ),
    prefixes=(f"{PREFIX}/",),
    error=OipErrorResponse,
    render=message_error,
    status=http_status,
    descriptions=ERRORS
    | {
        400: "Malformed request, or invalid argument.",
        404: "Unknown model or version.",
        409: "The model cannot be loaded, or is the default model.",
    },
)  # fmt: skip
