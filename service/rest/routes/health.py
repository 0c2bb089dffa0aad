"""Liveness and readiness, and metrics, on the admin port only."""

from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service.lifecycle import Lifecycle
from service.metrics import Collected, Metrics, render_metrics

NAME = "health"
PATHS = ("/livez", "/healthz", "/readyz")
"""Probes of the native API. TEI and the Open Inference Protocol define others."""


class StatusResponse(BaseModel):
    """The state of the server."""

    status: Literal["starting", "ok", "draining", "failed"]


PROBE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": StatusResponse, "description": "Success."},
    503: {"model": StatusResponse, "description": "Server is starting, draining or overloaded."},
}


def make_router(lifecycle: Lifecycle) -> APIRouter:
    """Return the probes. Live: the event loop runs. Ready: requests are accepted."""
    router = APIRouter(tags=["health"])

    def response(passed: bool) -> Response:
        body = orjson.dumps({"status": lifecycle.status.value})
        return Response(body, media_type="application/json", status_code=200 if passed else 503)

    @router.get("/healthz", include_in_schema=False)
    @router.get("/livez", operation_id="livez", summary="Liveness", responses=PROBE_RESPONSES)
    async def livez(request: Request) -> Response:
        """Return 200 unless the model failed to load; also while loading and draining."""
        return response(lifecycle.alive)

    @router.get("/readyz", operation_id="readyz", summary="Readiness", responses=PROBE_RESPONSES)
    async def readyz(request: Request) -> Response:
        """Return 200 while requests are accepted, otherwise 503."""
        return response(lifecycle.ready)

    return router


def make_metrics_router(metrics: Metrics) -> APIRouter:
    """Return the route of /metrics."""
    router = APIRouter()

    @router.get("/metrics")
    async def scrape(request: Request) -> Response:
        accept, encodings = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        body, headers = await render_metrics(await Collected.from_registry(metrics.registry), accept, encodings)
        return Response(body, headers=headers)

    return router
