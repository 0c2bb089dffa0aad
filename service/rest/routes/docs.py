"""The OpenAPI document, and the API reference /docs. Swagger UI is served from its package, so it works offline."""

import asyncio
from functools import cache
from importlib import resources

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

from service.rest.routes.page import HEADERS

OPENAPI_PATH = "/openapi.json"
DOCS_PATH = "/docs"
ASSETS = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
START_PATH = f"{DOCS_PATH}/start.js"
PATHS = (DOCS_PATH, OPENAPI_PATH, START_PATH, *(f"{DOCS_PATH}/{name}" for name in ASSETS))

INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attendant API</title>
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = """const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followTheme);
followTheme();
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
});
"""
# Swagger UI sets inline styles, which the policy of the page forbids.
DOCS_HEADERS = HEADERS | {
    "content-security-policy": HEADERS["content-security-policy"].replace(
        "style-src 'self'", "style-src 'self' 'unsafe-inline'"
    )
}


def make_router(app: FastAPI) -> APIRouter:
    """Return the routes of /docs and of the OpenAPI document of `app`."""
    router = APIRouter(include_in_schema=False)

    @cache
    def document() -> bytes:
        return orjson.dumps(app.openapi())

    @router.get(OPENAPI_PATH)
    async def openapi(request: Request) -> Response:
        # Build the document in a thread: it takes 0.3 s.
        return Response(await asyncio.to_thread(document), media_type="application/json")

    @router.get(DOCS_PATH)
    async def index(request: Request) -> Response:
        return Response(INDEX, media_type="text/html; charset=utf-8", headers=DOCS_HEADERS)

    @router.get(START_PATH)
    async def start(request: Request) -> Response:
        return Response(START, media_type="text/javascript; charset=utf-8", headers=DOCS_HEADERS)

    for name, media_type in ASSETS.items():
        router.get(f"{DOCS_PATH}/{name}")(_asset(name, media_type))
    return router


def _asset(name: str, media_type: str):  # type: ignore[no-untyped-def]  # an endpoint
    async def asset(request: Request) -> Response:
        # Read the file per request: it has 1.7 MB, and few processes ever send it.
        body = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
        return Response(body, media_type=media_type, headers=DOCS_HEADERS)

    return asset
