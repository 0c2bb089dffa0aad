"""The API of vLLM for pooling models: /score, /v1/score, /classify and /pooling."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from model.artifact.tokenizer import TokenizerInput
from service.engine.encode.pooling import shortest
from service.engine.engine import Engine
from service.engine.schema.encode import EncodeResponse, Input, Truncation
from service.engine.schema.labels import (
    ClassifyRequest,
    ClassifyResponse,
    ClassifyResult,
    RerankRequest,
    RerankResponse,
)
from service.engine.schema.model import ModelInfo
from service.engine.schema.operations import Output
from service.engine.schema.similarity import SimilarityFunction, SimilarityRequest, SimilarityResponse
from service.errors import Empty, InvalidArgument, ServiceError, UnsupportedByModel, WrongShape
from service.lifecycle import Lifecycle
from service.limits import cut
from service.rest.codec import body_schema
from service.rest.requests import RequestReader
from service.rest.responses import json_response, metadata_headers
from service.rest.routes.vllm_bodies import (
    NO_LIMIT,
    VllmClassifyBody,
    VllmClassifyResponseBody,
    VllmErrorBody,
    VllmPoolingBody,
    VllmPoolingResponseBody,
    VllmScoreBody,
    VllmScoreResponseBody,
)
from service.rest.routes.vllm_pooling import in_order, pool
from service.rest.schemas import responses
from service.spelling import Spelling

API = "vllm"
SCORE_PATHS, CLASSIFY_PATH, POOLING_PATH = ("/score", "/v1/score"), "/classify", "/pooling"
PATHS = (*SCORE_PATHS, CLASSIFY_PATH, POOLING_PATH)
ERRORS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 501, 503, 504)
ERROR_TYPES = {401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}

Scored = RerankResponse | ClassifyResponse | SimilarityResponse | EncodeResponse


class VllmSpelling(Spelling):
    """Names of vLLM's API in error messages. Texts of /score have names of their own; see `name_text`."""

    def path(self, path: str) -> str:
        return path.replace("inputs", "input", 1) if path.startswith("inputs") else path

    def value(self, field: str, value: str) -> str:
        return str(NO_LIMIT) if field == "truncation" else super().value(field, value)

    def option(self, field: str) -> str | None:
        return "truncate_prompt_tokens" if field == "truncation" else None


VLLM = VllmSpelling()


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["vllm"])
    described = responses(VllmScoreResponseBody, VllmErrorBody, ERRORS)
    options: dict[str, Any] = {
        "summary": "Score", "responses": described, "openapi_extra": body_schema(VllmScoreBody)
    }  # fmt: skip

    @router.post(SCORE_PATHS[0], operation_id="vllm_score", **options)
    @router.post(SCORE_PATHS[1], operation_id="vllm_v1_score", **options)
    async def score(request: Request) -> Response:
        """Return the score of each pair of texts. Requires a cross-encoder, an embedding model, ColBERT or SPLADE."""
        body = await reader.read(request, VllmScoreBody)
        engine = lifecycle.models.find(body.model)
        try:
            response, scores = await _score(body, engine, reader.deadline(request))
        except ServiceError as error:
            if error.field is not None:
                error.field = name_text(error.field, body)
            raise
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
        document = _document(request, response, data)
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @router.post(
        CLASSIFY_PATH,
        operation_id="vllm_classify",
        summary="Classify",
        responses=responses(VllmClassifyResponseBody, VllmErrorBody, ERRORS),
        openapi_extra=body_schema(VllmClassifyBody),
    )
    async def classify(request: Request) -> Response:
        """Return the best label of each input and the scores of all labels. Requires a classifier."""
        body = await reader.read(request, VllmClassifyBody)
        engine = lifecycle.models.find(body.model)
        truncation = body.truncation(engine)
        inputs = tuple(Input(TokenizerInput(text)) for text in _cut(to_list(body.input), truncation, engine))
        response = await engine.classify(
            ClassifyRequest(
                inputs, raw_scores=body.raw_scores, truncation=truncation, deadline=reader.deadline(request)
            )
        )
        labels = engine.info.labels
        data = [{"index": index, **_labels(result, labels)} for index, result in enumerate(response.results)]
        document = _document(request, response, data)
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @router.post(
        POOLING_PATH,
        operation_id="vllm_pooling",
        summary="Pooling",
        responses=responses(VllmPoolingResponseBody, VllmErrorBody, ERRORS),
        openapi_extra=body_schema(VllmPoolingBody),
    )
    async def pooling(request: Request) -> Response:
        """Return the embedding, the token vectors or the scores of the labels of each input."""
        body = await reader.read(request, VllmPoolingBody)
        engine = lifecycle.models.find(body.model)
        truncation = body.truncation(engine)
        inputs = tuple(Input(TokenizerInput(text)) for text in _cut(to_list(body.input), truncation, engine))
        response, results = await pool(body, engine, inputs, reader.deadline(request))
        data = [{"index": index, "object": "pooling", "data": result} for index, result in enumerate(results)]
        document = _document(request, response, data)
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, document, headers, compress=body.encoding_format != "base64")

    return router


