"""The list of all REST APIs, which determines routing, metrics, load shedding and OpenAPI."""

import re
from urllib.parse import unquote

import httptools

from service.rest.api import Api, Route
from service.rest.routes import cohere, health, huggingface, infinity, native, oip, ollama, openai, tei, vllm

TEI = tei.make_api(native.rerank, native.select_rerank(native.TEXTS), native.RerankBody, native.RerankResponseBody)
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
