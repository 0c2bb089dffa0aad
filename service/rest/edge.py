"""Round every REST route: a request id, the key, the metrics, and errors as their door spells them.

FastAPI describes the routes. A route without parameters in its path is called from here directly: what FastAPI does
on the way to it (matching, dependencies, three layers of middleware) costs more than all else that Python does for a
request, and our routes use none of it.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.auth import ApiKeys
from service.config import Settings
from service.errors import Cancelled, Internal, MethodNotAllowed, NotFound, ServiceError
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.request_ids import HEADER, request_id
from service.rest import explain, health, native, openai, static
from service.rest.wire import JSON, native_error

OTHER = "_OTHER"
Endpoint = Callable[[Request], Awaitable[Response]]
DOCS_PATHS = ("/docs", "/openapi.json")

log = logging.getLogger("attendant.rest")


@dataclass
class Exchange:
    """One request on its way through the edge.

    Of an error it keeps only what is counted: the error itself knows, by its traceback, every frame that it passed,
    and so would keep the whole request until the next collection of garbage.
    """

    request_id: str
    door: str
    route: str = ""
    refusal: str = ""
    left: bool = False


class Edge:
    """ASGI middleware, outermost."""

    def __init__(
        self,
        app: FastAPI,
        routers: Sequence[APIRouter],
        host: Lifecycle,
        metrics: Metrics,
        keys: ApiKeys | None,
        open_paths: Iterable[str],
    ) -> None:
        self._app = app
        self._direct = direct_endpoints(routers)
        self._host = host
        self._metrics = metrics
        self._keys = keys
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        sent_id = headers.get(HEADER.encode(), b"").decode("latin-1")
        exchange = Exchange(request_id(sent_id), door_of(scope["path"]))
        scope["exchange"] = exchange
        status, size = 0, 0

        async def send_marked(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (HEADER.encode(), exchange.request_id.encode())]
            else:
                size += len(message.get("body", b""))
            await send(message)

        self._metrics.in_flight.inc()
        try:
            if self._keys is not None and scope["path"] not in self._open_paths:
                self._keys.check(headers.get(b"authorization"))
            endpoint = self._direct.get((scope["method"], scope["path"]))
            if endpoint is None:
                await self._app(scope, receive, send_marked)
            else:
                exchange.route = scope["path"]
                response = await endpoint(Request(scope, receive))
                await response(scope, receive, send_marked)
        except ServiceError as error:
            await error_response(exchange, error)(scope, receive, send_marked)
        except Exception:
            log.exception("unforeseen error", extra={"request_id": exchange.request_id})
            if not status:  # FastAPI has answered through handle_unforeseen before it handed the error on
                await error_response(exchange, Internal())(scope, receive, send_marked)
        finally:
            self._metrics.in_flight.dec()
            exchange.route = exchange.route or getattr(scope.get("route"), "path", OTHER)
            self._count(exchange, status or Cancelled.http_status, size, started)

    @property
    def shut(self) -> bool:
        """As `Gate.shut`."""
        return self._host.crowded

    def turn_away(self, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Response | None:
        """As `Gate.turn_away`: what a full queue would refuse after some ten times the work."""
        route = path.decode("latin-1")
        if not (route == openai.EMBEDDINGS_PATH or (route == native.ENCODE_PATH and native.is_for_fast_lane(body))):
            return None
        started = time.perf_counter()
        exchange = Exchange(request_id(headers.get(HEADER.encode(), b"").decode("latin-1")), door_of(route), route)
        try:
            if self._keys is not None:
                self._keys.check(headers.get(b"authorization"))
            self._host.engine.check_capacity(len(body))
        except ServiceError as error:
            response = error_response(exchange, error)
            response.headers[HEADER] = exchange.request_id
            self._count(exchange, response.status_code, len(response.body), started)
            return response
        return None

    def _count(self, exchange: Exchange, status: int, size: int, started: float) -> None:
        if exchange.refusal:
            self._metrics.rejected.labels(exchange.refusal).inc()
        if exchange.left:
            status = Cancelled.http_status
        self._metrics.observe_request(exchange.door, exchange.route, str(status), status, started)
        self._metrics.response_bytes.labels(exchange.door).observe(size)


def make_app(host: Lifecycle, settings: Settings, metrics: Metrics, keys: ApiKeys | None) -> Edge:
    """Everything on the REST port."""
    app = FastAPI(
        title="Attendant",
        version=__version__,
        description="Contextual embeddings: a vector for every word in its context, and for the text.",
        docs_url="/docs" if settings.docs else None,
        openapi_url="/openapi.json" if settings.docs else None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    page = static.read_page()
    routers = (
        *(door.make_router(host, settings) for door in (native, explain, openai)),
        health.make_router(host),
        static.make_router(page),
    )
    for router in routers:
        app.include_router(router)
        for route in router.routes:
            if isinstance(route, APIRoute):
                metrics.create_requests(door_of(route.path), [route.path])
    install_error_handlers(app)
    describe_bodies(app, (*native.BODIES, *explain.BODIES, *openai.BODIES))
    return Edge(app, routers, host, metrics, keys, (*health.PATHS, *DOCS_PATHS, *page))


def describe_bodies(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Add the schemas of the bodies that routes read themselves to what FastAPI writes."""
    _, found = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    written = app.openapi

    def openapi() -> dict[str, Any]:
        schema = written()
        schema.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def direct_endpoints(routers: Sequence[APIRouter]) -> dict[tuple[str, str], Endpoint]:
    """By method and path, the functions of the routes whose path has no parameters; each takes the request alone."""
    return {
        (method, route.path): route.endpoint
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and "{" not in route.path
        for method in route.methods or ()
    }


def make_admin_app(host: Lifecycle, metrics: Metrics) -> ASGIApp:
    """The admin port: probes and metrics, no client data, no key."""
    app = FastAPI(openapi_url=None)
    app.include_router(health.make_router(host))
    app.include_router(health.make_metrics_router(metrics))
    return app


def door_of(path: str) -> str:
    if path.startswith(openai.PATHS):
        return openai.NAME
    return health.NAME if path in health.PATHS else native.NAME


def error_response(exchange: Exchange, error: ServiceError) -> Response:
    """The error as its door spells it."""
    exchange.refusal, exchange.left = error.label, isinstance(error, Cancelled)
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status in (408, 413):
        headers["connection"] = "close"
    if isinstance(error, Internal) and error.__cause__ is not None:
        log.error("request failed", exc_info=error.__cause__, extra={"request_id": exchange.request_id})
    if exchange.door == openai.NAME:
        return Response(openai.render_error(error, exchange.request_id), openai.http_status(error), headers, JSON)
    return Response(native_error(error, exchange.request_id), error.http_status, headers, JSON)


def install_error_handlers(app: FastAPI) -> None:
    """Every error that a route can end in becomes one of ours."""

    async def handle_ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        return error_response(request.scope["exchange"], error)

    async def handle_routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        ours: Mapping[int, ServiceError] = {
            404: NotFound("There is nothing at this path. See /docs.", reason="no_such_route"),
            405: MethodNotAllowed("This path does not take that method. See /docs."),
        }
        response = error_response(request.scope["exchange"], ours.get(error.status_code, Internal()))
        response.headers.update(error.headers or {})
        return response

    async def handle_unforeseen(request: Request, error: Exception) -> Response:
        return error_response(request.scope["exchange"], Internal())

    app.add_exception_handler(ServiceError, handle_ours)
    app.add_exception_handler(HTTPException, handle_routing)
    app.add_exception_handler(Exception, handle_unforeseen)