def render_error(error: ServiceError) -> bytes:
    """Return vLLM's error body."""
    status = http_status(error)
    kind = ERROR_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return orjson.dumps({"error": {"message": error.message, "type": kind, "param": error.field, "code": status}})


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error. As in the OpenAI API, invalid content has status 400."""
    return 400 if isinstance(error, InvalidArgument) else error.http_status


async def _score(body: VllmScoreBody, engine: Engine, deadline: float | None) -> tuple[Scored, Sequence[float]]:
    """Return the engine's response and the score of each pair."""
    truncation = body.truncation(engine)
    first, second = (_cut(to_list(texts), truncation, engine) for texts in (body.text_1, body.text_2))
    _check_counts(len(first), len(second))
    is_zipped = len(first) > 1
    if not engine.info.labels:
        similar = await engine.similarity(
            SimilarityRequest(
                first, second, pairs="zip" if is_zipped else "all", similarity=score_function(engine.info),
                truncation=truncation, deadline=deadline,
            )
        )  # fmt: skip
        values = similar.scores.values if is_zipped else similar.scores.values[0]
        return similar, [shortest(value) for value in values]
    if len(engine.info.labels) > 1:
        raise UnsupportedByModel("The model has several labels", "Use a cross-encoder or an embedding model.")
    if is_zipped and "classify" not in engine.info.operations:  # Rerank has one query per request
        raise UnsupportedByModel("several texts are not supported for this model", "Send one.", field="text_1")
    if is_zipped:
        inputs = tuple(Input(TokenizerInput(text, pair)) for text, pair in zip(first, second, strict=True))
        labeled = await engine.classify(
            ClassifyRequest(inputs, raw_scores=body.raw_scores, truncation=truncation, deadline=deadline)
        )
        return labeled, [result.labels[0].score for result in labeled.results]
    ranked = await engine.rerank(
        RerankRequest(first[0], second, raw_scores=body.raw_scores, truncation=truncation, deadline=deadline)
    )
    return ranked, [result.score for result in sorted(ranked.results, key=lambda result: result.index)]


def score_function(info: ModelInfo) -> SimilarityFunction:
    """Return the function that scores a pair, as vLLM does: the embeddings of BGE-M3, but the vectors of ColBERT."""
    functions: dict[Output, SimilarityFunction] = {"multi_vector": "maxsim", "sparse": "sparse"}
    own = [function for output, function in functions.items() if output in info.outputs]
    return own[0] if len(own) == 1 else "cosine"


def _check_counts(first: int, second: int) -> None:
    for field, count in (("text_1", first), ("text_2", second)):
        if not count:
            raise Empty("empty", "Send at least one text.", field=field)
    if first not in (1, second):
        raise WrongShape(
            "wrong number of texts", "Send one text in text_1, or as many as in text_2.",
            field="text_2", actual=second, minimum=first, maximum=first,
        )  # fmt: skip


def name_text(path: str, body: VllmScoreBody) -> str:
    """Return the path of a text of /score, which is a query, a document or a part of an input for the engine."""
    name, bracket, rest = path.partition("[")
    index, _, part = rest.partition("]")
    if name == "inputs":
        name = "text_2" if part == ".pair" else "text_1"
    elif name in ("query", "queries"):
        name = "text_1"
    elif name == "documents":
        name = "text_2"
    else:
        return path
    is_text = isinstance(getattr(body, name), str)
    return f"{name}[{index}]" if bracket and not is_text else name


def to_list(texts: str | list[str]) -> list[str]:
    """Return one or several texts as a list."""
    return [texts] if isinstance(texts, str) else texts


def _cut(texts: Sequence[str], truncation: Truncation, engine: Engine) -> tuple[str, ...]:
    return tuple(cut(text, truncation, engine.info) for text in texts)


def _labels(result: ClassifyResult, labels: Sequence[str]) -> dict[str, Any]:
    scores = in_order(result, labels)
    return {"label": result.labels[0].label, "probs": scores, "num_classes": len(labels)}


def _document(request: Request, response: Scored, data: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": request.scope["record"].request_id,
        "object": "list",
        "created": int(time.time()),
        "model": response.model,
        "data": data,
        "usage": {"prompt_tokens": response.token_count, "total_tokens": response.token_count},
    }
