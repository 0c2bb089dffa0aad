"""What all REST requests pass: the APIs and their paths, the middleware, records and errors, and load shedding.

FastAPI describes the routes, but the middleware calls routes without path parameters directly: FastAPI's work before
the call (matching, dependencies, three layers of middleware) takes longer than all other Python code of a request.
"""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import httptools
import orjson
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.auth import ApiKeys
from service.errors import (
    Cancelled,
    Draining,
    Internal,
    MemoryShareExceeded,
    MethodNotAllowed,
    Overloaded,
    ServiceError,
)
from service.lifecycle import Lifecycle
from service.metrics import FAST_LANE
from service.request_log import (
    HEADER,
    OTHER,
    TRACE_HEADER,
    TRACE_STATE_HEADER,
    RequestLog,
    RequestRecord,
    request_id,
    set_current,
    traceparent,
)
from service.rest.api import Api, Route
from service.rest.bodies import DRAINED, FIELDS, JSON, KNOWN, PAUSE_S, allow_cancellation, was_disconnected
from service.rest.cors import Cors
from service.rest.hosts import HostCheck
from service.rest.routes import cohere, health, huggingface, infinity, native, oip, ollama, openai, tei, vllm

TEI = tei.make_api(
    native.rerank, native.select_rerank(native.TEXTS), native.RestRerankRequest, native.RestRerankResponse
)
APIS: tuple[Api, ...] = (
    native.API, openai.API, TEI, cohere.API, vllm.API, infinity.API, huggingface.API, ollama.API, oip.API,
)  # fmt: skip
BY_NAME = {api.name: api for api in APIS}
ROUTES: dict[tuple[str, str], tuple[Api, Route]] = {
    (route.method, route.path): (api, route) for api in APIS for route in api.routes
}
PROBE_PATHS = frozenset((*health.PATHS, *(route.path for _, route in ROUTES.values() if route.is_probe)))
ROUTE_PATHS = frozenset(path for _, path in ROUTES if "{" not in path and path != "/") - PROBE_PATHS
"""The paths without parameters, except pages and probes."""

COMPUTING_PATHS = frozenset(path for (_, path), (_, route) in ROUTES.items() if route.shed != "never")
"""The paths whose requests run a model on the fast lane. Those with parameters in braces equal no request's path."""

_PREFIXES = tuple((api.prefixes, api.name) for api in APIS if api.prefixes)
_PATHS = {path: api.name for (_, path), (api, _) in ROUTES.items() if "{" not in path and path != "/"} | dict.fromkeys(
    PROBE_PATHS, health.NAME
)


def api_of(method: str, path: str) -> str:
    """Return the name of the API that a path belongs to, which determines the error format."""
    name = _PATHS.get(path)
    if name is not None:
        return name
    if path == "/":  # the page, or a route of TEI
        return tei.NAME if method == "POST" else native.API.name
    return next((name for prefixes, name in _PREFIXES if path.startswith(prefixes)), native.API.name)


def normalize(path: str, root_path: str, method: str = "POST") -> str:
    """Strip the prefix that a proxy did not remove, and extra slashes before a route.

    Pages and probes are not normalized: URLs in pages are relative, and probes need no key.
    """
    if path == root_path and method == "POST":
        return "/"
    if path not in ROUTE_PATHS:
        path = _strip_prefix(path, root_path)
    if "//" in path or path.endswith("/"):
        single = _strip_prefix(re.sub("/{2,}", "/", path).removesuffix("/"), root_path)
        if single in ROUTE_PATHS:
            return single
    return path


def _strip_prefix(path: str, root_path: str) -> str:
    return path.removeprefix(root_path) if path.startswith(f"{root_path}/") else path


def route_path(target: bytes, root_path: str, method: str = "POST") -> str:
    """Return the normalized path of a request target, which may be a whole URL; "" for an invalid target."""
    path = target.decode("latin-1")
    if path not in ROUTE_PATHS:  # the usual case needs no parsing
        try:
            path = normalize(unquote((httptools.parse_url(target).path or b"").decode("latin-1")), root_path, method)
        except httptools.HttpParserError:
            return ""
    return path


HEADER_BYTES, TRACE_BYTES, STATE_BYTES = HEADER.encode(), TRACE_HEADER.encode(), TRACE_STATE_HEADER.encode()

TLS_PART_BYTES = 64 * 1024
"""uvloop forwards the first write of a TLS connection as a whole, without making the writer wait until it is sent."""

Endpoint = Callable[[Request], Awaitable[Response]]

