"""Cohere's API, version 2: /v2/rerank and /v2/embed. /v1/rerank is in labels.py."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from model.artifact.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.schema.encode import Array, DType, EncodeRequest, EncodeResponse, Input, Side, Truncation
from service.engine.schema.labels import RankedDocument, RerankRequest
from service.errors import Duplicate, Empty, ServiceError
from service.lifecycle import Lifecycle
from service.limits import cut
from service.rest.codec import MODEL_DESCRIPTION, FirstError, StrictModel, at_most, body_schema
from service.rest.requests import RequestReader
from service.rest.responses import Base64, json_response, metadata_headers
from service.rest.routes.ranking import DocumentBody, Documents, MetaBody, meta, returned_bytes, to_object, to_texts
from service.rest.schemas import ERRORS, responses
from service.spelling import Spelling
from service.steps import convert

API = "cohere"
RERANK_PATH, EMBED_PATH = PATHS = ("/v2/rerank", "/v2/embed")
VERSION = "2"

InputType = Literal["search_query", "search_document", "classification", "clustering"]
EmbeddingType = Literal["float", "int8", "ubinary", "binary", "base64"]
Truncate = Literal["NONE", "START", "END"]

ROLES: dict[InputType, Side] = {"search_query": "query", "search_document": "document"}
DTYPES: dict[EmbeddingType, DType] = {
    "float": "float32", "base64": "float32", "int8": "int8", "ubinary": "ubinary", "binary": "ubinary"
}  # fmt: skip
TRUNCATIONS: dict[Truncate, Truncation] = {"NONE": "error", "START": "left", "END": "right"}
PATH_NAMES = {"dimensions": "output_dimension", "dtype": "embedding_types", "prompt_name": "input_type"}
TRUNCATE_VALUES = {truncation: truncate for truncate, truncation in TRUNCATIONS.items()}
FLOAT: Any = ("float",)
SIGN_BIT = 128


class CohereSpelling(Spelling):
    """Names of Cohere's API in error messages."""

    def path(self, path: str) -> str:
        path = path.replace("inputs", "texts", 1) if path.startswith("inputs") else path
        return PATH_NAMES.get(path, path)

    def value(self, field: str, value: str) -> str:
        return super().value(field, TRUNCATE_VALUES[value] if field == "truncation" else value)  # type: ignore[index]

    def option(self, field: str) -> str | None:
        return "truncate" if field == "truncation" else None


COHERE = CohereSpelling()


class CohereRerankBody(StrictModel):
    """The body of POST /v2/rerank."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    query: str = Field(description="The query.")
    documents: Documents = Field(description="The documents, each a text or an object with `text`.")
    top_n: int | None = Field(
        None, description="Number of documents to return, best first.", json_schema_extra={"minimum": 1}
    )
    return_documents: bool | None = Field(None, description="Whether to return the documents.")
    max_tokens_per_doc: int | None = Field(
        None, description="Ignored: documents are truncated at the model's token limit."
    )
    priority: int | None = Field(None, description="Ignored.")


class CohereEmbedBody(StrictModel):
    """The body of POST /v2/embed."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    texts: Annotated[list[str], FirstError(), at_most("inputs")] = Field(description="The texts.")
    input_type: InputType = Field(
        description="Kind of text. `search_query` and `search_document` select the model's prompt for queries or "
        "documents, if any; the others select none."
    )
    embedding_types: Annotated[list[EmbeddingType], FirstError(), at_most("outputs")] | None = Field(
        None, description="Types of the embeddings to return. null is `float`."
    )
    output_dimension: int | None = Field(
        None,
        description="Number of leading components to return (Matryoshka truncation).",
        json_schema_extra={"minimum": 1},
    )
    truncate: Truncate | None = Field(
        None,
        description="What to do with texts over the token limit: reject, drop the start, or drop the end. null drops "
        "tokens where the model's tokenizer does, usually at the end.",
    )
    priority: int | None = Field(None, description="Ignored.")


BODIES = (CohereRerankBody, CohereEmbedBody)


class CohereErrorBody(BaseModel):
    """The body of every error of Cohere's API."""

    id: str = Field(description="Request ID, as in the server log.")
    message: str = Field(description="Message for people.")


class CohereRankBody(BaseModel):
    """A document and its score."""

    index: int = Field(description="Index of the document in the request.")
    relevance_score: float = Field(description="The score. Scores of different models are not comparable.")
    document: dict[str, Any] | None = Field(None, description="The document, with `return_documents`.")


class CohereRerankResponseBody(BaseModel):
    """The response of /v2/rerank."""

    id: str = Field(description="Request ID.")
    results: list[CohereRankBody] = Field(description="The documents, best first.")
    meta: MetaBody


