"""The API of infinity, under /infinity: embeddings, rerank, classify and models."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.types import DecoratedCallable
from pydantic import BaseModel, Field

from model.artifact.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.schema.encode import EncodeRequest, EncodeResponse, EncodeResult, Input
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse, LabelScore, RerankRequest, RerankResponse
from service.errors import ServiceError
from service.lifecycle import Lifecycle
from service.limits import cut
from service.rest.codec import (
    ENCODING_DESCRIPTION,
    EncodingFormat,
    FirstError,
    StrictModel,
    Texts,
    at_most,
    body_schema,
)
from service.rest.requests import RequestReader, reject_query
from service.rest.responses import Base64, json_response, metadata_headers
from service.rest.routes.infinity_responses import (
    InfinityClassifyResponseBody,
    InfinityEmbeddingsResponseBody,
    InfinityModelsBody,
    InfinityRerankResponseBody,
)
from service.rest.routes.ranking import returned_bytes
from service.rest.schemas import ERRORS, GET_ERRORS, responses
from service.spelling import Spelling
from service.steps import convert

API = "infinity"
PREFIX = "/infinity"
EMBEDDINGS_PATH, RERANK_PATH, CLASSIFY_PATH = POST_PATHS = tuple(
    f"{PREFIX}/{name}" for name in ("embeddings", "rerank", "classify")
)
MODELS_PATH = f"{PREFIX}/models"
PATHS = (*POST_PATHS, MODELS_PATH)
UNSPECIFIED = "default/not-specified"
"""The model that infinity's clients name if the user names none."""
CAPABILITIES = {"encode": "embed", "rerank": "rerank", "classify": "classify"}

TextList = Annotated[list[str], FirstError(), at_most("inputs")]


class InfinitySpelling(Spelling):
    """Names of infinity's API in error messages."""

    def path(self, path: str) -> str:
        return path.replace("inputs", "input", 1) if path.startswith("inputs") else path

    def option(self, field: str) -> str | None:
        return None  # long inputs are always truncated


INFINITY = InfinitySpelling()


class InfinityModel(StrictModel):
    """A request that may name a model."""

    model: str = Field(UNSPECIFIED, description=f"Name or alias of the served model. `{UNSPECIFIED}` is the default.")

    @property
    def name(self) -> str | None:
        """The name of the model; None for the default model."""
        return None if self.model == UNSPECIFIED else self.model


class InfinityEmbeddingsBody(InfinityModel):
    """The body of POST /infinity/embeddings."""

    input: Texts = Field(description="A text or a list of texts.")
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    dimensions: int = Field(
        0, description="Number of leading components to return (Matryoshka truncation). 0 returns all."
    )
    modality: Literal["text"] = Field("text", description="Kind of input.")
    user: str | None = Field(None, description="Ignored.")


class InfinityRerankBody(InfinityModel):
    """The body of POST /infinity/rerank."""

    query: str = Field(description="The query.")
    documents: Annotated[list[str], FirstError(), at_most("documents")] = Field(description="The documents.")
    top_n: int | None = Field(
        None, description="Number of documents to return, best first.", json_schema_extra={"minimum": 1}
    )
    return_documents: bool = Field(False, description="Whether to return the documents.")
    raw_scores: bool = Field(False, description="Whether to return logits instead of scores.")


class InfinityClassifyBody(InfinityModel):
    """The body of POST /infinity/classify."""

    input: TextList = Field(description="The texts.")
    raw_scores: bool = Field(False, description="Whether to return logits instead of scores.")


BODIES = (InfinityEmbeddingsBody, InfinityRerankBody, InfinityClassifyBody)


class InfinityErrorDetailBody(BaseModel):
    """One error in infinity's format."""

    message: str
    type: str
    param: str | None
    code: int = Field(description="HTTP status.")


