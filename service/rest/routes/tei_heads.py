"""The routes of TEI that require a head: /predict, /rerank and /embed_sparse."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response

from model.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.schema.encode import EncodeRequest, Input, Truncation
from service.engine.schema.labels import ClassifyRequest, LabelScore, RankedDocument, RerankRequest
from service.errors import ServiceError, Unsupported
from service.lifecycle import Lifecycle
from service.rest.codec import cut
from service.rest.requests import RequestReader
from service.rest.responses import json_response
from service.rest.routes.tei_bodies import (
    TeiEmbedSparseBody,
    TeiPredictBody,
    TeiPredictionBody,
    TeiRankBody,
    TeiRerankBody,
    TeiSparseValueBody,
)
from service.rest.routes.tei_conversion import (
    check_not_empty,
    check_pairs,
    compute_headers,
    describe_sparse,
    items_of,
    to_inputs,
)
from service.rest.routes.tei_route import HEAD_ERRORS, post
from service.steps import convert


def add_head_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> None:
    """Add the routes that require a head."""

    @post(router, "/embed_sparse", "embed_sparse", TeiEmbedSparseBody, list[list[TeiSparseValueBody]], HEAD_ERRORS)
    async def embed_sparse(request: Request) -> Response:
        """Return one sparse embedding per input. Requires a SPLADE model, or another one with sparse vectors."""
        body = await reader.read(request, TeiEmbedSparseBody)
        check_not_empty(body.inputs, "inputs")
        engine, items = lifecycle.models.find(), items_of(body.inputs)
        if "sparse" not in engine.info.outputs:
            raise Unsupported("The model has no sparse vectors", "Use /embed.")
        response = await engine.encode(
            EncodeRequest(
                to_inputs(items, body.truncation, engine),
                outputs=("sparse",),
                truncation=body.truncation,
                prompt_name=body.prompt_name,
                deadline=reader.deadline(request),
            )
        )
        embeddings = await convert(describe_sparse, [result.sparse for result in response.results])
        headers = compute_headers(request, engine.info, response, sum(map(len, items)))
        return await json_response(request, embeddings, headers)

    @post(router, "/rerank", "rerank", TeiRerankBody, list[TeiRankBody], HEAD_ERRORS)
    async def rerank(request: Request) -> Response:
        """Return the scores of texts for a query, best first. Requires a cross-encoder."""
        body = await reader.read(request, TeiRerankBody)
        check_not_empty(body.texts, "texts")
        engine = lifecycle.models.find()
        if len(engine.info.labels) != 1:
            raise Unsupported("The model is not a reranking model", "Use /similarity.")
        limit = engine.info.limits.max_input_characters
        work = engine.rerank(
            RerankRequest(
                cut(body.query, body.truncation, limit),
                tuple(cut(text, body.truncation, limit) for text in body.texts),
                raw_scores=body.raw_scores is True,
                truncation=body.truncation,
                deadline=reader.deadline(request),
            )
        )
        with documents_as_texts():
            response = await work
        texts = body.texts if body.return_text else None
        ranks = [_rank(result, texts) for result in response.results]
        headers = compute_headers(request, engine.info, response, sum(map(len, (body.query, *body.texts))))
        return await json_response(request, ranks, headers)

    predictions = list[TeiPredictionBody] | list[list[TeiPredictionBody]]

    @post(router, "/predict", "predict", TeiPredictBody, predictions, HEAD_ERRORS)
    async def predict(request: Request) -> Response:
        """Return the scores of the labels of each input. Requires a classification model."""
        body = await reader.read(request, TeiPredictBody)
        check_pairs(body.inputs)
        engine = lifecycle.models.find()
        if not engine.info.labels:
            raise Unsupported("The model is not a classification model", "Use another model.")
        items, is_batch = pairs_of(body.inputs)
        response = await engine.classify(
            ClassifyRequest(
                tuple(_input(item, body.truncation, engine) for item in items),
                raw_scores=body.raw_scores is True,
                truncation=body.truncation,
                deadline=reader.deadline(request),
            )
        )
        results = [[_prediction(label) for label in result.labels] for result in response.results]
        headers = compute_headers(request, engine.info, response, sum(len(text) for item in items for text in item))
        return await json_response(request, results if is_batch else results[0], headers)


@contextmanager
def documents_as_texts() -> Iterator[None]:
    """Name documents as this route does, in errors."""
    try:
        yield
    except ServiceError as error:
        if error.field is not None:
            error.field = error.field.replace("documents", "texts", 1)
        raise


def pairs_of(inputs: Any) -> tuple[list[list[str]], bool]:
    """Return the texts of each input, and whether the request has a list of inputs."""
    if isinstance(inputs, str):
        return [[inputs]], False
    if inputs and isinstance(inputs[0], str):
        return [inputs], False
    return list(inputs), True


def _input(texts: list[str], truncation: Truncation, engine: Engine) -> Input:
    text, *pair = (cut(text, truncation, engine.info.limits.max_input_characters) for text in texts)
    return Input(TokenizerInput(text, pair[0] if pair else None))


def _rank(result: RankedDocument, texts: list[str] | None) -> dict[str, Any]:
    rank: dict[str, Any] = {"index": result.index, "score": result.score}
    return rank if texts is None else rank | {"text": texts[result.index]}


def _prediction(label: LabelScore) -> dict[str, Any]:
    return {"score": label.score, "label": label.label}
