"""The native API of labels and rankings: /v1/classify and /v1/rerank."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service.engine.schema.encode import Truncation
from service.engine.schema.labels import (
    ClassifyRequest,
    ClassifyResult,
    LabelEffect,
    LabelScore,
    RankedDocument,
    RerankRequest,
)
from service.engine.schema.similarity import SimilarityUnit
from service.lifecycle import Lifecycle
from service.limits import reject_spans
from service.rest.codec import (
    INPUTS_DESCRIPTION,
    MODEL_DESCRIPTION,
    TRUNCATION_DESCRIPTION,
    FirstError,
    Inputs,
    StrictModel,
    at_most,
    body_schema,
    to_inputs,
)
from service.rest.head_schemas import ClassifyResponseBody
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.routes.ranking import (
    DocumentBody,
    Documents,
    RerankResponseBody,
    meta,
    returned_bytes,
    to_object,
    to_texts,
)
from service.rest.schemas import responses
from service.steps import convert

CLASSIFY_PATH, RERANK_PATH = PATHS = ("/v1/classify", "/v1/rerank")

RAW_SCORES_DESCRIPTION = "Whether to return logits instead of scores."
EFFECT_DESCRIPTION = "Whether to measure what each unit contributes to a score, by encoding the text without the unit."
UNIT_DESCRIPTION = "Units of effects. null is `word`. Requires `effect`."
TRUNCATE_DESCRIPTION = "Ignored, except that it changes the default of `truncation` to `right`."
VERSION = "1"
"""Version of Cohere's API that shares /v1/rerank."""


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


class RerankBody(StrictModel):
    """The body of POST /v1/rerank."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    query: str = Field(description="The query.")
    documents: Documents = Field(description="The documents, each a text or an object with `text` and other fields.")
    rank_fields: Annotated[list[str], FirstError(), at_most("spans")] | None = Field(
        None, description="Fields of the documents to rank, in this order. null is `text`."
    )
    top_n: int | None = Field(
        None, description="Number of documents to return, best first.", json_schema_extra={"minimum": 1}
    )
    return_documents: bool = Field(
        False, description="Whether to return the documents as objects: a text as `{text}`, an object as it was sent."
    )
    raw_scores: bool = Field(False, description=RAW_SCORES_DESCRIPTION)
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    effect: LabelEffect = Field("none", description=EFFECT_DESCRIPTION)
    unit: SimilarityUnit | None = Field(None, description=UNIT_DESCRIPTION)
    explain_top: int | None = Field(
        None,
        description="Number of documents to return effects for, best first. null is 3. Requires `effect`.",
        json_schema_extra={"minimum": 1},
    )
    max_chunks_per_doc: int | None = Field(None, description=TRUNCATE_DESCRIPTION)
    max_tokens_per_doc: int | None = Field(None, description=TRUNCATE_DESCRIPTION)


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
        responses=responses(RerankResponseBody),
        openapi_extra=body_schema(RerankBody),
    )
    async def rerank(request: Request) -> Response:
        """Return the documents by their relevance to the query, best first."""
        body = await reader.read(request, RerankBody)
        engine = lifecycle.models.find(body.model)
        response = await engine.rerank(_rerank_request(body, reader.deadline(request)))
        sent = body.documents if body.return_documents else None
        tokens = response.token_count
        document = {
            "id": request.scope["record"].request_id,
            "object": "list",
            "model": response.model,
            "precision": response.precision,
            "results": await convert(lambda result: _ranked(result, sent), response.results),
            "usage": usage_body(tokens, response.truncated_inputs) | {"total_tokens": tokens},
            "meta": meta(VERSION, tokens),
        }
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    return router


def _rerank_request(body: RerankBody, deadline: float | None) -> RerankRequest:
    truncation: Truncation = body.truncation
    limits = (body.max_chunks_per_doc, body.max_tokens_per_doc)
    if "truncation" not in body.model_fields_set and limits != (None, None):
        truncation = "right"
    return RerankRequest(
        query=body.query,
        documents=to_texts(body.documents, body.rank_fields),
        top_n=body.top_n,
        raw_scores=body.raw_scores,
        truncation=truncation,
        effect=body.effect,
        unit=body.unit,
        explain_top=body.explain_top,
        returned_bytes=returned_bytes(body.documents) if body.return_documents else 0,
        deadline=deadline,
    )


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


def _ranked(result: RankedDocument, documents: Sequence[str | DocumentBody] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"index": result.index, "relevance_score": result.score}
    if documents is not None:
        body["document"] = to_object(documents[result.index])
    if (explanation := result.explanation) is not None:
        body["explanation"] = {
            "query_units": explanation.query_units,
            "document_units": explanation.document_units,
            "query_effects": explanation.query_effects.values,
            "document_effects": explanation.document_effects.values,
        }
    return body
