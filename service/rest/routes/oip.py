"""The Open Inference Protocol, version 2: health, metadata, inference, statistics and the list of models."""

import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.types import DecoratedCallable
from starlette.exceptions import HTTPException

from service.auth import Access
from service.engine.engine import Engine
from service.errors import NotFound, Unavailable
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.oip import models as oip_models
from service.oip.inference import infer
from service.oip.models import (
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
from service.oip.outputs import ATTENTION
from service.rest.codec import body_schema
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers
from service.rest.routes.oip_bodies import (
    IndexBody,
    InferBody,
    LoadBody,
    OipConfigBody,
    OipErrorBody,
    OipIndexEntryBody,
    OipInferResponseBody,
    OipLiveBody,
    OipLoadBody,
    OipModelBody,
    OipModelReadyBody,
    OipReadyBody,
    OipServerBody,
    OipStatisticsBody,
)
from service.rest.routes.oip_conversion import (
    LENGTH_HEADER,
    MEDIA_TYPES,
    infer_request,
    infer_response,
    parse_body,
    split_body,
)
from service.rest.schemas import GET_ERRORS, OIP_ERRORS, responses

API = oip_models.API
ROOT_PATH = "/v2"
PREFIX = f"{ROOT_PATH}/"
MODEL_PATH = "/v2/models/{name:path}"
VERSION_PATH = "/v2/models/{name:path}/versions/{version}"
INFER = "/infer"
READS = ("/ready", "/config", "/stats")
VERSION_SUFFIX = f"/versions/{VERSION}"
INFER_PATH = re.compile(rf"/v2/models/(?P<name>.+?)(?P<version>{VERSION_SUFFIX})?{INFER}")
ATTENTION_NAME = f'"{ATTENTION}"'.encode()
"""The name of the output in JSON. Quotes within strings are escaped, so no text in JSON contains it."""
ERRORS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 501, 503, 504)
LOAD_ERRORS = (400, 401, 403, 404, 408, 409, 413, 415, 500, 501, 503)
INDEX_ERRORS = (400, 401, 403, 408, 413, 415, 500, 503)
LOAD_PATH = re.compile(r"/v2/repository/models/.+/(load|unload)")
NAME_PARAMETER = {
    "name": "name", "in": "path", "required": True, "description": "Name or alias of the model.",
    "schema": {"type": "string"},
}  # fmt: skip
VERSION_PARAMETER = {
    "name": "version", "in": "path", "required": True, "description": "Version of the model: `1`.",
    "schema": {"type": "string"},
}  # fmt: skip
LENGTH_PARAMETER = {
    "name": LENGTH_HEADER,
    "in": "header",
    "description": "Size of the JSON at the start of the body, if bytes of tensors follow it.",
    "schema": {"type": "integer", "minimum": 0},
}

Decorator = Callable[[DecoratedCallable], DecoratedCallable]


def make_router(lifecycle: Lifecycle, reader: RequestReader, metrics: Metrics, access: Access) -> APIRouter:
    """Return the routes of this API. Of several matching routes the first one applies, so the longest come first."""
    router = APIRouter(tags=["oip"])
    add_probes(router, lifecycle)
    add_server_routes(router, lifecycle, reader, metrics)
    add_load(router, lifecycle, reader, access)
    add_infer(router, lifecycle, reader)
    add_model_routes(router, lifecycle, metrics)
    return router


def get(router: APIRouter, suffix: str, name: str, model: Any) -> Decorator[Any]:
    """Return a decorator for a route of a model, with and without a version."""
    described = responses(model, OipErrorBody, GET_ERRORS, OIP_ERRORS)

    def add(endpoint: DecoratedCallable) -> DecoratedCallable:
        for path, middle, parameters in model_paths(suffix):
            router.get(
                path, operation_id=f"oip_model{middle}_{name}", responses=described,
                openapi_extra={"parameters": parameters},
            )(endpoint)  # fmt: skip
        return endpoint

    return add


