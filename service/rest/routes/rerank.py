"""Rerank requests of /v1/rerank and /rerank: the field of the texts selects the native API or TEI's."""

from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import BaseModel, Field

from service.engine.schema.encode import Truncation
from service.engine.schema.labels import LabelEffect, RankedDocument, RerankRequest
from service.engine.schema.similarity import SimilarityUnit
from service.lifecycle import Lifecycle
from service.rest.codec import MODEL_DESCRIPTION, TRUNCATION_DESCRIPTION, FirstError, StrictModel, at_most
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers, usage_body
from service.rest.routes import native
from service.rest.routes.ranking import DocumentBody, Documents, meta, returned_bytes, to_object, to_texts
from service.rest.routes.tei_bodies import TeiRerankBody
from service.rest.routes.tei_conversion import compute_headers
from service.steps import convert
from service.tei import description, inference
from service.tei.inference import Options, check_not_empty

DOCUMENTS, TEXTS = "documents", "texts"
"""The field that only the native request has, and the field that only TEI's has."""

RAW_SCORES_DESCRIPTION = "Whether to return logits instead of scores."
EFFECT_DESCRIPTION = "Whether to measure what each unit contributes to a score, by encoding the text without the unit."
UNIT_DESCRIPTION = "Units of effects. null is `word`. Requires `effect`."
TRUNCATE_DESCRIPTION = "Ignored, except that it changes the default of `truncation` to `auto`."
VERSION = "1"
"""Version of Cohere's API that shares the native request."""


class RerankBody(StrictModel):
    """The body of POST /v1/rerank, and of POST /rerank with `documents`."""

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


REQUESTS: Mapping[str, tuple[str, type[BaseModel]]] = {
    DOCUMENTS: (native.API, RerankBody),
    TEXTS: (description.API, TeiRerankBody),
}
"""The API and the body that each field selects."""


PATHS = {"/v1/rerank": DOCUMENTS, "/rerank": TEXTS}
"""The field that each path stands for."""


def select_api(default: str, fields: Container[str]) -> tuple[str, type[BaseModel]]:
    """Return the API and the body of a request with these fields; `default` is as in `rank`."""
    other = TEXTS if default == DOCUMENTS else DOCUMENTS
    return REQUESTS[other if other in fields and default not in fields else default]


async def rank(request: Request, lifecycle: Lifecycle, reader: RequestReader, default: str) -> Response:
    """Return the response of the API whose field the body has.

    `default`, one of `DOCUMENTS` and `TEXTS`, decides for a body with both fields or neither. Later errors are in the
    format of the selected API.
    """

    def select(document: Any) -> type[BaseModel]:
        request.scope["record"].api, body = select_api(default, document if isinstance(document, dict) else ())
        return body

    body = await reader.read_selected(request, select)
    if isinstance(body, TeiRerankBody):
        return await _rerank_texts(request, body, lifecycle, reader)
    assert isinstance(body, RerankBody)
    return await _rerank_documents(request, body, lifecycle, reader)


async def _rerank_documents(
    request: Request, body: RerankBody, lifecycle: Lifecycle, reader: RequestReader
) -> Response:
    engine = lifecycle.models.find(body.model)
    response = await engine.rerank(_rerank_request(body, reader.deadline(request)))
    sent = body.documents if body.return_documents else None
    tokens = response.token_count
    document = {
        "id": request.scope["record"].request_id,
        "object": "list",
        "model": response.model,
        "precision": response.precision,
        "scored_by": response.scored_by,
        "results": await convert(lambda result: _ranked(result, sent), response.results),
        "usage": usage_body(tokens, response.truncated_inputs) | {"total_tokens": tokens},
        "meta": meta(VERSION, tokens),
    }
    return await json_response(request, document, metadata_headers(response, engine.info.digest))


async def _rerank_texts(request: Request, body: TeiRerankBody, lifecycle: Lifecycle, reader: RequestReader) -> Response:
    check_not_empty(body.texts, TEXTS)
    engine = lifecycle.models.find()
    options = Options(body.truncation, deadline=reader.deadline(request))
    texts = body.texts if body.return_text else None
    response = await inference.rerank(
        engine,
        body.query,
        body.texts,
        options,
        raw_scores=body.raw_scores is True,
        returned_bytes=returned_bytes(texts or ()),
    )
    ranks = [_rank_body(result, texts) for result in response.results]
    headers = compute_headers(request, engine.info, response, sum(map(len, (body.query, *body.texts))))
    return await json_response(request, ranks, headers)


def _rerank_request(body: RerankBody, deadline: float | None) -> RerankRequest:
    truncation: Truncation = body.truncation
    limits = (body.max_chunks_per_doc, body.max_tokens_per_doc)
    if "truncation" not in body.model_fields_set and limits != (None, None):
        truncation = "auto"
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


def _rank_body(result: RankedDocument, texts: list[str] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"index": result.index, "score": result.score}
    return body if texts is None else body | {"text": texts[result.index]}
