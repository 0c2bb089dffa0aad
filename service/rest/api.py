"""REST APIs as data: routes, names in errors and error formats; and the request handling that all routes share.

A route reads and validates the body, runs a handler, and renders the document it returns. middleware.py lists all APIs.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any, Literal

import orjson
from attendant_client.types import Operation, RerankResponse, TokenizeResponse, Truncation
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.auth import Access
from service.engine.engine import Engine
from service.error_reasons import Reason
from service.errors import InvalidArgument, MalformedRequest, ServiceError
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.request_log import RequestRecord
from service.rest.bodies import (
    IGNORED_HEADER,
    JSON,
    STRICT_HEADER,
    ForeignModel,
    PromptTokensRequest,
    RequestReader,
    body_schema,
    printable,
    reject_query,
    unknown_field,
    unknown_fields,
    unknown_parameter,
)
from service.rest.responses import json_response
from service.spelling import Spelling

ERRORS = {
    400: "Malformed request.",
    401: "Missing or invalid API key.",
    403: "Host not allowed.",
    404: "Unknown model or prompt.",
    408: "Request body not received in time.",
    413: "Request or input too large.",
    415: "Unsupported media type.",
    422: "Invalid argument.",
    424: "The model has no head for this route.",
    429: "Queue full.",
    500: "Internal error.",
    501: "Not supported by this server.",
    503: "Server is starting, draining or overloaded.",
    504: "Deadline exceeded.",
}
"""Descriptions of a route's errors."""
STATUSES = tuple(status for status in ERRORS if status != 424)
WITHOUT_422 = tuple(status for status in STATUSES if status != 422)
"""The statuses of APIs that use 400 for all invalid content."""
GET_STATUSES = (401, 403, 404, 500, 503)
RETRIED = (429, 503)
MAX_IGNORED = 8
NAME_PARAMETER = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "Name or alias of the model.",
    "schema": {"type": "string"},
}
"""The path parameter `{name:path}`, for OpenAPI."""


Dimensions = Annotated[
    int | None,
    Field(
        description="Number of leading components to return (Matryoshka truncation).", json_schema_extra={"minimum": 1}
    ),
]
TopN = Annotated[
    int | None, Field(description="Number of documents to return, best first.", json_schema_extra={"minimum": 1})
]
"""Types of fields that several APIs have."""


class ErrorDetail(BaseModel):
    """One error."""

    code: str = Field(description="Canonical gRPC code, such as INVALID_ARGUMENT.")
    reason: Reason = Field(description="Stable name of the error for programs.")
    message: str = Field(description="Message for people: field, problem, actual value, limit and remedy.")
    field: str | None = Field(description="Path of the field, such as `inputs[3]`.")
    minimum: int | float | None = Field(description="The least value allowed, if a range applies.")
    maximum: int | float | None = Field(description="The greatest value allowed, if a range applies.")
    actual: int | float | str | None = Field(
        description="The rejected number or size, the type if it is wrong, or the rejected name or enum value."
    )
    request_id: str = Field(description="Request ID, as in the server log.")


class ErrorResponse(BaseModel):
    """The body of every error of the native API."""

    error: ErrorDetail


def native_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return the error document of the native API."""
    names = ("code", "reason", "message", "field", "minimum", "maximum", "actual")
    return {"error": {name: getattr(error, name) for name in names} | {"request_id": request_id}}


def message_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return an error document that contains only the message."""
    return {"error": error.message}


def status_400(error: ServiceError) -> int:
    """Return the HTTP status of an error in an API that uses 400 for all invalid content."""
    return MalformedRequest.http_status if isinstance(error, InvalidArgument) else error.http_status


@dataclass(frozen=True, slots=True)
class Services:
    """Services available to handlers."""

    lifecycle: Lifecycle
    reader: RequestReader
    metrics: Metrics
    access: Access


