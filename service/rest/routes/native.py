"""The native API: one route per contract operation, /v1/rerank, and the served models."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from attendant_client.types import (
    ModelInfo,
    Operation,
    RankedDocument,
    RerankRequest,
    RerankResponse,
    Truncation,
    Usage,
)
from attendant_client.wire import fields_of
from fastapi import Request
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from service.errors import ConflictingFields, Empty, MissingField, WrongType, json_type
from service.lifecycle import Lifecycle
from service.operations.inputs import cut
from service.operations.table import OPERATIONS
from service.rest.api import GET_STATUSES, STATUSES, Api, ErrorResponse, Exchange, Handler, Route
from service.rest.bodies import (
    FirstError,
    LooseBool,
    PromptTokensRequest,
    at_most,
    list_of,
    model_of,
    schema_of,
    text_or,
    to_contract,
)
from service.rest.responses import to_document
from service.rest.routes import tei
from service.spelling import ENGINE

SEPARATOR = "\n"
"""Separates the fields of a document that `rank_fields` selects."""
DOCUMENT_BYTES = 32
"""Overhead per document in bytes: the field names of the document and its text."""
DESCRIPTIONS = {field.name: field.description for field in fields_of(RerankRequest)}
TRUNCATE_DESCRIPTION = "Ignored, except that it changes the default of `truncation` to `auto`."
COHERE_VERSION = "1"
"""Version of Cohere's API that shares the request of /v1/rerank."""
DOCUMENTS, TEXTS = "documents", "texts"
"""The field unique to native rerank requests, and the field unique to TEI's."""
OWNER = "attendant"


def run(operation: Operation) -> Handler:
    """Return the handler of an operation, which uses the contract's request and response types."""
    kind = OPERATIONS[operation].request

    async def handler(exchange: Exchange, body: Any) -> Any:
        request = to_contract(kind, body)
        encoded = getattr(request, "encoding_format", "float") == "base64"
        exchange.compress = not encoded
        engine = exchange.find(request.model)
        response = await exchange.run(operation, engine, request, wire="base64" if encoded else "json")
        return await to_document(response, encoded=encoded)

    handler.__doc__ = OPERATIONS[operation].run.__doc__
    return handler


def operation_route(operation: Operation) -> Route:
    """Return the route of an operation."""
    entry = OPERATIONS[operation]
    return Route(
        f"/v1/{operation.replace('_', '-')}",
        operation,
        run(operation),
        schema_of(entry.response),
        (model_of(entry.request),),
        summary=operation.capitalize().replace("_", " "),
        headers=operation != "tokenize",
        shed=entry.fast_lane,
    )


# Rerank


class RestDocument(BaseModel):
    """A document to rank. Other fields are returned with the document."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    text: str | None = Field(None, description="The document's text. Required without `rank_fields`.")


Documents = list_of(text_or(RestDocument), "documents")


def _name_truncation(value: Any) -> Any:
    """Return the truncation that Voyage's clients name with true or false."""
    return {True: "auto", False: "error"}[value] if isinstance(value, bool) else value


class RerankExtensions(PromptTokensRequest):
    """Fields of clients of Cohere and Jina, which may send others that have no effect here."""

    documents: Documents = Field(  # type: ignore[valid-type]
        description="The documents, each a text or an object with `text` and other fields."
    )
    rank_fields: Annotated[list[str], FirstError(), at_most("spans")] | None = Field(
        None, description="Fields of the documents to rank, in this order. null is `text`."
    )
    return_documents: LooseBool = Field(
        False, description="Whether to return the documents as objects: a text as `{text}`, an object as it was sent."
    )
    top_n: int | None = Field(
        None,
        validation_alias=AliasChoices("top_n", "top_k"),
        description=DESCRIPTIONS["top_n"],
        json_schema_extra={"minimum": 1},
    )
    truncation: Annotated[Truncation, BeforeValidator(_name_truncation)] = Field(
        "error", description=DESCRIPTIONS["truncation"]
    )
    max_chunks_per_doc: int | None = Field(None, description=TRUNCATE_DESCRIPTION)
    max_tokens_per_doc: int | None = Field(None, description=TRUNCATE_DESCRIPTION)


