"""The served models: /v1/models, in OpenAI's format with more fields, and /v1/model."""

from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, TypeAdapter

from service.engine.schema.model import ModelInfo
from service.lifecycle import Lifecycle
from service.rest.requests import reject_query
from service.rest.responses import json_response
from service.rest.schemas import GET_ERRORS, OpenAIErrorBody, responses

PATH = "/v1/models"
OWNER = "attendant"


@dataclass(frozen=True, slots=True)
class ModelBody(ModelInfo):
    """A served model: OpenAI's fields, properties, digest, precision and limits."""

    id: str = ""
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = OWNER


class ModelsBody(BaseModel):
    """The response of /v1/models."""

    object: Literal["list"]
    data: list[ModelBody]


MODEL_INFO = TypeAdapter(ModelInfo)


def make_router(lifecycle: Lifecycle) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["models"])

    @router.get(
        PATH,
        operation_id="list_models",
        summary="List models",
        responses=responses(ModelsBody, OpenAIErrorBody, GET_ERRORS),
    )
    async def models(request: Request) -> Response:
        """Return the served models; the first is the default model."""
        reject_query(request)
        data = [_body(info, info.name) for info in lifecycle.models.infos]
        return await json_response(request, {"object": "list", "data": data})

    @router.get(
        PATH + "/{name:path}",
        operation_id="retrieve_model",
        summary="Retrieve a model",
        responses=responses(ModelBody, OpenAIErrorBody, (*GET_ERRORS, 404)),
    )
    async def named_model(request: Request, name: str) -> Response:
        """Return the model of this name or alias."""
        reject_query(request)
        return await json_response(request, _body(lifecycle.models.find(name).info, name))

    @router.get(
        "/v1/model",
        operation_id="get_model",
        summary="Get the default model",
        responses=responses(ModelBody, statuses=GET_ERRORS),
    )
    async def model(request: Request) -> Response:
        """Return the default model, as in /v1/models."""
        reject_query(request)
        info = lifecycle.models.find().info
        return await json_response(request, _body(info, info.name))

    return router


def _body(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return the model under one of its names."""
    details: dict[str, Any] = MODEL_INFO.dump_python(info, mode="json")
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER} | details
