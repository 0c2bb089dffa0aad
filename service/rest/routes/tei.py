"""The API of text-embeddings-inference (TEI): /embed, /similarity, /tokenize and others."""

from typing import Any

from fastapi import APIRouter, Request, Response

from service.engine.schema.similarity import SimilarityRequest
from service.errors import Unavailable
from service.lifecycle import Lifecycle
from service.limits import cut
from service.rest.codec import JSON
from service.rest.requests import RequestReader
from service.rest.responses import json_response
from service.rest.routes.ranking import RerankResponseBody
from service.rest.routes.rerank import RerankBody
from service.rest.routes.tei_bodies import (
    TeiDecodeBody,
    TeiEmbedAllBody,
    TeiEmbedBody,
    TeiErrorBody,
    TeiInfoBody,
    TeiPredictBody,
    TeiRankBody,
    TeiRerankBody,
    TeiSimilarityBody,
    TeiSimilarityParametersBody,
    TeiTokenBody,
    TeiTokenizeBody,
)
from service.rest.routes.tei_conversion import compute_headers, items_of, render_error, values_of
from service.rest.routes.tei_heads import Handler, Predictions, add_head_routes
from service.rest.routes.tei_route import RANK_ERRORS, post
from service.rest.schemas import GET_ERRORS, TEI_ERRORS, responses
from service.steps import convert
from service.tei import description, inference
from service.tei.inference import Options, check_not_empty, prompt_text

API = description.API
ROOT_PATH = "/"
"""A path of this API for POST alone: GET returns the page."""
FAST_PATHS = ("/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", ROOT_PATH)
PATHS = frozenset(
    ("/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize", "/decode", "/info")
)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["tei"])
    embed = add_embedding_routes(router, lifecycle, reader)
    add_text_routes(router, lifecycle, reader)
    rerank, predict = add_head_routes(router, lifecycle, reader)
    add_probes(router, lifecycle)
    handlers = {"embedding": embed, "reranker": rerank, "classifier": predict}

    @post(
        router,
        ROOT_PATH,
        "root",
        (TeiEmbedBody, TeiRerankBody, RerankBody, TeiPredictBody),
        list[list[float]] | list[TeiRankBody] | RerankResponseBody | Predictions,
        RANK_ERRORS,
    )
    async def root(request: Request) -> Response:
        """Do what /embed, /rerank or /predict does, by the kind of the model."""
        return await handlers[description.model_type(lifecycle.models.find())](request)

    return router


def add_embedding_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> Handler:
    """Add the routes of an embedding model; return that of /embed."""

    @post(router, "/embed", "embed", TeiEmbedBody, list[list[float]])
    async def embed(request: Request) -> Response:
        """Return one embedding per input."""
        body = await reader.read(request, TeiEmbedBody)
        engine, items = lifecycle.models.find(), items_of(body.inputs)
        options = Options(body.truncation, body.prompt_name, deadline=reader.deadline(request))
        response = await inference.embed(
            engine, items, options, normalize=body.normalize is not False, dimensions=body.dimensions
        )
        embeddings = [values_of(result.pooled) for result in response.results]
        headers = compute_headers(request, engine.info, response, sum(map(len, items)))
        return await json_response(request, embeddings, headers)

    @post(router, "/embed_all", "embed_all", TeiEmbedAllBody, list[list[list[float]]])
    async def embed_all(request: Request) -> Response:
        """Return one vector per token of each input, including special tokens and the prompt."""
        body = await reader.read(request, TeiEmbedAllBody)
        engine, items = lifecycle.models.find(), items_of(body.inputs)
        options = Options(body.truncation, body.prompt_name, deadline=reader.deadline(request))
        response = await inference.embed_all(engine, items, options)
        vectors = [values_of(result.token_vectors) for result in response.results]
        headers = compute_headers(request, engine.info, response, sum(map(len, items)))
        return await json_response(request, vectors, headers)

    @post(router, "/similarity", "similarity", TeiSimilarityBody, list[float])
    async def similarity(request: Request) -> Response:
        """Return the cosine similarity of one text with each of several others."""
        body = await reader.read(request, TeiSimilarityBody)
        info, source, sentences = lifecycle.models.find().info, body.inputs.source_sentence, body.inputs.sentences
        options = body.parameters or TeiSimilarityParametersBody()
        # All texts get the same prompt; the engine would select one for queries and another one for documents.
        prompt = prompt_text(info, options.prompt_name, "parameters.prompt_name")
        work = lifecycle.models.find().similarity(
            SimilarityRequest(
                (cut(source, options.truncation, info),),
                tuple(cut(text, options.truncation, info) for text in sentences),
                similarity="cosine",
                truncation=options.truncation,
                query_prompt=prompt,
                document_prompt=prompt,
                deadline=reader.deadline(request),
            )
        )
        response = await work
        headers = compute_headers(request, info, response, sum(map(len, (source, *sentences))))
        return await json_response(request, response.scores.values[0], headers)

    return embed


def add_text_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> None:
    """Add the routes of the tokenizer and of the model's description."""

    @post(router, "/tokenize", "tokenize", TeiTokenizeBody, list[list[TeiTokenBody]])
    async def tokenize(request: Request) -> Response:
        """Return the tokens of each text, prompt included, with offsets in bytes of UTF-8."""
        body = await reader.read(request, TeiTokenizeBody)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        options = Options(prompt_name=body.prompt_name, deadline=reader.deadline(request))
        tokenized = await inference.tokenize(lifecycle.models.find(), texts, options)
        special = body.add_special_tokens is not False
        described = await convert(
            lambda item: inference.describe_tokens(item[0], item[1].tokens, special=special), tokenized
        )
        return await json_response(request, described)

    @post(router, "/decode", "decode", TeiDecodeBody, list[str])
    async def decode(request: Request) -> Response:
        """Return the text of each list of token ids."""
        body = await reader.read(request, TeiDecodeBody)
        check_not_empty(body.ids, "ids")
        token_ids = [item for item in items_of(body.ids) if not isinstance(item, str)]
        texts = await inference.decode(
            lifecycle.models.find(),
            token_ids,
            skip_special_tokens=body.skip_special_tokens is not False,
            deadline=reader.deadline(request),
        )
        return await json_response(request, texts)

    @router.get(
        "/info", operation_id="tei_info", responses=responses(TeiInfoBody, TeiErrorBody, GET_ERRORS, TEI_ERRORS)
    )
    async def info(request: Request) -> Response:
        """Return the served model and its limits."""
        return await json_response(request, description.describe_model(lifecycle.models.find()))


def add_probes(router: APIRouter, lifecycle: Lifecycle) -> None:
    """Add the health checks."""
    described: dict[int | str, dict[str, Any]] = {
        200: {"description": "Requests are accepted."},
        503: {"model": TeiErrorBody, "description": "Server is starting, draining or failed."},
    }

    @router.get("/ping", operation_id="tei_ping", responses=described, response_class=Response)
    @router.get("/health", operation_id="tei_health", responses=described, response_class=Response)
    async def health(request: Request) -> Response:
        """Return 200 while requests are accepted, otherwise 503."""
        if lifecycle.ready:
            return Response()
        error = Unavailable(f"Server is not ready (status {lifecycle.status.value})", "Retry later.")
        return Response(render_error(error), error.http_status, media_type=JSON)