RestRerankRequest = model_of(RerankRequest, RerankExtensions)


class ApiVersion(BaseModel):
    """Version of Cohere's API."""

    version: str


class InputTokens(BaseModel):
    """Number of tokens."""

    input_tokens: int = Field(description="Number of tokens, special tokens and prompts included.")


class Meta(BaseModel):
    """Metadata in Cohere's format."""

    api_version: ApiVersion
    billed_units: InputTokens
    tokens: InputTokens


class RestRankedDocument(schema_of(RankedDocument)):  # type: ignore[misc]
    """A document and its score."""

    document: dict[str, Any] | None = Field(
        None, description="The document, with `return_documents`: `text` and the other fields that were sent."
    )


class RankUsage(schema_of(Usage)):  # type: ignore[misc]
    """Token counts of a request."""

    total_tokens: int = Field(description="The same number as `tokens`.")


class RestRerankResponse(schema_of(RerankResponse)):  # type: ignore[misc]
    """The documents, best first."""

    model_config = ConfigDict(title="RerankResponse")

    id: str = Field(description="Request ID.")
    object: Literal["list"]
    results: list[RestRankedDocument] = Field(description="The documents, best first.")
    usage: RankUsage
    meta: Meta


def meta(version: str, tokens: int) -> dict[str, Any]:
    """Return the metadata of a response in Cohere's format."""
    count = {"input_tokens": tokens}
    return {"api_version": {"version": version}, "billed_units": count, "tokens": count}


def returned_bytes(documents: Sequence[str | RestDocument]) -> int:
    """Return the size of documents in a response, as JSON objects."""
    values = (document if isinstance(document, str) else document.model_dump() for document in documents)
    return sum(DOCUMENT_BYTES + len(orjson.dumps(value)) for value in values)