log = logging.getLogger("attendant.rest")


class RequestMiddleware:
    """The outermost ASGI application.

    Health checks are neither counted nor logged. If `requests` is None, no requests are.
    """

    def __init__(  # noqa: PLR0913  # the parts of the application
        self,
        app: FastAPI,
        routers: Sequence[APIRouter],
        lifecycle: Lifecycle,
        requests: RequestLog | None,
        keys: ApiKeys | None,
        *,
        public_paths: Iterable[str],
        hosts: HostCheck,
        root_path: str = "",
    ) -> None:
        self._root_path = root_path
        self._app = app
        self._endpoints = direct_endpoints(routers)
        self._lifecycle = lifecycle
        self._requests = requests
        self._keys = keys
        self._public_paths = frozenset(public_paths)
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] not in ROUTE_PATHS:
            scope["path"] = normalize(scope["path"], self._root_path, scope["method"])
        allow_cancellation(scope)
        headers = dict(scope["headers"])
        record = make_record(scope["method"], scope["path"], headers)
        record.peer = (scope.get("client") or ("",))[0]
        sender = ResponseSender(scope, send, record, self._lifecycle)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope = {**scope, "record": record, "method": method, FIELDS: headers}
        if self._requests is None or record.api == health.NAME:
            await self._respond(scope, receive, sender, headers)
            return
        record.response = self._requests.reservation()
        set_current(record)
        metrics = self._requests.metrics
        metrics.in_flight.inc()
        try:
            await self._respond(scope, receive, sender, headers)
            if (drained := scope.get(DRAINED)) is not None:
                await drained()
        finally:
            metrics.in_flight.dec()
            if record.response is not None:
                record.response.close()
            record.endpoint = record.endpoint or getattr(scope.get("route"), "path", OTHER).replace(":path}", "}")
            finish_request(self._requests, record, sender.status or Cancelled.http_status, sender.size)

    def _check_access(self, scope: Scope, headers: dict[bytes, bytes], record: RequestRecord) -> None:
        host = headers.get(b"host")  # missing only in HTTP/1.0, which browsers do not send
        if host is not None and host not in self._hosts.accepted:
            self._hosts.check(host)
        # Public paths are read-only: POST / is a route of the TEI API.
        is_public = scope["path"] in self._public_paths and scope["method"] != "POST"
        needs_admin = scope["method"] == "POST" and oip.LOAD_PATH.fullmatch(scope["path"]) is not None  # checked there
        if self._keys is not None and not is_public and not needs_admin:
            record.caller = self._keys.check(headers)
            if record.caller.quota is not None and scope["method"] == "POST" and scope["path"] in COMPUTING_PATHS:
                record.caller.quota.check()  # before the body is read
        needs_no_key = is_public or needs_admin
        record.is_known = record.api != health.NAME and not (self._keys is not None and needs_no_key)
        if record.response is not None:
            record.response.holder = record.holder
            record.response.grow(0)  # raises while the caller's unread responses use up its share

    async def _respond(
        self, scope: Scope, receive: Receive, sender: "ResponseSender", headers: dict[bytes, bytes]
    ) -> None:
        """Send the route's response, or the response for the error it raises."""
        request, record = Request(scope, receive), scope["record"]
        response: ASGIApp
        try:
            endpoints = self._endpoints.get(scope["path"])
            if endpoints is not None:
                record.endpoint = scope["path"]
            self._check_access(scope, headers, record)
            if endpoints is None:
                response = partial(self._run_app, sender)
            else:
                endpoint = endpoints.get(scope["method"])
                response = await endpoint(request) if endpoint else method_response(request, endpoints)
        except ServiceError as error:
            response = error_response(record, error)
        except asyncio.CancelledError:
            response = error_response(record, reason_of_cancellation(scope))
        except Exception:  # noqa: BLE001  # log_exception logs it
            log_exception(record)
            response = error_response(record, Internal())
        try:
            await response(scope, receive, sender.send)
        except asyncio.CancelledError:
            if not was_disconnected(scope):
                raise
            record.fail(Cancelled())

    async def _run_app(self, sender: "ResponseSender", scope: Scope, receive: Receive, send: Send) -> None:
        """Run FastAPI, which responds to an unexpected error and re-raises it."""
        record = scope["record"]
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if sender.status:
                raise
            await error_response(record, reason_of_cancellation(scope))(scope, receive, send)
        except Exception:  # noqa: BLE001  # log_exception logs it
            log_exception(record)


