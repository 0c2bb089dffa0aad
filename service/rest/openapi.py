"""Additions to the OpenAPI document: bodies, headers, and errors that the server adds to every route."""

from functools import cache
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from service import errors
from service.auth import API_KEY_HEADER
from service.errors import ServiceError
from service.request_log import HEADER, TRACE_HEADER
from service.rest.api import Api, Route
from service.rest.bodies import IGNORED_HEADER, SCHEMA_REFERENCE, STRICT_HEADER, ForeignModel
from service.rest.middleware import APIS, PROBE_PATHS

EXAMPLES: dict[int, ServiceError] = {
    400: errors.MalformedRequest("Request body is not valid JSON", "Correct it."),
    401: errors.Unauthenticated("API key missing or invalid", "Send it as a bearer token.", field="Authorization"),
    403: errors.HostNotAllowed(
        "not allowed", "Add it to ATTENDANT_ALLOWED_HOSTS.", field="Host", actual="vectors.internal"
    ),
    404: errors.NotFound(
        "not found", 'This server serves "a" and "b".', field="model", actual="c", reason="MODEL_NOT_FOUND"
    ),
    405: errors.MethodNotAllowed("Method not allowed for this path", "Use a method listed in the Allow header."),
    408: errors.RequestTimeout("Request body not received in time", "Retry the request.", maximum=15000, unit="ms"),
    409: errors.DefaultModelRequired(
        "default model, cannot be unloaded", "Put another model first in the models file.", field="name", actual="a"
    ),
    413: errors.RequestTooLarge(
        "Request body too large", "Split the request.", actual=3145728, maximum=2097152, unit="bytes"
    ),
    415: errors.UnsupportedMedia("not supported", "Send application/json.", field="Content-Type"),
    422: errors.OutOfRange("out of range", "Use 1 to 384.", field="dimensions", actual=512, minimum=1, maximum=384),
    424: errors.Unsupported("The model is not a reranking model", "Use /similarity."),
    429: errors.QueueFull("Queue full", "Retry later.", retry_after_s=1),
    431: errors.HeadersTooLarge("Request headers too large", "Shorten them.", maximum=65536, unit="bytes"),
    500: errors.Internal(),
    501: errors.Unsupported(
        "not supported", "Use chunked alone.", field="Transfer-Encoding", reason="UNSUPPORTED_TRANSFER_ENCODING"
    ),
    503: errors.Overloaded("Too many connections", "Retry later.", maximum=2048, retry_after_s=1),
    504: errors.DeadlineExceeded("Deadline exceeded", "Retry with a higher timeout."),
}
TAGS = {api.tag: api.about for api in APIS} | {
    "models": "The served models, with their limits.",
    "health": "Probes, which need no key.",
}
"""The groups in the document and in /docs, with descriptions."""
REQUEST_ID = "3b9950e19c38cfea"
ADDED = {405: "Method not allowed.", 431: "Request headers too large."}
"""Errors that every path can return, which routes do not declare."""

_TEXT = {"type": "string"}
_COMMON = {
    HEADER: {"description": "ID of the request, as in the server log: the client's own, or a new one.", "schema": _TEXT}
}
_STATUS_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Bearer.", "schema": _TEXT}},
    405: {"Allow": {"description": "The methods of the path.", "schema": _TEXT}},
}
INFERENCE_HEADERS = {
    "x-attendant-model": {"description": "Name and digest of the model.", "schema": _TEXT},
    "x-attendant-precision": {"description": "Precision of inference.", "schema": _TEXT},
    "server-timing": {"description": "Milliseconds of each stage.", "schema": _TEXT},
}
SCORED_BY_HEADER = {
    "x-attendant-scored-by": {
        "description": "What computed the scores: cross_encoder, late_interaction, sparse or embeddings.",
        "schema": _TEXT,
    }
}
_IGNORED_HEADER = {
    IGNORED_HEADER: {
        "description": "Names of up to eight fields and query parameters without effect.",
        "schema": _TEXT,
    }
}
_STRICT_HEADER = {
    "name": STRICT_HEADER, "in": "header", "required": False, "schema": _TEXT,
    "description": "With any value, fields and query parameters that have no effect here are an error.",
}  # fmt: skip
_REQUEST_HEADERS = [
    {
        "name": HEADER, "in": "header", "required": False, "schema": _TEXT,
        "description": "ID of the request in logs and in the response: up to 128 letters, digits, `.`, `_` and `-`.",
    },
    {
        "name": TRACE_HEADER, "in": "header", "required": False, "schema": _TEXT,
        "description": "W3C Trace Context, for logs; returned with the response.",
    },
]  # fmt: skip


def complete_document(app: FastAPI, root_path: str = "", *, has_keys: bool = True) -> None:
    """Add the bodies to FastAPI's document, which it does not know because routes read and render them.

    `root_path` is the path prefix for clients; `has_keys` tells whether requests need a key.
    """
    fastapi_document = app.openapi
    routes = {route.operation_id: (api, route) for api in APIS for route in api.routes}
    requests = {body: None for _, route in routes.values() for body in route.bodies or ()}
    errors = {body: None for api, route in routes.values() for body in (api.error, *route.errors)}

    @cache  # FastAPI returns the same object on every call
    def openapi() -> dict[str, Any]:
        _, schemas = models_json_schema(
            [*((body, "validation") for body in requests), *((body, "serialization") for body in errors)],
            ref_template=SCHEMA_REFERENCE,
        )
        document = fastapi_document()
        if root_path:
            document["servers"] = [{"url": root_path}]
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas["$defs"])
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's schema, returned by no route
            components["schemas"].pop(name, None)
        if has_keys:
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER},
            }
        examples = orjson.loads((Path(__file__).parent / "examples.json").read_bytes())
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if has_keys:
                    operation["security"] = [] if path in PROBE_PATHS else [{"bearer": []}, {"header": []}]
                if operation["operationId"] in examples:
                    content = operation["requestBody"]["content"]["application/json"]
                    content["example"] = examples[operation["operationId"]]
                if operation["operationId"] in routes:
                    _complete_responses(operation, *routes[operation["operationId"]])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_responses(operation: dict[str, Any], api: Api, route: Route) -> None:
    """Remove FastAPI's response for invalid parameters; add headers, common errors and error examples."""
    described = operation["responses"]
    if "HTTPValidationError" in str(described.get("422")):
        del described["422"]
    rejected = described.get("401")
    if rejected is None:  # a probe
        return
    operation["parameters"] = [*operation.get("parameters", []), *_REQUEST_HEADERS]
    schema = rejected["content"]["application/json"]["schema"]
    for status, description in ADDED.items():
        content = {"application/json": {"schema": schema}}
        described.setdefault(str(status), {"description": description, "content": content})
    for status, response in described.items():
        headers = response.setdefault("headers", {})
        headers.update(_COMMON | _STATUS_HEADERS.get(int(status), {}))
        if int(status) in EXAMPLES:
            example, _ = api.render_error(EXAMPLES[int(status)], REQUEST_ID)
            response["content"]["application/json"]["example"] = orjson.loads(example)
    if route.headers and route.bodies is not None:
        described["200"]["headers"].update(INFERENCE_HEADERS)
    if route.bodies is not None and any(issubclass(body, ForeignModel) for body in route.bodies):
        operation["parameters"].append(_STRICT_HEADER)
        described["200"]["headers"].update(_IGNORED_HEADER)
    if "rerank" in route.operation_id:
        described["200"]["headers"].update(SCORED_BY_HEADER)
