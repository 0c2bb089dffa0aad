"""Schemas of the responses of /v1/similarity for the OpenAPI document."""

from pydantic import BaseModel, Field

from service.engine.schema.explain import Unit
from service.engine.schema.similarity import (
    ContributionRest,
    SharedEntry,
    SimilarityFunction,
    TokenMatch,
    UnavailableReason,
)
from service.rest.schemas import UsageBody


class SimilarityTextBody(BaseModel):
    """A query or a document."""

    token_count: int = Field(description="Number of tokens, special tokens and prompt included.")
    truncated: bool = Field(description="Whether the text was truncated.")
    units: list[Unit] | None = Field(None, description="Tokens or words, with `explain`.")


class TopContributionsBody(BaseModel):
    """The K contributions of the largest magnitude, in descending order of magnitude."""

    query_units: list[int] = Field(description="Query unit of each contribution.")
    document_units: list[int] = Field(description="Document unit of each contribution.")
    values: list[float] = Field(description="Contributions.")


class SimilarityPairBody(BaseModel):
    """The explanation of one pair of U query units and V document units."""

    query: int = Field(description="Index of the query.")
    document: int = Field(description="Index of the document.")
    score: float = Field(description="The score. If contributions are available, they and `rest` sum to it.")
    contributions: list[list[float]] | TopContributionsBody | None = Field(
        description="Contributions of pairs of units, (U, V), or the largest ones by magnitude; null if unavailable."
    )
    rest: ContributionRest | None = Field(
        description="Terms of the score that are not listed as contributions; null if unavailable."
    )
    query_effects: list[float] | None = Field(
        description="Score less the score without each query unit, (U); null without `effect`."
    )
    document_effects: list[float] | None = Field(
        description="Score less the score without each document unit, (V); null without `effect`."
    )
    matches: list[TokenMatch] | None = Field(None, description="Terms of the score, with `maxsim`.")
    products: list[SharedEntry] | None = Field(
        None, description="Terms of the score, with `sparse`, unless it is a distance."
    )


class SimilarityResponseBody(BaseModel):
    """The response of /v1/similarity."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    similarity: SimilarityFunction = Field(description="The similarity function.")
    scores: list[list[float]] | list[float] = Field(
        description="Scores of Q queries and N documents, (Q, N), or (Q) for zipped pairs."
    )
    queries: list[SimilarityTextBody] = Field(description="The queries, in the order of the request.")
    documents: list[SimilarityTextBody] = Field(description="The documents, in the order of the request.")
    pairs: list[SimilarityPairBody] | None = Field(None, description="One element per pair, with `explain`.")
    contributions_unavailable: UnavailableReason | None = Field(
        description="Reason why no pair has contributions; null if they are available or `explain` is false."
    )
    usage: UsageBody
    query_prompt_name: str | None = Field(description="Name of the prompt of queries.")
    query_prompt: str | None = Field(description="Prompt of queries; null if none was applied.")
    document_prompt_name: str | None = Field(description="Name of the prompt of documents.")
    document_prompt: str | None = Field(description="Prompt of documents; null if none was applied.")