class ResponseSender:
    """Sends the messages of a response, adds the headers common to all responses, and omits the body for HEAD."""

    def __init__(self, scope: Scope, send: Send, record: RequestRecord, lifecycle: Lifecycle) -> None:
        self.status = self.size = 0
        self._scope = scope
        self._send = send
        self._record = record
        self._lifecycle = lifecycle
        self._headers = [(HEADER_BYTES, record.request_id.encode())]
        if record.traceparent:
            self._headers.append((TRACE_BYTES, record.traceparent.encode()))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._scope[KNOWN] = self._record.is_known
            if self._record.pause_s:
                self._scope[PAUSE_S] = self._record.pause_s
            message["headers"] = [*message["headers"], *self._headers]
            if self._lifecycle.draining:  # a keep-alive connection would end here, in the middle of a request
                message["headers"].append((b"connection", b"close"))
        elif self._scope["method"] == "HEAD":
            message["body"] = b""
        else:
            self.size += len(message.get("body", b""))
            if self._record.response is not None and not message.get("more_body", False):
                self._record.response.set(self.size)
        body = message.get("body", b"")
        if self._scope["scheme"] == "https" and len(body) > TLS_PART_BYTES:
            for start in range(0, len(body) - TLS_PART_BYTES, TLS_PART_BYTES):
                await self._send({**message, "body": body[start : start + TLS_PART_BYTES], "more_body": True})
            message["body"] = body[start + TLS_PART_BYTES :]
        await self._send(message)


def reason_of_cancellation(scope: Scope) -> ServiceError:
    """Return the error for a cancelled request. uvicorn cancels requests only after the drain timeout."""
    if was_disconnected(scope):
        return Cancelled()
    return Draining("Server stopped before it finished the request", "Retry on another instance.")


def log_exception(record: RequestRecord) -> None:
    """Log the exception that is being handled."""
    log.exception(
        "unhandled exception api=%s endpoint=%s",
        record.api,
        record.endpoint or OTHER,
        extra={"request_id": record.request_id},
    )


