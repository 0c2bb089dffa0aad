"""The REST applications: routes, error handlers and OpenAPI."""

import difflib
from collections.abc import Mapping, Sequence

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from service import __version__
from service.auth import PUBLIC, Access
from service.config import Settings
from service.errors import Internal, NotFound, ServiceError
from service.lifecycle import Lifecycle
from service.memory import MemoryBudget
from service.metrics import Metrics
from service.request_log import RequestLog
from service.rest.api import Services, make_router
from service.rest.bodies import MAX_COMPARED, RequestReader
from service.rest.cors import Cors
from service.rest.hosts import HostCheck
from service.rest.middleware import APIS, PROBE_PATHS, ROUTE_PATHS, RequestMiddleware, error_response, method_response
from service.rest.openapi import TAGS, complete_document
from service.rest.routes import admin, docs, health, page


def make_app(
    lifecycle: Lifecycle,
    settings: Settings,
    metrics: Metrics,
    access: Access = PUBLIC,
    budget: MemoryBudget | None = None,
    requests: RequestLog | None = None,
) -> ASGIApp:
    """Return the application of the REST port. `budget` and `requests` are shared with gRPC; None creates them."""
    app = FastAPI(
        title="Attendant",
        version=__version__,
        description="Contextual embeddings of tokens, words, spans and texts, and attention maps.",
        docs_url=None,
        openapi_url=None,  # docs.py serves the document
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    files = page.read_page()
    services = Services(lifecycle, RequestReader(lifecycle, settings, budget), metrics, access)
    routers = (
        *(make_router(api, services) for api in APIS),
        health.make_router(lifecycle),
        page.make_router(files),
        *([docs.make_router(app)] if settings.docs else ()),
    )
    for router in routers:
        app.include_router(router)
    for api in APIS:
        routes = [route for route in api.routes if route.is_public and route.names_model and not route.is_probe]
        metrics.create_requests(api.name, [route.template for route in routes])
    install_error_handlers(app, "See /docs." if settings.docs else "See docs/api.md.", sorted(ROUTE_PATHS))
    complete_document(app, settings.root_path, has_keys=access.keys is not None)
    hosts = HostCheck(settings.host, settings.allowed_hosts)
    middleware = RequestMiddleware(
        app, routers, lifecycle, requests or RequestLog.of(settings, metrics), access.keys,
        public_paths=(*PROBE_PATHS, *docs.PATHS, *files), hosts=hosts, root_path=settings.root_path,
    )  # fmt: skip
    return Cors(settings.cors_origins).wrap(middleware)


def make_admin_app(
    lifecycle: Lifecycle,
    settings: Settings,
    metrics: Metrics,
    access: Access = PUBLIC,
) -> ASGIApp:
    """Return the application of the admin port: probes and metrics without a key, and the admin API."""
    app = FastAPI(openapi_url=None)
    routers = (
        health.make_router(lifecycle),
        health.make_metrics_router(metrics),
        admin.make_router(lifecycle, metrics, access),
    )
    for router in routers:
        app.include_router(router)
    install_error_handlers(app, "It serves /livez, /readyz, /metrics and /admin.")
    # Probes and Prometheus address a pod by its IP address, so ATTENDANT_ALLOWED_HOSTS does not apply.
    hosts = HostCheck(settings.admin_host, "", "The admin port accepts localhost and loopback addresses.")
    return RequestMiddleware(app, routers, lifecycle, None, None, public_paths=(), hosts=hosts)


def nearest_path(path: str, paths: Sequence[str]) -> str | None:
    """Return a known path similar to an unknown one: the same path under /v1, a longer one, its end, or a close match.

    An end has at least two segments.
    """
    if len(path) > MAX_COMPARED:
        return None
    found = [f"/v1{path}"] if f"/v1{path}" in paths else []
    found += sorted((known for known in paths if len(path) > 1 and known.startswith(path)), key=len)
    found += sorted((known for known in paths if known.count("/") > 1 and path.endswith(known)), key=len, reverse=True)
    return next(iter([*found, *difflib.get_close_matches(path, paths, 1)]), None)


def install_error_handlers(app: FastAPI, where: str, paths: Sequence[str] = ()) -> None:
    """Convert every error that a route may raise to a `ServiceError` response.

    `where`: a sentence that tells where to find valid paths, used unless one of `paths` is similar to an unknown path.
    """

    async def handle_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        return error_response(request.scope["record"], error)

    async def handle_routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers: Mapping[str, str] = error.headers or {}
        if error.status_code == 405:
            return method_response(request, headers["Allow"].split(", "))
        path = request.scope["path"]
        nearest = nearest_path(path, paths)
        not_found = NotFound("Path not found", where if nearest is None else f"Did you mean {nearest}?")
        return error_response(request.scope["record"], not_found if error.status_code == 404 else Internal())

    async def handle_exception(request: Request, error: Exception) -> Response:
        return error_response(request.scope["record"], Internal())

    app.add_exception_handler(ServiceError, handle_service_error)
    app.add_exception_handler(HTTPException, handle_routing)
    app.add_exception_handler(Exception, handle_exception)
