"""The native API of similarity: /v1/similarity."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from service.engine.schema.encode import Array, Truncation
from service.engine.schema.similarity import (
    Effect,
    PairResult,
    Pairs,
    SimilarityFunction,
    SimilarityRequest,
    SimilarityResponse,
    SimilarityText,
    SimilarityUnit,
)
from service.lifecycle import Lifecycle
from service.rest.codec import MODEL_DESCRIPTION, TRUNCATION_DESCRIPTION, StrictModel, Texts, body_schema
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.schemas import responses
from service.rest.similarity_schemas import SimilarityResponseBody
from service.steps import convert

PATH = "/v1/similarity"


class SimilarityBody(StrictModel):
    """The body of POST /v1/similarity."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    queries: Texts = Field(description="A text or a list of texts.")
    documents: Texts = Field(description="A text or a list of texts.")
    pairs: Pairs = Field("all", description="Pairs to compare: each query with each document, or by position.")
    similarity: SimilarityFunction | None = Field(
        None,
        description="Similarity function. null selects the one that the model was trained for. Distances (euclidean, "
        "manhattan) count negatively, so that larger is always more similar. maxsim and sparse require a model with "
        "such a head.",
    )
    dimensions: int | None = Field(
        None,
        description="Number of leading components of embeddings to use (Matryoshka truncation).",
        json_schema_extra={"minimum": 1},
    )
    truncation: Truncation = Field("error", description=TRUNCATION_DESCRIPTION)
    query_prompt_name: str | None = Field(None, description="Name of the prompt of queries.")
    query_prompt: str | None = Field(None, description="Prompt to prepend to each query. An empty prompt selects none.")
    document_prompt_name: str | None = Field(None, description="Name of the prompt of documents.")
    document_prompt: str | None = Field(
        None, description="Prompt to prepend to each document. An empty prompt selects none."
    )
    explain: bool = Field(False, description="Whether to explain each pair.")
    unit: SimilarityUnit = Field("token", description="Units of explanations. Requires `explain`.")
    top_k: int | None = Field(
        None,
        description="Number of contributions to return per pair, largest magnitude first. Requires `explain`.",
        json_schema_extra={"minimum": 1},
    )
    effect: Effect = Field(
        "none", description="How to measure the effect of each unit on the score. Requires `explain`."
    )


BODIES = (SimilarityBody,)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the route of this API."""
    router = APIRouter(tags=["native"])

    @router.post(
        PATH,
        operation_id="similarity",
        summary="Similarity",
        responses=responses(SimilarityResponseBody),
        openapi_extra=body_schema(SimilarityBody),
    )
    async def similarity(request: Request) -> Response:
        """Return the similarity of queries and documents, and what each pair of words contributes to it."""
        body = await reader.read(request, SimilarityBody)
        engine = lifecycle.models.find(body.model)
        work = engine.similarity(_request(body, reader.deadline(request)))
        response = await work
        return await json_response(request, await _document(response), metadata_headers(response, engine.info.digest))

    return router


def _request(body: SimilarityBody, deadline: float | None) -> SimilarityRequest:
    fields = {name: getattr(body, name) for name in SimilarityBody.model_fields if name != "model"}
    fields["queries"], fields["documents"] = _texts(body.queries), _texts(body.documents)
    return SimilarityRequest(**fields, deadline=deadline)


def _texts(texts: str | list[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


async def _document(response: SimilarityResponse) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": response.model,
        "precision": response.precision,
        "similarity": response.similarity,
        "scores": response.scores.values,
        "queries": await convert(_text, response.queries),
        "documents": await convert(_text, response.documents),
    }
    if response.pairs is not None:
        document["pairs"] = await convert(_pair, response.pairs)
    document |= {
        "contributions_unavailable": response.unavailable,
        "usage": usage_body(response.token_count, response.truncated_inputs),
    }
    for side, prompt in (("query", response.query_prompt), ("document", response.document_prompt)):
        document[f"{side}_prompt_name"] = None if prompt is None else prompt.name
        document[f"{side}_prompt"] = None if prompt is None else prompt.text
    return document


def _text(text: SimilarityText) -> dict[str, Any]:
    document: dict[str, Any] = {"token_count": text.token_count, "truncated": text.truncated}
    return document if text.units is None else document | {"units": text.units}


def _pair(pair: PairResult) -> dict[str, Any]:
    contributions: Any = _values(pair.matrix)
    if pair.top is not None:
        contributions = {
            "query_units": pair.top.query_units,
            "document_units": pair.top.document_units,
            "values": pair.top.values.values,
        }
    terms = {name: values for name in ("matches", "products") if (values := getattr(pair, name)) is not None}
    return {
        "query": pair.query,
        "document": pair.document,
        "score": pair.score,
        "contributions": contributions,
        **terms,
        "rest": pair.rest,
        "query_effects": _values(pair.query_effects),
        "document_effects": _values(pair.document_effects),
    }


def _values(array: Array | None) -> Any:
    return None if array is None else array.values
