"""Liveness, readiness and, on the admin port alone, metrics."""

import orjson
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.schemas import StatusBody, responses

API = "health"
PATHS = ("/livez", "/healthz", "/readyz", "/health", "/ping", "/v2/health/live", "/v2/health/ready")
"""The last four belong to the TEI API and the Open Inference Protocol."""
PROBE_RESPONSES = responses(StatusBody, StatusBody, (503,))


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
    """Return the route of /metrics, in the text format of Prometheus."""
    router = APIRouter()

    @router.get("/metrics")
    async def scrape(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return router
