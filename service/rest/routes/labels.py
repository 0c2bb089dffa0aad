"""The native API of labels and rankings: /v1/classify and /v1/rerank."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service.engine.schema.encode import Truncation
from service.engine.schema.labels import (
    ClassifyRequest,
    ClassifyResult,
    LabelEffect,
    LabelScore,
)
from service.engine.schema.similarity import SimilarityUnit
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
from service.rest.head_schemas import ClassifyResponseBody
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.routes.ranking import RerankResponseBody
from service.rest.routes.rerank import (
    DOCUMENTS,
    EFFECT_DESCRIPTION,
    RAW_SCORES_DESCRIPTION,
    UNIT_DESCRIPTION,
    RerankBody,
    rank,
)
from service.rest.routes.tei_bodies import TeiErrorBody, TeiRankBody, TeiRerankBody
from service.rest.schemas import ERRORS, TEI_ERRORS, ErrorBody, responses
from service.steps import convert

CLASSIFY_PATH, RERANK_PATH = PATHS = ("/v1/classify", "/v1/rerank")

RERANK_ERRORS = (*ERRORS, 424)
"""The errors of /v1/rerank, which also accepts TEI's request."""


class ClassifyBody(StrictModel):
    """The body of POST /v1/classify."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    inputs: Inputs = Field(description=INPUTS_DESCRIPTION)
    top_k: int | None = Field(
        None, description="Number of labels to return per input, best first.", json_schema_extra={"minimum": 1}
    )
    raw_scores: bool = Field(False, description=RAW_SCORES_DESCRIPTION)
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    effect: LabelEffect = Field("none", description=EFFECT_DESCRIPTION)
    unit: SimilarityUnit | None = Field(None, description=UNIT_DESCRIPTION)


BODIES = (ClassifyBody, RerankBody)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        CLASSIFY_PATH,
        operation_id="classify",
        summary="Classify",
        responses=responses(ClassifyResponseBody),
        openapi_extra=body_schema(ClassifyBody),
    )
    async def classify(request: Request) -> Response:
        """Return the labels of each input. Requires a model with a classifier."""
        body = await reader.read(request, ClassifyBody)
        inputs = to_inputs(body.inputs)
        reject_spans(inputs)
        engine = lifecycle.models.find(body.model)
        fields = body.model_dump(exclude={"model", "inputs"})
        response = await engine.classify(ClassifyRequest(inputs, **fields, deadline=reader.deadline(request)))
        document = {
            "model": response.model,
            "precision": response.precision,
            "results": await convert(_classified, response.results),
            "usage": usage_body(response.token_count, response.truncated_inputs),
        }
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @router.post(
        RERANK_PATH,
        operation_id="rerank",
        summary="Rerank",
        responses=responses(
            RerankResponseBody | list[TeiRankBody], (ErrorBody, TeiErrorBody), RERANK_ERRORS, TEI_ERRORS
        ),
        openapi_extra=body_schema(RerankBody, TeiRerankBody),
    )
    async def rerank(request: Request) -> Response:
        """Return the documents by their relevance to the query, best first. With `texts`, do what /rerank does."""
        return await rank(request, lifecycle, reader, DOCUMENTS)

    return router


def _classified(result: ClassifyResult) -> dict[str, Any]:
    body: dict[str, Any] = {
        "token_count": result.token_count,
        "truncated": result.truncated,
        "labels": [_label(label) for label in result.labels],
    }
    return body if result.units is None else body | {"units": result.units}


def _label(label: LabelScore) -> dict[str, Any]:
    body: dict[str, Any] = {"label": label.label, "score": label.score}
    return body if label.effects is None else body | {"effects": label.effects.values}
