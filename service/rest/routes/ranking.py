"""Bodies that /v1/rerank and /v2/rerank share: documents to rank, and responses that Cohere's clients read."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, Tag

from service.engine.schema.explain import Unit
from service.engine.schema.labels import ScoredBy
from service.errors import ConflictingFields, Empty, MissingField, WrongType, json_type
from service.rest.codec import FirstError, at_most, by_type
from service.rest.problems import ITEM_TAG, OTHER_TAG
from service.rest.schemas import UsageBody

DOCUMENT_BYTES = 32
"""The bytes around a document: its name, and that of the text."""
SEPARATOR = "\n"
"""Separates the fields of a document that `rank_fields` selects."""


class DocumentBody(BaseModel):
    """A document to rank. Other fields are returned with the document."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    text: str | None = Field(None, description="The document's text. Required without `rank_fields`.")


Document = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[DocumentBody, Tag(ITEM_TAG)], by_type(str, OTHER_TAG, ITEM_TAG)
]
Documents = Annotated[list[Document], FirstError(), at_most("documents")]


def returned_bytes(documents: Sequence[str | DocumentBody]) -> int:
    """Return the size of documents in a response, as JSON objects."""
    values = (document if isinstance(document, str) else document.model_dump() for document in documents)
    return sum(DOCUMENT_BYTES + len(orjson.dumps(value)) for value in values)


class RankExplanationBody(BaseModel):
    """The effects of U query units and V document units on a score."""

    query_units: list[Unit] = Field(description="Tokens or words of the query.")
    document_units: list[Unit] = Field(description="Tokens or words of the document.")
    query_effects: list[float] = Field(description="Score less the score without each query unit, (U).")
    document_effects: list[float] = Field(description="Score less the score without each document unit, (V).")


class RankedDocumentBody(BaseModel):
    """A document and its score."""

    index: int = Field(description="Index of the document in the request.")
    relevance_score: float = Field(description="The score. Scores of different models are not comparable.")
    document: dict[str, Any] | None = Field(
        None, description="The document, with `return_documents`: `text` and the other fields that were sent."
    )
    explanation: RankExplanationBody | None = Field(None, description="With `effect`, for the best documents.")


class RerankUsageBody(UsageBody):
    """Token counts of a rerank request."""

    total_tokens: int = Field(description="The same as `tokens`, under Jina's name.")


class ApiVersionBody(BaseModel):
    """Version of Cohere's API."""

    version: str


class TokensBody(BaseModel):
    """Number of tokens."""

    input_tokens: int = Field(description="Number of tokens, special tokens and prompts included.")


class MetaBody(BaseModel):
    """Metadata in Cohere's format."""

    api_version: ApiVersionBody
    billed_units: TokensBody
    tokens: TokensBody


class RerankResponseBody(BaseModel):
    """The response of /v1/rerank. `id`, `object` and `meta` are for clients of Cohere and Jina."""

    id: str = Field(description="Request ID.")
    object: Literal["list"]
    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    scored_by: ScoredBy = Field(description="What computed the scores.")
    results: list[RankedDocumentBody] = Field(description="The documents, best first.")
    usage: RerankUsageBody
    meta: MetaBody


def to_texts(documents: Sequence[str | DocumentBody], rank_fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the text of each document. Raises `InvalidArgument` for a document without the required fields."""
    if rank_fields is not None and not rank_fields:
        raise Empty("empty", "Leave it out or name at least one field.", field="rank_fields")
    return tuple(_to_text(document, rank_fields, f"documents[{index}]") for index, document in enumerate(documents))


def _to_text(document: str | DocumentBody, rank_fields: Sequence[str] | None, path: str) -> str:
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
            raise WrongType(
                f"wrong type of the field that rank_fields[{number}] names", "Send a string.",
                field=path, actual=json_type(text),
            )  # fmt: skip
        texts.append(text)
    return SEPARATOR.join(texts)


def to_object(document: str | DocumentBody) -> dict[str, Any]:
    """Return a document as the clients of Cohere and Jina expect it: an object, with all fields as sent."""
    if isinstance(document, str):
        return {"text": document}
    text = {} if "text" not in document.model_fields_set else {"text": document.text}
    return text | (document.model_extra or {})


def meta(version: str, tokens: int) -> dict[str, Any]:
    """Return the metadata of a response in Cohere's format."""
    return {
        "api_version": {"version": version},
        "billed_units": {"input_tokens": tokens},
        "tokens": {"input_tokens": tokens},
    }
