"""The routes of TEI that require a head: /predict, /rerank and /embed_sparse."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from service.engine.schema.labels import LabelScore
from service.lifecycle import Lifecycle
from service.rest.requests import RequestReader
from service.rest.responses import json_response
from service.rest.routes.ranking import RerankResponseBody
from service.rest.routes.rerank import TEXTS, RerankBody, rank
from service.rest.routes.tei_bodies import (
    TeiEmbedSparseBody,
    TeiPredictBody,
    TeiPredictionBody,
    TeiRankBody,
    TeiRerankBody,
    TeiSparseValueBody,
)
from service.rest.routes.tei_conversion import compute_headers, describe_sparse, items_of, to_pairs
from service.rest.routes.tei_route import HEAD_ERRORS, RANK_ERRORS, post
from service.steps import convert
from service.tei import inference
from service.tei.inference import Options, check_not_empty

Predictions = list[TeiPredictionBody] | list[list[TeiPredictionBody]]
Handler = Callable[[Request], Awaitable[Response]]


def add_head_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> tuple[Handler, Handler]:
    """Add the routes that require a head; return those of a reranker and of a classifier."""

    @post(router, "/embed_sparse", "embed_sparse", TeiEmbedSparseBody, list[list[TeiSparseValueBody]], HEAD_ERRORS)
    async def embed_sparse(request: Request) -> Response:
        """Return one sparse embedding per input. Requires a SPLADE model, or another one with sparse vectors."""
        body = await reader.read(request, TeiEmbedSparseBody)
        check_not_empty(body.inputs, "inputs")
        engine, items = lifecycle.models.find(), items_of(body.inputs)
        options = Options(body.truncation, body.prompt_name, deadline=reader.deadline(request))
        response = await inference.embed_sparse(engine, items, options)
        embeddings = await convert(describe_sparse, [result.sparse for result in response.results])
        headers = compute_headers(request, engine.info, response, sum(map(len, items)))
        return await json_response(request, embeddings, headers)

    @post(router, "/rerank", "rerank", (TeiRerankBody, RerankBody), list[TeiRankBody] | RerankResponseBody, RANK_ERRORS)
    async def rerank(request: Request) -> Response:
        """Return the scores of texts for a query, best first. Requires a cross-encoder.

        With `documents`, do what /v1/rerank does.
        """
        return await rank(request, lifecycle, reader, TEXTS)

    @post(router, "/predict", "predict", TeiPredictBody, Predictions, HEAD_ERRORS)
    async def predict(request: Request) -> Response:
        """Return the scores of the labels of each input. Requires a classification model."""
        body = await reader.read(request, TeiPredictBody)
        items, is_batch = to_pairs(body.inputs)
        engine = lifecycle.models.find()
        options = Options(body.truncation, deadline=reader.deadline(request))
        response = await inference.predict(engine, items, options, raw_scores=body.raw_scores is True)
        results = [[_prediction(label) for label in result.labels] for result in response.results]
        headers = compute_headers(request, engine.info, response, sum(len(text) for item in items for text in item))
        return await json_response(request, results if is_batch else results[0], headers)

    return rerank, predict


def _prediction(label: LabelScore) -> dict[str, Any]:
    return {"score": label.score, "label": label.label}
