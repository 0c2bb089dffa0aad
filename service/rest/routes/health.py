"""Liveness and readiness, and metrics, on the admin port only."""

import asyncio
import gzip
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.exposition import choose_encoder, gzip_accepted
from pydantic import BaseModel

from service.lifecycle import Lifecycle
from service.metrics import Metrics

NAME = "health"
PATHS = ("/livez", "/healthz", "/readyz")
"""Probes of the native API. TEI and the Open Inference Protocol define others."""
COMPRESSION_LEVEL = 1
"""Compresses 600 KiB to a tenth in 5 ms; level 9 takes 20 ms for little gain."""


class StatusBody(BaseModel):
    """The state of the server."""

    status: Literal["starting", "ok", "draining", "failed"]


PROBE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": StatusBody, "description": "Success."},
    503: {"model": StatusBody, "description": "Server is starting, draining or overloaded."},
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
    """Return the route of /metrics, in the text format of Prometheus or in OpenMetrics, which supports exemplars."""
    router = APIRouter()

    @router.get("/metrics")
    async def scrape(request: Request) -> Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (ValueError, TypeError):  # an invalid version
            encode, content_type = generate_latest, CONTENT_TYPE_LATEST
        headers, body = {"content-type": content_type}, encode(metrics.registry)
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            headers["content-encoding"] = "gzip"
            body = await asyncio.to_thread(gzip.compress, body, COMPRESSION_LEVEL)
        return Response(body, headers=headers)

    return router