class Exchange:
    """A handler's view of one request. The handler may set `compress` and add response `headers`."""

    def __init__(self, request: Request, services: Services) -> None:
        self.request = request
        self.services = services
        self.lifecycle = services.lifecycle
        self.compress = True
        self.headers: dict[str, str] = {}
        self.call = Call()

    @property
    def deadline(self) -> float | None:
        """The deadline that the client set, a time.monotonic() reading. Raises `InvalidHeader`."""
        return self.services.reader.deadline(self.request)

    @property
    def record(self) -> RequestRecord:
        """The record of the request."""
        record: RequestRecord = self.request.scope["record"]
        return record

    def find(self, name: str | None = None) -> Engine:
        """Return the engine of a model; raises `NotFound`."""
        return self.lifecycle.models.find(name)

    def truncation(self, body: PromptTokensRequest, engine: Engine) -> Truncation:
        """Return the truncation that a request sets, or the server's default if the client cannot set one."""
        return body.chosen_truncation(engine.info.max_input_tokens) or self.services.reader.settings.truncate

    def ignore(self, names: Iterable[str], model: type[BaseModel]) -> None:
        """List ignored fields and query parameters in a response header. Raises `UnknownField` in strict mode."""
        query = (f"?{name}" for name in self.request.query_params) if self.request.scope["query_string"] else ()
        first = list(islice(chain(names, query), MAX_IGNORED))
        if first and STRICT_HEADER in self.request.headers:
            raise unknown_field(first[0].split("."), model.model_fields)
        if first:
            self.headers[IGNORED_HEADER] = ", ".join(map(printable, first))

    async def run(self, operation: Operation, engine: Engine, request: Any, **options: Any) -> Any:
        """Run an operation and return its response; `options` are fields of `Call`."""
        self.call = Call(self.deadline, **options)
        response = await OPERATIONS[operation].run(engine, request, self.call)
        self.add_metadata(engine, response)
        return response

    def add_metadata(self, engine: Engine, response: Any) -> None:
        """Add headers with the model, its precision, the duration of each stage, and the scoring method."""
        if isinstance(response, TokenizeResponse):
            return
        self.headers |= {
            "x-attendant-model": f"{response.model}@{engine.info.digest}",
            "x-attendant-precision": response.precision,
            "server-timing": self.call.timing.describe(),
        }
        if isinstance(response, RerankResponse):
            self.headers["x-attendant-scored-by"] = response.scored_by


Handler = Callable[[Exchange, Any], Awaitable[Any]]
"""Returns the document of the response, or a response. Without a body, the second argument is None."""
Select = Callable[[Request, Lifecycle, Any], type[BaseModel]]
"""Returns the model that validates a JSON value."""


@dataclass(frozen=True)
class Route:
    """One row of an API.

    Attributes:
        path: The path; parameters in braces.
        operation_id: The name in OpenAPI.
        handler: Returns the document of the response. Its docstring is the description in OpenAPI.
        response: The schema of the response.
        bodies: The models of the body. None: the route uses GET.
        select: Selects one of several `bodies` for a JSON value. None: the first.
        summary: The title in OpenAPI. None: the handler's name.
        tag: Overrides the tag of the API in OpenAPI.
        statuses: The errors that the route can return.
        errors: Schemas of errors. Empty: the API's schema.
        headers: Whether each response names the model.
        names_model: Whether metrics label requests with a model.
        shed: Whether the load shedder may reject requests, because they use only the fast lane: always, unless the
            body contains `layers`, or never.
        limits: Overrides of list limits.
        parameters: Path parameters, for OpenAPI.
        requires_body: False if the body may be empty.
        reads_body: False if the handler reads the body.
        is_probe: Whether the route is a health check, which needs no key, and is neither counted nor logged.
        is_public: Whether the route appears in OpenAPI.
    """

    path: str
    operation_id: str
    handler: Handler
    response: Any
    bodies: tuple[type[BaseModel], ...] | None = None
    select: Select | None = None
    summary: str | None = None
    tag: str | None = None
    statuses: tuple[int, ...] = STATUSES
    errors: tuple[type[BaseModel], ...] = ()
    headers: bool = True
    names_model: bool = True
    shed: Literal["always", "without layers", "never"] = "never"
    limits: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[dict[str, Any], ...] = ()
    requires_body: bool = True
    reads_body: bool = True
    is_probe: bool = False
    is_public: bool = True

    @property
    def method(self) -> str:
        return "GET" if self.bodies is None else "POST"

    @property
    def template(self) -> str:
        """The path in metric labels."""
        return self.path.replace(":path}", "}")


