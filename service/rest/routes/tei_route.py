"""A route of the TEI API with a body, and the errors that it can return."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.types import DecoratedCallable
from pydantic import BaseModel

from service.rest.codec import body_schema
from service.rest.routes.tei_bodies import TeiErrorBody
from service.rest.schemas import TEI_ERRORS, ErrorBody, responses

ERRORS = (400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)
HEAD_ERRORS = (400, 401, 403, 408, 413, 415, 422, 424, 429, 500, 503)
RANK_ERRORS = (*HEAD_ERRORS, 404, 504)
"""The errors of routes that also accept the native rerank request."""


def post(
    router: APIRouter,
    path: str,
    name: str,
    bodies: type[BaseModel] | tuple[type[BaseModel], ...],
    model: Any,
    statuses: tuple[int, ...] = ERRORS,
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """Return a decorator for a route with a body of one or several schemas; `model` is the schema of its response."""
    schema = body_schema(*bodies) if isinstance(bodies, tuple) else body_schema(bodies)
    errors = (TeiErrorBody, ErrorBody) if statuses is RANK_ERRORS else (TeiErrorBody,)
    described = responses(model, errors, statuses, TEI_ERRORS)
    return router.post(
        path,
        operation_id=f"tei_{name}",
        responses=described,
        openapi_extra=schema,
    )
