"""Cohere's API, version 2: /v2/rerank and /v2/embed. /v1/rerank is native."""

from typing import Annotated, Any, Literal

from attendant_client.types import (
    Array,
    Dtype,
    EncodeRequest,
    EncodeResponse,
    RerankRequest,
    Role,
    TextInputs,
    Truncation,
)
from attendant_client.wire import Base64
from pydantic import BaseModel, Field

from service.errors import Duplicate, Empty, ServiceError, UnknownField
from service.operations.encode import pooled_vectors
from service.operations.inputs import cut
from service.rest.api import Api, Dimensions, Exchange, Route, TopN
from service.rest.bodies import MODEL_DESCRIPTION, FirstError, ForeignModel, LooseBool, TextList, at_most
from service.rest.routes.native import Documents, Meta, meta, returned_bytes, to_object, to_texts
from service.spelling import Spelling
from service.steps import convert

NAME = "cohere"
VERSION = "2"

InputType = Literal["search_query", "search_document", "classification", "clustering"]
EmbeddingType = Literal["float", "int8", "ubinary", "binary", "base64"]
Truncate = Literal["NONE", "START", "END"]

ROLES: dict[InputType, Role] = {"search_query": "query", "search_document": "document"}
DTYPES: dict[EmbeddingType, Dtype] = {
    "float": "float32", "base64": "float32", "int8": "int8", "ubinary": "ubinary", "binary": "ubinary"
}  # fmt: skip
TRUNCATIONS: dict[Truncate, Truncation] = {"NONE": "error", "START": "left", "END": "right"}
SIGN_BIT = 128


class CohereRerankRequest(ForeignModel):
    """The body of POST /v2/rerank."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    query: str = Field(description="The query.")
    documents: Documents = Field(description="The documents, each a text or an object with `text`.")
    top_n: TopN = None
    return_documents: LooseBool | None = Field(None, description="Whether to return the documents.")


class CohereEmbedRequest(ForeignModel):
    """The body of POST /v2/embed."""

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    texts: TextList = Field(description="The texts.")
    input_type: InputType = Field(
        description="Kind of text. `search_query` and `search_document` select the model's prompt for queries or "
        "documents, if any; the others select none."
    )
    embedding_types: Annotated[list[EmbeddingType], FirstError(), at_most("outputs")] | None = Field(
        None, description="Types of the embeddings to return. null is `float`."
    )
    output_dimension: Dimensions = None
    truncate: Truncate | None = Field(
        None,
        description="What to do with texts over the token limit: reject, drop the start, or drop the end. null drops "
        "tokens where the model's tokenizer does, usually at the end.",
    )


class CohereErrorResponse(BaseModel):
    """The body of every error of Cohere's API."""

    id: str = Field(description="Request ID, as in the server log.")
    message: str = Field(description="Message for people.")


class CohereRank(BaseModel):
    """A document and its score."""

    index: int = Field(description="Index of the document in the request.")
    relevance_score: float = Field(description="The score. Scores of different models are not comparable.")
    document: dict[str, Any] | None = Field(None, description="The document, with `return_documents`.")


class CohereRerankResponse(BaseModel):
    """The response of /v2/rerank."""

    id: str = Field(description="Request ID.")
    results: list[CohereRank] = Field(description="The documents, best first.")
    meta: Meta


class CohereEmbeddings(BaseModel):
    """Embeddings of each requested type, one per text."""

    float_: list[list[float]] | None = Field(None, alias="float", description="float32 components.")
    int8: list[list[int]] | None = Field(None, description="Components from -127 to 127.")
    ubinary: list[list[int]] | None = Field(None, description="Sign bits of 8 components per number, 0 to 255.")
    binary: list[list[int]] | None = Field(None, description="`ubinary` minus 128.")
    base64: list[str] | None = Field(None, description="float32 components, little-endian, in base64.")


class CohereEmbedResponse(BaseModel):
    """The response of /v2/embed."""

    id: str = Field(description="Request ID.")
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereEmbeddings = Field(description="Embeddings by type, in the order of the texts.")
    texts: list[str] = Field(description="The texts.")
    meta: Meta


