"""The native API of masked language models: /v1/fill-mask."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service.engine.operations.fill_mask import DEFAULT_TOP_K, MAX_TOP_K
from service.engine.schema.encode import Truncation
from service.engine.schema.fill_mask import FillMaskRequest
from service.lifecycle import Lifecycle
from service.limits import reject_spans
from service.rest.codec import (
    INPUTS_DESCRIPTION,
    MODEL_DESCRIPTION,
    TRUNCATION_DESCRIPTION,
    FirstError,
    Inputs,
    LayersOrAll,
    StrictModel,
    at_most,
    body_schema,
    to_inputs,
)
from service.rest.head_schemas import FillMaskResponseBody
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.schemas import responses
from service.steps import convert

PATH = "/v1/fill-mask"


class FillMaskBody(StrictModel):
    """The body of POST /v1/fill-mask."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)
    position: int | None = Field(
        None, description="Index of the token to predict, the same in each input; null selects the mask tokens."
    )
    layers: LayersOrAll = Field(
        default_factory=lambda: [-1],
        description="Layers 0 (embedding output) to L, -L-1 to -1 from the end, or `all`.",
    )
    top_k: int | None = Field(
        None,
        description=f"Predictions per position and layer, 1 to {MAX_TOP_K}; null selects {DEFAULT_TOP_K}, or all "
        "targets.",
    )
    targets: Annotated[list[str], FirstError(), at_most("targets")] | None = Field(
        None, description="The only entries of the vocabulary to return: entries, or texts of one token."
    )
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)


BODIES = (FillMaskBody,)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the route of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        PATH,
        operation_id="fill_mask",
        summary="Fill mask",
        responses=responses(FillMaskResponseBody),
        openapi_extra=body_schema(FillMaskBody),
    )
    async def fill_mask(request: Request) -> Response:
        """Return the words that the model predicts for tokens. Requires a model with a masked-LM head."""
        body = await reader.read(request, FillMaskBody)
        inputs = to_inputs(body.inputs)
        reject_spans(inputs)
        engine = lifecycle.models.find(body.model)
        work = engine.fill_mask(
            FillMaskRequest(
                inputs,
                position=body.position,
                layers=None if body.layers == "all" else tuple(body.layers),
                top_k=body.top_k,
                targets=None if body.targets is None else tuple(body.targets),
                truncation=body.truncation,
                deadline=reader.deadline(request),
            )
        )
        response = await work
        document = {
            "model": response.model,
            "precision": response.precision,
            "results": await convert(
                lambda result: {
                    "token_count": result.token_count, "truncated": result.truncated, "positions": result.positions,
                },
                response.results,
            ),
            "usage": usage_body(response.token_count, response.truncated_inputs),
        }  # fmt: skip
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    return router
