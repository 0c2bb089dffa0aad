"""Liveness, readiness and, on the admin port alone, metrics."""

import orjson
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from service.lifecycle import Lifecycle
from service.metrics import Metrics

NAME = "health"
PATHS = ("/livez", "/healthz", "/readyz")


def make_router(host: Lifecycle) -> APIRouter:
    """The probes. Live means that the event loop turns; ready means that requests are taken."""
    router = APIRouter(tags=["health"])

    def body() -> bytes:
        return orjson.dumps({"status": host.status.value})

    @router.head("/livez", include_in_schema=False)
    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", include_in_schema=False)
    @router.get("/livez")
    async def livez(request: Request) -> Response:
        """200 as long as the process works, loading and draining included."""
        return Response(body(), media_type="application/json", status_code=200 if host.alive else 503)

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz")
    async def readyz(request: Request) -> Response:
        """200 while requests are taken, else 503."""
        return Response(body(), media_type="application/json", status_code=200 if host.ready else 503)

    return router


def make_metrics_router(metrics: Metrics) -> APIRouter:
    """GET /metrics in Prometheus's text format."""
    router = APIRouter()

    @router.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return router