def to_texts(documents: Sequence[str | RestDocument], rank_fields: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the text of each document. Raises `InvalidArgument` for a document without the required fields."""
    if rank_fields is not None and not rank_fields:
        raise Empty("empty", "Leave it out or name at least one field.", field="rank_fields")
    return tuple(_to_text(document, rank_fields, f"documents[{index}]") for index, document in enumerate(documents))


def _to_text(document: str | RestDocument, rank_fields: Sequence[str] | None, path: str) -> str:
    if isinstance(document, str):
        if rank_fields:
            raise ConflictingFields("not an object, but rank_fields is set", "Leave rank_fields out.", field=path)
        return document
    if rank_fields is None:
        if document.text is None:
            raise MissingField("missing", "Send it.", field=f"{path}.text")
        return document.text
    fields = to_object(document)
    texts = []
    for number, name in enumerate(rank_fields):
        text = fields.get(name)
        if text is None:
            raise MissingField(f"lacks the field that rank_fields[{number}] names", "Send it.", field=path)
        if not isinstance(text, str):
            problem = f"wrong type of the field that rank_fields[{number}] names"
            raise WrongType(problem, "Send a string.", field=path, actual=json_type(text))
        texts.append(text)
    return SEPARATOR.join(texts)


def to_object(document: str | RestDocument) -> dict[str, Any]:
    """Return a document as Cohere's and Jina's clients expect: an object with all fields as sent."""
    if isinstance(document, str):
        return {"text": document}
    text = {} if "text" not in document.model_fields_set else {"text": document.text}
    return text | (document.model_extra or {})


async def rerank(exchange: Exchange, body: Any) -> Any:
    """Return the documents by their relevance to the query, best first. With `texts`, do what /rerank does."""
    if isinstance(body, tei.TeiRerankRequest):
        return await tei.rerank_texts(exchange, body)
    engine = exchange.find(body.model)
    query, texts, truncation = body.query, to_texts(body.documents, body.rank_fields), body.truncation
    if "truncation" not in body.model_fields_set:  # the client's API may not support setting it
        is_coheres = (body.max_chunks_per_doc, body.max_tokens_per_doc) != (None, None)
        truncation = exchange.truncation(body, engine)
        truncation = "auto" if is_coheres else truncation
        query, texts = cut(query, truncation, engine.info), tuple(cut(text, truncation, engine.info) for text in texts)
    request = RerankRequest(
        query,
        texts,
        body.model,
        body.top_n,
        body.raw_scores,
        truncation,
        body.effect,
        body.unit,
        body.explain_top,
    )
    sent = body.documents if body.return_documents else None
    size = 0 if sent is None else returned_bytes(sent)
    response = await exchange.run("rerank", engine, request, returned_bytes=size)
    document = await to_document(response)
    if sent is not None:
        document["results"] = [
            described | {"document": to_object(sent[result.index])}
            for described, result in zip(document["results"], response.results, strict=True)
        ]
    tokens = response.token_count
    usage = {"tokens": tokens, "truncated_inputs": response.truncated_inputs, "total_tokens": tokens}
    names = {"id": exchange.record.request_id, "object": "list"}
    return names | document | {"usage": usage, "meta": meta(COHERE_VERSION, tokens)}


def select_rerank(default: str) -> Any:
    """Return the function that selects the body model of a rerank request by the fields it contains.

    `default`, `DOCUMENTS` or `TEXTS`, applies to a body with both fields or neither. Later errors use the selected
    API's format.
    """

    def select(request: Request, lifecycle: Lifecycle, document: Any) -> type[BaseModel]:
        name = rerank_field(default, document if isinstance(document, dict) else ())
        request.scope["record"].api = API_NAMES[name]
        return RERANK_BODIES[name]

    return select


def rerank_field(default: str, fields: Any) -> str:
    """Return the field that selects the body model for a body with these fields."""
    other = TEXTS if default == DOCUMENTS else DOCUMENTS
    return other if other in fields and default not in fields else default


RERANK_BODIES: dict[str, type[BaseModel]] = {DOCUMENTS: RestRerankRequest, TEXTS: tei.TeiRerankRequest}
API_NAMES = {DOCUMENTS: "rest", TEXTS: tei.NAME}
RERANK_PATHS = {"/v1/rerank": DOCUMENTS, "/rerank": TEXTS}
"""The default field of each path."""


# The served models


class ModelObject(schema_of(ModelInfo)):  # type: ignore[misc]
    """A served model: OpenAI's fields, properties, digest, precision and limits."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The response of /v1/models."""

    object: Literal["list"]
    data: list[ModelObject]


async def describe_model(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return a model under one of its names, in OpenAI's format with more fields."""
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER} | await to_document(info)


async def get_model(exchange: Exchange, body: None) -> Any:
    """Return the default model, as in /v1/models."""
    info = exchange.find().info
    return await describe_model(info, info.name)


API = Api(
    "rest",
    "native",
    "Embeddings, attention maps, rankings and labels, with every option. docs/api.md describes each operation.",
    (
        *(operation_route(operation) for operation in OPERATIONS if operation != "rerank"),
        Route(
            "/v1/rerank",
            "rerank",
            rerank,
            RestRerankResponse | list[tei.TeiRank],
            (RestRerankRequest, tei.TeiRerankRequest),
            select_rerank(DOCUMENTS),
            summary="Rerank",
            statuses=(*STATUSES, 424),
            errors=(ErrorResponse, tei.TeiErrorResponse),
            shed="always",
        ),
        Route(
            "/v1/model",
            "get_model",
            get_model,
            ModelObject,
            summary="Get the default model",
            tag="models",
            statuses=GET_STATUSES,
            headers=False,
        ),
    ),
    ENGINE,
)
