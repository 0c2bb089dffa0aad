"""Serves the page's files, read once at startup, with headers that forbid loading from other origins."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from service.errors import NotFound

DIRECTORY = Path(__file__).parent.parent / "page"
INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",  # cache, but revalidate, so that a new version is visible immediately
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page, ready to send."""

    body: bytes
    media_type: str
    etag: str


def read_page(directory: Path = DIRECTORY) -> dict[str, PageFile]:
    """Return the page's files by the path they are served at.

    The index lists all modules, so that a browser requests them in parallel instead of following the imports.
    """
    files = {}
    paths = sorted(directory.iterdir())
    modules = [path.name for path in paths if path.suffix == ".js"]
    preload = "".join(f'  <link rel="modulepreload" href="page/{name}">\n' for name in modules)
    for path in paths:
        if media_type := MEDIA_TYPES.get(path.suffix):
            body = path.read_bytes()
            if path.name == INDEX:
                body = body.replace(b"</head>", preload.encode() + b"</head>")
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            files["/" if path.name == INDEX else f"/page/{path.name}"] = PageFile(body, media_type, etag)
    return files


def make_router(page: Mapping[str, PageFile]) -> APIRouter:
    """Return the routes / and /page/{name}."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    @router.get("/page/{name}")
    async def file(request: Request) -> Response:
        """Return a file of the page, or 304 if the client has it."""
        page_file = page.get(request.scope["path"])
        if page_file is None:
            raise NotFound("Path not found", "The page has no file of this name.")
        headers = HEADERS | {"etag": page_file.etag}
        known = request.headers.get("if-none-match", "").split(",")
        if any(tag.strip().removeprefix("W/") in ("*", page_file.etag) for tag in known):  # weak comparison (RFC 9110)
            return Response(status_code=304, headers=headers)
        return Response(page_file.body, media_type=page_file.media_type, headers=headers)

    return router
