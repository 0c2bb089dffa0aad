"""A route of the TEI API with a body, and the errors that it can return."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.types import DecoratedCallable

from service.rest.codec import body_schema
from service.rest.routes.tei_bodies import TeiErrorBody, TeiModel
from service.rest.schemas import TEI_ERRORS, responses

ERRORS = (400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)
HEAD_ERRORS = (400, 401, 403, 408, 413, 415, 422, 424, 429, 500, 503)


def post(
    router: APIRouter,
    path: str,
    name: str,
    bodies: type[TeiModel] | tuple[type[TeiModel], ...],
    model: Any,
    statuses: tuple[int, ...] = ERRORS,
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """Return a decorator for a route with a body of one or several schemas; `model` is the schema of its response."""
    schema = body_schema(*bodies) if isinstance(bodies, tuple) else body_schema(bodies)
    described = responses(model, TeiErrorBody, statuses, TEI_ERRORS)
    return router.post(
        path,
        operation_id=f"tei_{name}",
        responses=described,
        openapi_extra=schema,
    )
