"""The page: its files, read once at start, with the headers that let it load nothing from anywhere else."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from service.errors import NotFound

DIRECTORY = Path(__file__).parent / "page"
INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",  # keep it, but ask each time: an upgrade shows at once
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
    """One file of the page as it is sent."""

    body: bytes
    media_type: str
    etag: str


def read_page(directory: Path = DIRECTORY) -> dict[str, PageFile]:
    """The page's files by the path they are served at."""
    found = {}
    for path in sorted(directory.iterdir()):
        if media_type := MEDIA_TYPES.get(path.suffix):
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found["/" if path.name == INDEX else f"/page/{path.name}"] = PageFile(body, media_type, etag)
    return found


def make_router(page: Mapping[str, PageFile]) -> APIRouter:
    """GET / and GET /page/{name}."""
    router = APIRouter(include_in_schema=False)

    @router.head("/")
    @router.get("/")
    @router.head("/page/{name}")
    @router.get("/page/{name}")
    async def file(request: Request) -> Response:
        """A file of the page, or 304 when the caller has it already."""
        asked = page.get(request.scope["path"])
        if asked is None:
            raise NotFound("The page has no file with this name.", reason="no_such_route")
        headers = HEADERS | {"etag": asked.etag}
        if _matches(request.headers.get("if-none-match", ""), asked.etag):
            return Response(status_code=304, headers=headers)
        return Response(asked.body, media_type=asked.media_type, headers=headers)

    return router


def _matches(header: str, etag: str) -> bool:
    """Whether If-None-Match names this entity tag; weak ones compare equal, as RFC 9110 asks of GET."""
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))