class InfinityErrorBody(BaseModel):
    """The body of every error of infinity's API."""

    error: InfinityErrorDetailBody


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["infinity"])

    def post(
        path: str, name: str, body: type[BaseModel], model: type[BaseModel]
    ) -> Callable[[DecoratedCallable], DecoratedCallable]:
        described = responses(model, InfinityErrorBody, tuple(ERRORS))
        return router.post(path, operation_id=name, responses=described, openapi_extra=body_schema(body))

    @post(EMBEDDINGS_PATH, "infinity_embeddings", InfinityEmbeddingsBody, InfinityEmbeddingsResponseBody)
    async def embeddings(request: Request) -> Response:
        """Return one embedding per text."""
        body = await reader.read(request, InfinityEmbeddingsBody)
        engine = lifecycle.models.find(body.name)
        is_base64 = body.encoding_format == "base64"
        response = await engine.encode(
            EncodeRequest(
                _inputs(body.input, engine),
                dimensions=body.dimensions or None,
                truncation="auto",
                wire="base64" if is_base64 else "json",
                deadline=reader.deadline(request),
            )
        )

        def describe(item: tuple[int, EncodeResult]) -> dict[str, Any]:
            array = item[1].pooled
            assert array is not None
            return {"object": "embedding", "embedding": Base64(array) if is_base64 else array.values, "index": item[0]}

        data = await convert(describe, list(enumerate(response.results)))
        document = {"object": "list", "data": data, **_fields(request, response)}
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, document, headers, compress=not is_base64)

    @post(RERANK_PATH, "infinity_rerank", InfinityRerankBody, InfinityRerankResponseBody)
    async def rerank(request: Request) -> Response:
        """Return the documents by their relevance to the query, best first."""
        body = await reader.read(request, InfinityRerankBody)
        engine = lifecycle.models.find(body.name)
        response = await engine.rerank(
            RerankRequest(
                cut(body.query, "auto", engine.info),
                tuple(cut(text, "auto", engine.info) for text in body.documents),
                top_n=body.top_n,
                raw_scores=body.raw_scores,
                truncation="auto",
                returned_bytes=returned_bytes(body.documents) if body.return_documents else 0,
                deadline=reader.deadline(request),
            )
        )
        results: list[dict[str, Any]] = [
            {"relevance_score": result.score, "index": result.index} for result in response.results
        ]
        if body.return_documents:
            results = [{**result, "document": body.documents[result["index"]]} for result in results]
        document = {"object": "rerank", "results": results, **_fields(request, response)}
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @post(CLASSIFY_PATH, "infinity_classify", InfinityClassifyBody, InfinityClassifyResponseBody)
    async def classify(request: Request) -> Response:
        """Return the labels of each text, best first. Requires a classifier."""
        body = await reader.read(request, InfinityClassifyBody)
        engine = lifecycle.models.find(body.name)
        inputs, deadline = _inputs(body.input, engine), reader.deadline(request)
        response = await engine.classify(
            ClassifyRequest(inputs, raw_scores=body.raw_scores, truncation="auto", deadline=deadline)
        )
        data = [[_label(label) for label in result.labels] for result in response.results]
        document = {"object": "classify", "data": data, **_fields(request, response)}
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @router.get(
        MODELS_PATH,
        operation_id="infinity_models",
        responses=responses(InfinityModelsBody, InfinityErrorBody, GET_ERRORS),
    )
    async def models(request: Request) -> Response:
        """Return the served models and their load."""
        reject_query(request)
        data = [_describe(engine) for engine in lifecycle.models]
        return await json_response(request, {"object": "list", "data": data})

    return router


def render_error(error: ServiceError) -> bytes:
    """Return infinity's error body."""
    detail = {
        "message": error.message, "type": error.reason.lower(), "param": error.field, "code": error.http_status
    }  # fmt: skip
    return orjson.dumps({"error": detail})


def _inputs(texts: str | list[str], engine: Engine) -> tuple[Input, ...]:
    listed = [texts] if isinstance(texts, str) else texts
    return tuple(Input(TokenizerInput(cut(text, "auto", engine.info))) for text in listed)


def _fields(request: Request, response: EncodeResponse | RerankResponse | ClassifyResponse) -> dict[str, Any]:
    return {
        "model": response.model,
        "usage": {"prompt_tokens": response.token_count, "total_tokens": response.token_count},
        "id": request.scope["record"].request_id,
        "created": int(time.time()),
    }


def _label(label: LabelScore) -> dict[str, Any]:
    return {"score": label.score, "label": label.label}


def _describe(engine: Engine) -> dict[str, Any]:
    admission, info = engine.fast_lane.admission, engine.info
    return {
        "id": info.name,
        "object": "model",
        "owned_by": "infinity",
        "created": 0,
        "stats": {
            "queue_fraction": admission.utilization,
            "queue_absolute": admission.backlog.tokens,
            "batch_size": engine.max_batch_tokens,
        },
        "backend": info.provider,
        "capabilities": [CAPABILITIES[name] for name in info.operations if name in CAPABILITIES],
    }
