"""Cross-origin requests from browsers. Responses written outside of the application need the CORS headers, too."""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from service.request_log import HEADER as REQUEST_ID_HEADER
from service.request_log import TRACE_HEADER
from service.rest.bodies import IGNORED_HEADER
from service.rest.routes.oip import LENGTH_HEADER


class Cors:
    """The origins that browsers may send requests from, as a comma-separated list; empty allows none."""

    def __init__(self, origins: str) -> None:
        self._origins = [origin.strip().lower() for origin in origins.split(",") if origin.strip()]
        self._middleware = self._wrap(Response())

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application to allow cross-origin requests from the origins."""
        return self._wrap(app) if self._origins else app

    def add_headers(self, headers: Mapping[bytes, bytes], response: Response) -> None:
        """Add CORS headers to the response to a request with these headers."""
        if not self._origins:
            return
        origin = headers.get(b"origin", b"").decode("latin-1")
        added = MutableHeaders(raw=response.raw_headers)
        if origin:
            added.update(self._middleware.simple_headers)
        if origin and not self._middleware.allow_all_origins and self._middleware.is_allowed_origin(origin):
            self._middleware.allow_explicit_origin(added, origin)
        else:
            added.add_vary_header("Origin")

    def _wrap(self, app: ASGIApp) -> CORSMiddleware:
        return CORSMiddleware(
            app,
            allow_origins=self._origins,
            allow_methods=["GET", "HEAD", "OPTIONS", "POST"],
            allow_headers=["*"],  # clients such as openai and cohere send names of their runtime and version
            expose_headers=[
                LENGTH_HEADER,
                "retry-after",
                "server-timing",
                IGNORED_HEADER,
                "x-attendant-model",
                "x-attendant-precision",
                "x-attendant-scored-by",
                "x-should-retry",
                REQUEST_ID_HEADER,
                TRACE_HEADER,
            ],
        )