def model_paths(suffix: str) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the paths of a route of a model, with a part of their names, and their parameters."""
    return [
        (VERSION_PATH + suffix, "_version", [NAME_PARAMETER, VERSION_PARAMETER]),
        (MODEL_PATH + suffix, "", [NAME_PARAMETER]),
    ]


def add_probes(router: APIRouter, lifecycle: Lifecycle) -> None:
    """Add the health checks, whose status is 200 or 503."""

    @router.get("/v2/health/live", operation_id="oip_live", responses=responses(OipLiveBody, OipLiveBody, (503,)))
    async def live(request: Request) -> Response:
        """Return 200 unless the model failed to load; also while loading and draining."""
        response = await json_response(request, {"live": lifecycle.alive})
        response.status_code = 200 if lifecycle.alive else 503
        return response

    @router.get("/v2/health/ready", operation_id="oip_ready", responses=responses(OipReadyBody, OipReadyBody, (503,)))
    async def ready(request: Request) -> Response:
        """Return 200 while requests are accepted, otherwise 503."""
        response = await json_response(request, {"ready": lifecycle.ready})
        response.status_code = 200 if lifecycle.ready else 503
        return response


def add_server_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader, metrics: Metrics) -> None:
    """Add the routes that name no model."""
    index_schema = body_schema(IndexBody)
    index_schema["requestBody"]["required"] = False

    @router.get(
        ROOT_PATH,
        operation_id="oip_server_metadata",
        responses=responses(OipServerBody, OipErrorBody, (401, 403, 500), OIP_ERRORS),
    )
    async def server_metadata(request: Request) -> Response:
        """Return the name, version and protocol extensions of the server."""
        return await json_response(request, describe_server())

    @router.get(
        "/v2/models/stats",
        operation_id="oip_statistics",
        responses=responses(OipStatisticsBody, OipErrorBody, GET_ERRORS, OIP_ERRORS),
    )
    async def statistics(request: Request) -> Response:
        """Return counts and durations of all models since the start of the server, for requests of all APIs."""
        return await json_response(request, describe_statistics(lifecycle.models.infos, metrics))

    @router.post(
        "/v2/repository/index",
        operation_id="oip_repository_index",
        responses=responses(list[OipIndexEntryBody], OipErrorBody, INDEX_ERRORS, OIP_ERRORS),
        openapi_extra=index_schema,
    )
    async def repository_index(request: Request) -> Response:
        """Return the names and aliases of the served models, and the unloaded models of the models file."""
        body = await reader.read_optional(request, IndexBody)
        index = describe_repository(lifecycle.models, lifecycle.unserved, only_ready=bool(body.ready))
        return await json_response(request, index)


def add_load(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader, access: Access) -> None:
    """Add the routes that change the served models. They need an admin key."""

    async def check(request: Request, operation: str, parameters: Sequence[str] = ()) -> str:
        """Return the name of the admin who sent the request."""
        admin = access.check_admin(dict(request.scope["headers"]), operation)
        body = await reader.read_optional(request, LoadBody)
        check_parameters(body.parameters or {}, parameters)
        return admin

    described = responses(OipLoadBody, OipErrorBody, LOAD_ERRORS, OIP_ERRORS)
    schema = body_schema(LoadBody)
    schema["requestBody"]["required"] = False
    schema["parameters"] = [NAME_PARAMETER, *schema.get("parameters", [])]

    @router.post(
        "/v2/repository/models/{name:path}/load", operation_id="oip_load", responses=described, openapi_extra=schema
    )
    async def load(request: Request) -> Response:
        """Serve a model of the models file, with what the file and the artifact contain now. Needs an admin key."""
        admin = await check(request, "load")
        await lifecycle.repository.load(request.path_params["name"], admin)
        return await json_response(request, {})

    @router.post(
        "/v2/repository/models/{name:path}/unload", operation_id="oip_unload", responses=described, openapi_extra=schema
    )
    async def unload(request: Request) -> Response:
        """Stop serving a model of the models file, once its requests are finished. Needs an admin key."""
        admin = await check(request, "unload", UNLOAD_PARAMETERS)
        await lifecycle.repository.unload(request.path_params["name"], admin)
        return await json_response(request, {})


def add_infer(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> None:
    """Add the inference routes."""

    async def infer_model(request: Request) -> Response:
        """Run a model on texts or token ids. Tensors are JSON, or little-endian bytes after the JSON."""
        infos = lifecycle.models.infos
        content = await reader.read_bytes(request, MEDIA_TYPES)
        length = request.headers.get(LENGTH_HEADER)
        document, binary = split_body(content, length)
        body = parse_body(document, infos, has_length=length is not None)
        engine = model_of(request, lifecycle)
        work, flags = infer_request(body, binary, reader.deadline(request))
        response = await infer(engine, work)
        return await infer_response(request, body, response, flags, metadata_headers(response, engine.info.digest))

    described = responses(OipInferResponseBody, OipErrorBody, ERRORS, OIP_ERRORS)
    for path, middle, parameters in model_paths(INFER):
        schema = body_schema(InferBody)
        schema["parameters"] = [*parameters, *schema["parameters"], LENGTH_PARAMETER]
        router.post(
            path, operation_id=f"oip_model{middle}_infer", responses=described, openapi_extra=schema
        )(infer_model)  # fmt: skip


def add_model_routes(router: APIRouter, lifecycle: Lifecycle, metrics: Metrics) -> None:
    """Add the routes that describe a model."""

    @get(router, "/ready", "ready", OipModelReadyBody)
    async def model_ready(request: Request) -> Response:
        """Return 200 while requests for a model are accepted, otherwise an error."""
        name = model_of(request, lifecycle).info.name
        if not lifecycle.ready:
            raise Unavailable(f"Server is not ready (status {lifecycle.status.value})", "Retry later.")
        return await json_response(request, {"name": name, "ready": True})

    @get(router, "/config", "config", OipConfigBody)
    async def model_config(request: Request) -> Response:
        """Return the tensors of a model in the format of Triton's model configuration."""
        return await json_response(request, describe_config(model_of(request, lifecycle).info))

    @get(router, "/stats", "statistics", OipStatisticsBody)
    async def model_statistics(request: Request) -> Response:
        """Return counts and durations of a model since the start of the server, for requests of all APIs."""
        return await json_response(request, describe_statistics([model_of(request, lifecycle).info], metrics))

    @get(router, "", "metadata", OipModelBody)
    async def model_metadata(request: Request) -> Response:
        """Return the tensors that a model accepts and returns."""
        if request.path_params["name"].endswith(INFER):  # the name of a model may contain slashes
            raise HTTPException(405, headers={"Allow": "POST"})
        return await json_response(request, describe_model(model_of(request, lifecycle).info))

    @router.post(MODEL_PATH, include_in_schema=False)
    async def unknown_path(request: Request) -> Response:
        """Fail: under a model's path, only `INFER` supports POST."""
        name = request.path_params["name"]
        if not name.endswith((*READS, VERSION_SUFFIX)):
            check_path(name, lifecycle)
        raise HTTPException(405, headers={"Allow": "GET"})