def direct_endpoints(routers: Sequence[APIRouter]) -> dict[str, dict[str, Endpoint]]:
    """Return the functions of routes without path parameters, by path and method."""
    endpoints: dict[str, dict[str, Endpoint]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and "{" not in route.path:
                for method in route.methods or ():
                    endpoints.setdefault(route.path, {})[method] = route.endpoint
    return endpoints


def method_response(request: Request, methods: Iterable[str]) -> Response:
    """Return the response to OPTIONS, or the error for a method that the path does not support."""
    allowed = {*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
    headers = {"allow": ", ".join(sorted(allowed))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    response = error_response(
        request.scope["record"],
        MethodNotAllowed("Method not allowed for this path", "Use a method listed in the Allow header."),
    )
    response.headers.update(headers)
    return response


def error_response(record: RequestRecord, error: ServiceError) -> Response:
    """Return an error response in the API's format."""
    record.fail(error)
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))  # a retry before that is rejected again
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if record.api == openai.NAME and not error.retryable and error.http_status >= 500:
        headers["x-should-retry"] = "false"  # otherwise, OpenAI's clients retry every 5xx
    if error.http_status in (408, 413) or isinstance(error, (MemoryShareExceeded, Overloaded)):
        headers["connection"] = "close"
    if isinstance(error, Internal) and error.__cause__ is not None:
        log.error("request failed", exc_info=error.__cause__, extra={"request_id": record.request_id})
    body, status = BY_NAME.get(record.api, native.API).render_error(error, record.request_id)
    return Response(body, status, headers, JSON)


def make_record(method: str, path: str, headers: Mapping[bytes, bytes]) -> RequestRecord:
    """Create the record of a request that has just arrived."""
    trace = headers.get(TRACE_BYTES)
    record = RequestRecord(
        api_of(method, path),
        request_id(headers.get(HEADER_BYTES, b"").decode("latin-1")),
        "" if trace is None else traceparent(trace.decode("latin-1")),
        method=method,
    )
    if record.traceparent:
        record.tracestate = headers.get(STATE_BYTES, b"").decode("latin-1")
    return record


def finish_request(requests: RequestLog, record: RequestRecord, status: int, size: int) -> None:
    """Count and log a request whose response had `size` bytes."""
    record.bytes = size
    if record.cancelled:
        status = Cancelled.http_status
    requests.finish(record, str(status), status)
    requests.metrics.observe_size(record.api, record.model, size)


MODEL_FIELD = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")?')
"""In valid JSON, quotes within strings are escaped, so this matches only fields."""
LAYERS_FIELD = b'"layers"'


@dataclass(frozen=True, slots=True)
class Rejection:
    """The response to a rejected request, and how long to stop reading from its connection, in seconds.

    `is_known`: whether the request had an accepted key.
    """

    response: Response
    pause_s: float = 0.0
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A fast-lane request's route, model name and API."""

    endpoint: str
    model: str | None
    api: str


class LoadShedder:
    """While the queue is nearly full, rejects small requests before uvicorn starts their tasks.

    This takes a tenth of the time of a rejection by the engine. At four times the server's capacity, rejections by the
    engine took half a core away from accepted requests.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        requests: RequestLog,
        keys: ApiKeys | None,
        cors: Cors | None = None,
        root_path: str = "",
    ) -> None:
        self._lifecycle = lifecycle
        self._cors = cors or Cors("")
        self._requests = requests
        self._keys = keys
        self._root_path = root_path

    @property
    def near_capacity(self) -> bool:
        """Whether every request must pass `try_reject`."""
        models = self._lifecycle.loaded
        return models is not None and models.near_capacity

    def try_reject(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes, address: str = ""
    ) -> Rejection | None:
        """Return a rejection if the queue has no capacity for the request, else None."""
        if self._lifecycle.rejecting:  # may have begun after the request head was read
            return None
        route = route_path(path, self._root_path) if method == b"POST" else ""
        target = self._find_target(route, headers, body)
        if target is None:
            return None
        record = make_record("POST", route, headers)
        record.endpoint, record.lane, record.api, record.peer = target.endpoint, FAST_LANE, target.api, address
        try:
            if self._keys is not None:
                record.caller = self._keys.check(headers)
            record.is_known = True
            engine = self._lifecycle.models.find(target.model)
            record.model = engine.name
            reservation = engine.reserve(len(body), caller=record.caller)
        except ServiceError as error:
            response = error_response(record, error)
            response.headers[HEADER] = record.request_id
            if record.traceparent:
                response.headers[TRACE_HEADER] = record.traceparent
            if self._lifecycle.draining:
                response.headers["connection"] = "close"
            self._cors.add_headers(headers, response)
            finish_request(self._requests, record, response.status_code, len(response.body))
            return Rejection(response, record.pause_s, is_known=record.is_known)
        # The engine reserves capacity two loop iterations later: the first starts the middleware, the second the
        # engine. Without this reservation, all requests of an iteration would be accepted here, and most would be
        # rejected by the engine.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, reservation.release)
        return None

    def _find_target(self, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Target | None:
        """Return the target of a POST request, without parsing the body; None if another lane may run it."""
        found = ROUTES.get(("POST", path))
        if found is None:
            return self._find_target_in_path(path, headers, body)
        api, route = found
        if route.shed == "never" or (route.shed == "without layers" and LAYERS_FIELD in body):
            return None
        name = api.name
        if path in native.RERANK_PATHS:
            fields = {field for field in native.API_NAMES if f'"{field}"'.encode() in body}
            name = native.API_NAMES[native.rerank_field(native.RERANK_PATHS[path], fields)]
        if name == tei.NAME:
            return Target(path, None, name)
        try:
            model = _find_model(body)
        except ValueError:
            return None
        names = self._lifecycle.models.names
        if model is not None and name == ollama.NAME:
            model = ollama.served_name(model, names)
        return Target(path, model, name) if model is None or model in names else None

    def _find_target_in_path(self, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Target | None:
        """Return the target of a POST request whose path contains the name of a served model."""
        deployment = openai.DEPLOYMENT_PATH.fullmatch(path)
        if deployment is not None:
            endpoint, name, api, is_fast = openai.DEPLOYMENT, deployment["name"], openai.NAME, True
        else:
            (endpoint, name), api = oip.parse_infer_path(path), oip.API.name
            is_fast = b"content-encoding" not in headers and oip.is_for_fast_lane(body)
        return Target(endpoint, name, api) if is_fast and name in self._lifecycle.models.names else None


def _find_model(body: bytes) -> str | None:
    """Return the model named in a JSON body, without parsing the body; None if there is none.

    Raises `ValueError` if several fields have this name, as in documents with other fields, or for invalid JSON.
    """
    fields = MODEL_FIELD.findall(body)
    if len(fields) > 1:
        raise ValueError
    name: str | None = orjson.loads(fields[0]) if fields and fields[0] else None
    return None if name == infinity.UNSPECIFIED else name
