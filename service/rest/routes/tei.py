"""The API of text-embeddings-inference (TEI): /embed, /similarity, /tokenize and others."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import EncodeRequest, EncodeResponse, TokenizeRequest
from service.engine.schema.similarity import SimilarityRequest
from service.errors import ConflictingFields, Unavailable
from service.lifecycle import Lifecycle
from service.rest.codec import JSON, cut
from service.rest.requests import RequestReader
from service.rest.responses import json_response
from service.rest.routes.tei_bodies import (
    TeiDecodeBody,
    TeiEmbedAllBody,
    TeiEmbedBody,
    TeiErrorBody,
    TeiInfoBody,
    TeiSimilarityBody,
    TeiSimilarityParametersBody,
    TeiTokenBody,
    TeiTokenizeBody,
)
from service.rest.routes.tei_conversion import (
    check_not_empty,
    compute_headers,
    describe_model,
    describe_tokens,
    items_of,
    prompt_text,
    render_error,
    to_inputs,
    values_of,
)
from service.rest.routes.tei_heads import add_head_routes
from service.rest.routes.tei_route import post
from service.rest.schemas import GET_ERRORS, TEI_ERRORS, responses

API = "tei"
ROOT_PATH = "/"
"""A path of this API for POST alone: GET returns the page."""
FAST_PATHS = ("/embed", "/embed_all", "/similarity", ROOT_PATH)
PATHS = frozenset(
    ("/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize", "/decode", "/info")
)


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["tei"])
    add_embedding_routes(router, lifecycle, reader)
    add_text_routes(router, lifecycle, reader)
    add_head_routes(router, lifecycle, reader)
    add_probes(router, lifecycle)
    return router


def add_embedding_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> None:
    """Add the routes that run the model."""

    async def encode(request: Request, encode_request: EncodeRequest) -> EncodeResponse:
        return await lifecycle.models.find().encode(encode_request)

    @post(router, ROOT_PATH, "root", TeiEmbedBody, list[list[float]])
    @post(router, "/embed", "embed", TeiEmbedBody, list[list[float]])
    async def embed(request: Request) -> Response:
        """Return one embedding per input."""
        body = await reader.read(request, TeiEmbedBody)
        info, items = lifecycle.models.find().info, items_of(body.inputs)
        response = await encode(
            request,
            EncodeRequest(
                to_inputs(items, body.truncation, lifecycle.models.find()),
                normalize=body.normalize is not False,
                dimensions=body.dimensions,
                truncation=body.truncation,
                prompt_name=body.prompt_name,
                deadline=reader.deadline(request),
            ),
        )
        embeddings = [values_of(result.pooled) for result in response.results]
        headers = compute_headers(request, info, response, sum(map(len, items)))
        return await json_response(request, embeddings, headers)

    @post(router, "/embed_all", "embed_all", TeiEmbedAllBody, list[list[list[float]]])
    async def embed_all(request: Request) -> Response:
        """Return one vector per token of each input, including special tokens and the prompt."""
        body = await reader.read(request, TeiEmbedAllBody)
        info, items = lifecycle.models.find().info, items_of(body.inputs)
        prompt = prompt_text(info, body.prompt_name, "prompt_name")
        if body.prompt_name is not None and not all(isinstance(item, str) for item in items):
            raise ConflictingFields("not supported for token ids", "Send texts.", field="prompt_name")
        response = await encode(
            request,
            # As a part of the text, the prompt has token vectors too; the engine leaves out its own prompts' vectors.
            EncodeRequest(
                to_inputs(items, body.truncation, lifecycle.models.find(), prompt),
                outputs=("tokens",),
                truncation=body.truncation,
                prompt="",
                deadline=reader.deadline(request),
            ),
        )
        vectors = [values_of(result.token_vectors) for result in response.results]
        headers = compute_headers(request, info, response, sum(map(len, items)))
        return await json_response(request, vectors, headers)

    @post(router, "/similarity", "similarity", TeiSimilarityBody, list[float])
    async def similarity(request: Request) -> Response:
        """Return the cosine similarity of one text with each of several others."""
        body = await reader.read(request, TeiSimilarityBody)
        info, source, sentences = lifecycle.models.find().info, body.inputs.source_sentence, body.inputs.sentences
        options = body.parameters or TeiSimilarityParametersBody()
        # All texts get the same prompt; the engine would select one for queries and another one for documents.
        prompt = prompt_text(info, options.prompt_name, "parameters.prompt_name")
        limit = info.limits.max_input_characters
        work = lifecycle.models.find().similarity(
            SimilarityRequest(
                (cut(source, options.truncation, limit),),
                tuple(cut(text, options.truncation, limit) for text in sentences),
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


def add_text_routes(router: APIRouter, lifecycle: Lifecycle, reader: RequestReader) -> None:
    """Add the routes of the tokenizer and of the model's description."""

    @post(router, "/tokenize", "tokenize", TeiTokenizeBody, list[list[TeiTokenBody]])
    async def tokenize(request: Request) -> Response:
        """Return the tokens of each text, prompt included, with offsets in bytes of UTF-8."""
        body = await reader.read(request, TeiTokenizeBody)
        engine = lifecycle.models.find()
        prompt = prompt_text(engine.info, body.prompt_name, "prompt_name")
        inputs = to_inputs([body.inputs] if isinstance(body.inputs, str) else body.inputs, "error", engine, prompt)
        work = engine.tokenize(TokenizeRequest(inputs, deadline=reader.deadline(request)))
        response = await work
        described = []
        for item, result in zip(inputs, response.results, strict=True):
            special = body.add_special_tokens is not False
            described.append(describe_tokens(item.source.text, result.tokens, special=special))
            await asyncio.sleep(0)  # a text may have thousands of tokens
        return await json_response(request, described)

    @post(router, "/decode", "decode", TeiDecodeBody, list[str])
    async def decode(request: Request) -> Response:
        """Return the text of each list of token ids."""
        body = await reader.read(request, TeiDecodeBody)
        check_not_empty(body.ids, "ids")
        token_ids = tuple(tuple(item) for item in items_of(body.ids) if not isinstance(item, str))
        skip = body.skip_special_tokens is not False
        work = lifecycle.models.find().decode(DecodeRequest(token_ids, skip, reader.deadline(request)))
        return await json_response(request, await work)

    @router.get(
        "/info", operation_id="tei_info", responses=responses(TeiInfoBody, TeiErrorBody, GET_ERRORS, TEI_ERRORS)
    )
    async def info(request: Request) -> Response:
        """Return the served model and its limits."""
        return await json_response(request, describe_model(lifecycle.models.find()))


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