@dataclass(frozen=True)
class Api:
    """An API: its metric label, routes and errors.

    Attributes:
        about: Its description in OpenAPI.
        prefixes: Prefixes of other paths that belong to the API, besides its routes.
        spelling: The names used in errors; None if the handlers spell them.
        error: The schema of its errors.
        render: Returns the error document for an error and a request ID.
        status: Returns the HTTP status of an error.
        descriptions: Descriptions of its errors.
    """

    name: str
    tag: str
    about: str
    routes: Sequence[Route]
    spelling: Spelling | None = None
    prefixes: tuple[str, ...] = ()
    error: type[BaseModel] = ErrorResponse
    render: Callable[[ServiceError, str], Any] = native_error
    status: Callable[[ServiceError], int] = lambda error: error.http_status
    descriptions: Mapping[int, str] = field(default_factory=lambda: ERRORS)

    @property
    def is_foreign(self) -> bool:
        """Whether this is another server's API, whose clients may send fields without effect here."""
        return self.error is not ErrorResponse

    def render_error(self, error: ServiceError, request_id: str) -> tuple[bytes, int]:
        """Return the body and the HTTP status of an error."""
        if self.spelling is not None:
            error.spell(self.spelling)
        return orjson.dumps(self.render(error, request_id)), self.status(error)


def make_router(api: Api, services: Services) -> APIRouter:
    """Return the routes of an API."""
    router = APIRouter()
    for route in api.routes:
        extra = {} if route.bodies is None else body_schema(*route.bodies, required=route.requires_body)
        if route.parameters:
            extra["parameters"] = [*route.parameters, *extra.get("parameters", [])]
        router.add_api_route(
            route.path,
            make_endpoint(api, route, services),
            methods=[route.method],
            tags=[route.tag or api.tag],
            operation_id=route.operation_id,
            summary=route.summary or route.handler.__name__.replace("_", " ").capitalize(),
            description=(route.handler.__doc__ or "").replace("\n    ", "\n"),
            responses=describe_responses(route, api),
            openapi_extra=extra or None,
            include_in_schema=route.is_public,
            response_model=None,
            response_class=JSONResponse if route.response is not None else Response,
        )
    return router


def make_endpoint(api: Api, route: Route, services: Services) -> Callable[[Request], Awaitable[Response]]:
    """Return the function that handles a route's requests."""
    bodies, select, handler, limits, reader = route.bodies, route.select, route.handler, route.limits, services.reader
    is_lenient = api.is_foreign or any(issubclass(body, ForeignModel) for body in bodies or ())

    async def respond(request: Request) -> Response:
        body: Any = None
        if request.scope["query_string"] and (not is_lenient or STRICT_HEADER in request.headers):
            reject_query(request)
        if bodies is not None and route.reads_body:
            read = reader.read if route.requires_body else reader.read_optional
            model: Any = bodies[0] if select is None else partial(select, request, services.lifecycle)
            body = await read(request, model, **limits)
        exchange = Exchange(request, services)
        if is_lenient:
            exchange.ignore(unknown_fields(body), type(body))
        document = await handler(exchange, body)
        if isinstance(document, Response):
            document.headers.update(exchange.headers)
            return document
        return await json_response(request, document, exchange.headers, compress=exchange.compress)

    return respond


def describe_responses(route: Route, api: Api) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route.

    Errors reference a schema by name, because FastAPI builds a serializer for each "model" of each route, 600 in all.
    """
    described: dict[int | str, dict[str, Any]] = {200: {"description": "Success."}}
    if route.response is not None:
        described[200]["model"] = route.response
    references: list[dict[str, Any]] = [
        {"$ref": f"#/components/schemas/{body.__name__}"} for body in route.errors or (api.error,)
    ]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    statuses = {*route.statuses}
    if route.bodies is not None:
        statuses.add(501)  # for transfer encodings other than chunked
    elif not api.is_foreign:
        statuses.add(api.status(unknown_parameter("")))
    for status in sorted(statuses):
        described[status] = {"description": api.descriptions[status], "content": {JSON: {"schema": schema}}}
        if status in RETRIED and not route.is_probe:
            described[status]["headers"] = {
                "Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}
            }
    return described