class CohereEmbeddingsBody(BaseModel):
    """Embeddings of each requested type, one per text."""

    float_: list[list[float]] | None = Field(None, alias="float", description="float32 components.")
    int8: list[list[int]] | None = Field(None, description="Components from -127 to 127.")
    ubinary: list[list[int]] | None = Field(None, description="Sign bits of 8 components per number, 0 to 255.")
    binary: list[list[int]] | None = Field(None, description="`ubinary` minus 128.")
    base64: list[str] | None = Field(None, description="float32 components, little-endian, in base64.")


class CohereEmbedResponseBody(BaseModel):
    """The response of /v2/embed."""

    id: str = Field(description="Request ID.")
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereEmbeddingsBody = Field(description="Embeddings by type, in the order of the texts.")
    texts: list[str] = Field(description="The texts.")
    meta: MetaBody


def make_router(lifecycle: Lifecycle, reader: RequestReader) -> APIRouter:
    """Return the routes of this API."""
    router = APIRouter(tags=["cohere"])

    @router.post(
        RERANK_PATH,
        operation_id="cohere_rerank",
        summary="Rerank",
        responses=responses(CohereRerankResponseBody, CohereErrorBody, tuple(ERRORS)),
        openapi_extra=body_schema(CohereRerankBody),
    )
    async def rerank(request: Request) -> Response:
        """Return the documents by their relevance to the query, best first."""
        body = await reader.read(request, CohereRerankBody)
        engine = lifecycle.models.find(body.model)
        response = await engine.rerank(
            RerankRequest(
                cut(body.query, "auto", engine.info),
                tuple(cut(text, "auto", engine.info) for text in to_texts(body.documents, None)),
                top_n=body.top_n,
                truncation="auto",
                returned_bytes=returned_bytes(body.documents) if body.return_documents else 0,
                deadline=reader.deadline(request),
            )
        )
        sent = body.documents if body.return_documents else None
        document = {
            "id": request.scope["record"].request_id,
            "results": await convert(lambda result: _ranked(result, sent), response.results),
            "meta": meta(VERSION, response.token_count),
        }
        return await json_response(request, document, metadata_headers(response, engine.info.digest))

    @router.post(
        EMBED_PATH,
        operation_id="cohere_embed",
        summary="Embed",
        responses=responses(CohereEmbedResponseBody, CohereErrorBody, tuple(ERRORS)),
        openapi_extra=body_schema(CohereEmbedBody),
    )
    async def embed(request: Request) -> Response:
        """Return embeddings of the texts, in one or more types."""
        body = await reader.read(request, CohereEmbedBody)
        types = _types(body)
        engine = lifecycle.models.find(body.model)
        encoded: dict[DType, EncodeResponse] = {}
        for dtype in dict.fromkeys(DTYPES[kind] for kind in types):
            encoded[dtype] = await engine.encode(_encode_request(body, dtype, engine, reader.deadline(request)))
        response = next(iter(encoded.values()))
        document = {
            "id": request.scope["record"].request_id,
            "response_type": "embeddings_by_type",
            "embeddings": {kind: _embeddings(kind, encoded[DTYPES[kind]]) for kind in types},
            "texts": body.texts,
            "meta": meta(VERSION, response.token_count),
        }
        headers = metadata_headers(response, engine.info.digest)
        return await json_response(request, document, headers, compress="base64" not in types)

    return router


def render_error(error: ServiceError, request_id: str) -> bytes:
    """Return Cohere's error body."""
    return orjson.dumps({"id": request_id, "message": error.message})


def _types(body: CohereEmbedBody) -> Sequence[EmbeddingType]:
    types: Sequence[EmbeddingType] = FLOAT if body.embedding_types is None else body.embedding_types
    if not types:
        raise Empty("empty", "Leave it out or name at least one.", field="embedding_types")
    if len(set(types)) < len(types):
        raise Duplicate("contains the same type twice", "Remove one.", field="embedding_types")
    return types


def _encode_request(body: CohereEmbedBody, dtype: DType, engine: Engine, deadline: float | None) -> EncodeRequest:
    truncation: Truncation = "auto" if body.truncate is None else TRUNCATIONS[body.truncate]
    role = ROLES.get(body.input_type)
    return EncodeRequest(
        tuple(Input(TokenizerInput(cut(text, truncation, engine.info))) for text in body.texts),
        dimensions=body.output_dimension,
        truncation=truncation,
        prompt="" if role is None else None,
        role=role,
        dtype=dtype,
        wire="base64" if body.embedding_types == ["base64"] else "json",
        deadline=deadline,
    )


def _embeddings(kind: EmbeddingType, response: EncodeResponse) -> list[Any]:
    return [_embedding(kind, result.pooled) for result in response.results]


def _embedding(kind: EmbeddingType, array: Array | None) -> Any:
    assert array is not None
    if kind == "base64":
        return Base64(array)
    return (array.values ^ SIGN_BIT).view("i1") if kind == "binary" else array.values


def _ranked(result: RankedDocument, documents: Sequence[str | DocumentBody] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"index": result.index, "relevance_score": result.score}
    return body if documents is None else body | {"document": to_object(documents[result.index])}