async def rerank(exchange: Exchange, body: CohereRerankRequest) -> Any:
    """Return the documents by their relevance to the query, best first."""
    engine, documents = exchange.find(body.model), body.documents if body.return_documents else None
    request = RerankRequest(
        cut(body.query, "auto", engine.info),
        tuple(cut(text, "auto", engine.info) for text in to_texts(body.documents)),
        top_n=body.top_n,
        truncation="auto",
    )
    size = 0 if documents is None else returned_bytes(documents)
    response = await exchange.run("rerank", engine, request, returned_bytes=size)

    def describe(result: Any) -> dict[str, Any]:
        described = {"index": result.index, "relevance_score": result.relevance_score}
        return described if documents is None else described | {"document": to_object(documents[result.index])}

    results = await convert(describe, response.results)
    return {"id": exchange.record.request_id, "results": results, "meta": meta(VERSION, response.token_count)}


async def embed(exchange: Exchange, body: CohereEmbedRequest) -> Any:
    """Return embeddings of the texts, in one or more types."""
    for name in (name for name in ("images", "inputs") if name in (body.model_extra or {})):
        raise UnknownField(f"{name} is not supported", "Send texts only.")
    types: list[EmbeddingType] = ["float"] if body.embedding_types is None else body.embedding_types
    if not types:
        raise Empty("empty", "Leave it out or name at least one.", field="embedding_types")
    if len(set(types)) < len(types):
        raise Duplicate("contains the same type twice", "Remove one.", field="embedding_types")
    engine, role = exchange.find(body.model), ROLES.get(body.input_type)
    truncation: Truncation = "auto" if body.truncate is None else TRUNCATIONS[body.truncate]
    inputs = TextInputs([cut(text, truncation, engine.info) for text in body.texts])
    encoded: dict[Dtype, EncodeResponse] = {}
    for dtype in dict.fromkeys(DTYPES[kind] for kind in types):
        request = EncodeRequest(
            inputs, dimensions=body.output_dimension, truncation=truncation, prompt="" if role is None else None,
            role=role, dtype=dtype,
        )  # fmt: skip
        wire = "base64" if types == ["base64"] else "json"
        first = dict(exchange.headers)
        encoded[dtype] = await exchange.run("encode", engine, request, wire=wire)
        exchange.headers |= first
    exchange.compress = "base64" not in types
    response = next(iter(encoded.values()))
    return {
        "id": exchange.record.request_id,
        "response_type": "embeddings_by_type",
        "embeddings": {kind: _embeddings(kind, pooled_vectors(encoded[DTYPES[kind]])) for kind in types},
        "texts": body.texts,
        "meta": meta(VERSION, response.token_count),
    }


def _embeddings(kind: EmbeddingType, vectors: Array) -> Any:
    if kind == "base64":
        return [Base64(vector) for vector in vectors]
    return (vectors ^ SIGN_BIT).view("i1") if kind == "binary" else vectors


def render_error(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return Cohere's error document."""
    return {"id": request_id, "message": error.message}


API = Api(
    NAME,
    "cohere",
    "Cohere's API, version 2, for its clients.",
    (
        Route(
            "/v2/rerank", "cohere_rerank", rerank, CohereRerankResponse, (CohereRerankRequest,), summary="Rerank",
            shed="always",
        ),
        Route(
            "/v2/embed", "cohere_embed", embed, CohereEmbedResponse, (CohereEmbedRequest,), summary="Embed",
            shed="always",
        ),
    ),
    Spelling(
        {
            "inputs": "texts", "dimensions": "output_dimension", "dtype": "embedding_types",
            "prompt_name": "input_type",
        },
        {"truncation": "truncate"},
        values={"truncation": {truncation: f'"{truncate}"' for truncate, truncation in TRUNCATIONS.items()}},
        cuts_texts=True,
    ),
    error=CohereErrorResponse,
    render=render_error,
)  # fmt: skip
