"""The native API of token labels: /v1/token-classify."""

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service.engine.schema.encode import Truncation
from service.engine.schema.entities import Aggregation, TokenClassifyRequest
from service.lifecycle import Lifecycle
from service.limits import reject_spans
from service.rest.codec import (
    INPUTS_DESCRIPTION,
    MODEL_DESCRIPTION,
    TRUNCATION_DESCRIPTION,
    Inputs,
    StrictModel,
    body_schema,
    to_inputs,
)
from service.rest.head_schemas import TokenClassifyResponseBody
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.schemas import responses
from service.steps import convert

PATH = "/v1/token-classify"


class TokenClassifyBody(StrictModel):
    """The body of POST /v1/token-classify."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)
    aggregation: Aggregation = Field(
        "simple",
        description="How to join labels to entities: not at all, of neighboring tokens, or of words, whose label is "
        "that of the first token, of the average of the scores, or of the highest score.",
    )
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)


BODIES = (TokenClassifyBody,)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the route of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        PATH,
        operation_id="token_classify",
        summary="Token classify",
        responses=responses(TokenClassifyResponseBody),
        openapi_extra=body_schema(TokenClassifyBody),
    )
    async def token_classify(request: Request) -> Response:
        """Return the entities of each input. Requires a model with a token classifier."""
        body = await reader.read(request, TokenClassifyBody)
        inputs = to_inputs(body.inputs)
        reject_spans(inputs)
        engine = lifecycle.models.find(body.model)
        work = engine.token_classify(
            TokenClassifyRequest(inputs, body.aggregation, body.truncation, deadline=reader.deadline(request))
        )
        response = await work
        document = {
            "model": response.model,
            "precision": response.precision,
            "results": await convert(
                lambda result: {
                    "token_count": result.token_count, "truncated": result.truncated, "entities": result.entities,
                },
                response.results,
            ),
            "usage": usage_body(response.token_count, response.truncated_inputs),
        }  # fmt: skip
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    return router
