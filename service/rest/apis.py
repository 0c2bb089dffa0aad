"""All APIs over REST: routing, metrics, load shedding and OpenAPI follow from this list."""

from service.rest.api import Api, Route
from service.rest.routes import cohere, health, huggingface, infinity, native, oip, openai, tei, vllm

TEI = tei.make_api(native.rerank, native.select_rerank(native.TEXTS), native.RerankBody, native.RerankResponseBody)
APIS: tuple[Api, ...] = (native.API, openai.API, TEI, cohere.API, vllm.API, infinity.API, huggingface.API, oip.API)
BY_NAME = {api.name: api for api in APIS}
ROUTES: dict[tuple[str, str], tuple[Api, Route]] = {
    (route.method, route.path): (api, route) for api in APIS for route in api.routes
}
PROBE_PATHS = frozenset((*health.PATHS, *(route.path for _, route in ROUTES.values() if route.is_probe)))
