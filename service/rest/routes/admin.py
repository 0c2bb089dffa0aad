"""The admin API: load and unload models, list callers. Only on the admin port, with an admin key."""

import re
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from service.auth import Access
from service.engine.repository import ModelState
from service.errors import HostNotAllowed, InvalidArgument, MalformedRequest, RequestTooLarge, UnsupportedMedia
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.bodies import JSON

MODELS_PATH = "/admin/models"
CALLERS_PATH = "/admin/callers"
MAX_BODY_BYTES = 1024
JSON_TYPE = re.compile(r"application/json\s*(;|$)", re.IGNORECASE)


def make_router(lifecycle: Lifecycle, metrics: Metrics, access: Access) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get(MODELS_PATH)
    async def list_models(request: Request) -> Response:
        check_request(request, access, "list_models")
        return respond({"models": [describe(state) for state in lifecycle.repository.states]})

    @router.post(MODELS_PATH + "/{name:path}")
    async def load_model(request: Request, name: str) -> Response:
        """Serve a model of the models file, with what the file and the artifact contain now."""
        admin = check_request(request, access, "load")
        await read_empty_body(request)
        return respond(describe(await lifecycle.repository.load(name, admin)))

    @router.delete(MODELS_PATH + "/{name:path}")
    async def unload_model(request: Request, name: str) -> Response:
        """Stop serving a model once the requests that use it are finished."""
        admin = check_request(request, access, "unload")
        return respond(describe(await lifecycle.repository.unload(name, admin)))

    @router.get(CALLERS_PATH)
    async def list_callers(request: Request) -> Response:
        check_request(request, access, "list_callers")
        queued = lifecycle.models.queued_tokens_by_caller()
        callers = [] if access.keys is None else access.keys.callers.values()
        return respond(
            {
                "callers": [
                    {
                        "name": caller.name,
                        "weight": caller.weight,
                        "tokens_per_second": caller.quota and caller.quota.tokens_per_second,
                        "retry_after_s": caller.quota.delay_s if caller.quota else 0.0,
                        "queued_tokens": queued.get(caller.name, 0),
                        **metrics.describe_caller(caller.name),
                    }
                    for caller in callers
                ]
            }
        )

    return router


def check_request(request: Request, access: Access, operation: str) -> str:
    """Return the name of the admin who sent a request.

    Raises a `ServiceError` if the admin key is missing, or the Host header, which DNS rebinding checks need.
    """
    if not request.headers.get("host"):
        raise HostNotAllowed("missing", "Send the header Host.", field="Host")
    return access.check_admin(dict(request.scope["headers"]), operation)


async def read_empty_body(request: Request) -> None:
    """Raise a `ServiceError` unless the body is declared as JSON and is an empty object or absent.

    Web pages can send other content types to any address without a preflight request.
    """
    content_type = request.headers.get("content-type", "")
    if not JSON_TYPE.match(content_type):
        raise UnsupportedMedia(
            "not JSON", "Send the header Content-Type: application/json.", field="Content-Type", actual=content_type
        )
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestTooLarge(
                "Request body too large", "Send {}.", actual=len(body), maximum=MAX_BODY_BYTES, unit="bytes"
            )
    try:
        document = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"Malformed JSON ({error})", "Send {}.") from None
    if document != {}:
        raise InvalidArgument(
            "Request body not empty", "Send {}. The models file selects what is loaded.", reason="UNKNOWN_FIELD"
        )


def describe(state: ModelState) -> dict[str, Any]:
    """Return the state of a model as JSON."""
    return asdict(state)


def respond(document: dict[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type=JSON)
