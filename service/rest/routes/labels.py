"""The native API of labels and rankings: /v1/classify and /v1/rerank."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, Tag

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
    by_type,
    to_inputs,
)
from service.rest.problems import ITEM_TAG, OTHER_TAG
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.schemas import ClassifyResponseBody, RerankResponseBody, responses
from service.steps import convert

RAW_SCORES_DESCRIPTION = "Whether to return logits instead of scores."
EFFECT_DESCRIPTION = "Whether to measure what each unit contributes to a score, by encoding the text without the unit."
UNIT_DESCRIPTION = "Units of effects."


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
    unit: SimilarityUnit = Field("word", description=UNIT_DESCRIPTION)


class DocumentBody(StrictModel):
    """A document to rank."""

    text: str = Field(description="The text of the document.")


Document = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[DocumentBody, Tag(ITEM_TAG)], by_type(str, OTHER_TAG, ITEM_TAG)
]


class RerankBody(StrictModel):
    """The body of POST /v1/rerank."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    query: str = Field(description="The query.")
    documents: Annotated[list[Document], FirstError(), at_most("documents")] = Field(
        description="The documents, each a text or an object with `text`."
    )
    top_n: int | None = Field(
        None, description="Number of documents to return, best first.", json_schema_extra={"minimum": 1}
    )
    return_documents: bool = Field(False, description="Whether to return the documents, as they were sent.")
    raw_scores: bool = Field(False, description=RAW_SCORES_DESCRIPTION)
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    effect: LabelEffect = Field("none", description=EFFECT_DESCRIPTION)
    unit: SimilarityUnit = Field("word", description=UNIT_DESCRIPTION)
    explain_top: int | None = Field(
        None,
        description="Number of documents to return effects for, best first. null is 3. Requires `effect`.",
        json_schema_extra={"minimum": 1},
    )


BODIES = (ClassifyBody, RerankBody)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        "/v1/classify",
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
        "/v1/rerank",
        operation_id="rerank",
        summary="Rerank",
        responses=responses(RerankResponseBody),
        openapi_extra=body_schema(RerankBody),
    )
    async def rerank(request: Request) -> Response:
        """Return the documents by their relevance to the query, best first."""
        body = await reader.read(request, RerankBody)
        engine = lifecycle.models.find(body.model)
        fields = body.model_dump(exclude={"model", "documents", "return_documents"})
        documents = tuple(item if isinstance(item, str) else item.text for item in body.documents)
        response = await engine.rerank(RerankRequest(documents=documents, **fields, deadline=reader.deadline(request)))
        sent = body.documents if body.return_documents else None
        document = {
            "model": response.model,
            "precision": response.precision,
            "results": await convert(lambda result: _ranked(result, sent), response.results),
            "usage": usage_body(response.token_count, response.truncated_inputs),
        }
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

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


def _ranked(result: RankedDocument, documents: list[str | DocumentBody] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"index": result.index, "relevance_score": result.score}
    if documents is not None:
        document = documents[result.index]
        body["document"] = document if isinstance(document, str) else {"text": document.text}
    if (explanation := result.explanation) is not None:
        body["explanation"] = {
            "query_units": explanation.query_units,
            "document_units": explanation.document_units,
            "query_effects": explanation.query_effects.values,
            "document_effects": explanation.document_effects.values,
        }
    return body