def parse_infer_path(path: str) -> tuple[str, str]:
    """Return the route of an inference request and the name of its model; two empty strings for another path."""
    match = INFER_PATH.fullmatch(path)
    if match is None:
        return "", ""
    template = (VERSION_PATH if match["version"] else MODEL_PATH) + INFER
    return template.replace(":path}", "}"), unquote(match["name"])


def is_for_fast_lane(body: bytes) -> bool:
    """Return whether an uncompressed body asks for no maps, without parsing it."""
    return ATTENTION_NAME not in body


def check_path(name: str, lifecycle: Lifecycle) -> None:
    """Raise `NotFound` for the path of a served model with an unknown end; names of models may contain slashes."""
    names = lifecycle.models.names
    if name not in names and any(name.startswith(f"{served}/") for served in names):
        known = ", ".join(suffix.removeprefix("/") for suffix in (INFER, *READS))
        raise NotFound("Path not found", f"The paths under that of a model are {known} and versions/{VERSION}.")


def model_of(request: Request, lifecycle: Lifecycle) -> Engine:
    """Return the engine of the model in the path. Raises `NotFound`, also for an unknown path under the model's."""
    check_path(request.path_params["name"], lifecycle)
    return find_model(lifecycle.models, request.path_params["name"], request.path_params.get("version", ""))
