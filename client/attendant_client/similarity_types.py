"""Responses of `similarity`. Shapes: Q queries, N documents, U units of a query, V units of a document."""

from dataclasses import dataclass

from attendant_client.types import Floats, Unit


@dataclass(frozen=True, slots=True)
class SimilarityText:
    """A query or a document; `units` are its tokens or words, or None without `explain`."""

    token_count: int
    truncated: bool
    units: list[Unit] | None


@dataclass(frozen=True, slots=True)
class TopContributions:
    """The K largest contributions by magnitude, in descending order: their units on both sides, and `values` (K)."""

    query_units: list[int]
    document_units: list[int]
    values: Floats


@dataclass(frozen=True, slots=True)
class ContributionRest:
    """Terms of a score that are not listed as contributions."""

    special_tokens: float
    prompt: float
    bias: float
    dropped: float


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """A query token and the document token with the largest dot product, by their indices in `units`.

    `value` is the dot product; with a model whose score is a mean, divided by the number of query tokens.
    """

    query_unit: int
    document_unit: int
    value: float


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """A vocabulary entry with a weight in the query and in the document; `value` is the product of the weights."""

    token_id: int
    token: str
    value: float


@dataclass(frozen=True, slots=True)
class SimilarityPair:
    """The explanation of one pair with U query units and V document units.

    The contributions, `matrix` (U, V) or `top`, and `rest` sum to the score. All three are None if contributions are
    unavailable. With `top_k`, `top` is set instead of `matrix`. Effects are (U) and (V), or None without `effect`.

    With the similarity "maxsim" or "sparse", `matches` or `products` are the terms of the score instead, and sum to it
    with `rest.dropped`. With other functions, both are None.
    """

    query: int
    document: int
    score: float
    matrix: Floats | None
    top: TopContributions | None
    rest: ContributionRest | None
    query_effects: Floats | None
    document_effects: Floats | None
    matches: list[TokenMatch] | None
    products: list[SharedEntry] | None


@dataclass(frozen=True, slots=True)
class SimilarityResponse:
    """Scores, (Q, N), or (Q) for zipped pairs, and the explanation of each pair (None without `explain`)."""

    model: str
    precision: str
    similarity: str
    scores: Floats
    queries: list[SimilarityText]
    documents: list[SimilarityText]
    pairs: list[SimilarityPair] | None
    contributions_unavailable: str | None
    token_count: int
    truncated_inputs: int
    query_prompt_name: str | None
    query_prompt: str | None
    document_prompt_name: str | None
    document_prompt: str | None
