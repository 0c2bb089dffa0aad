"""Requests and responses of similarity."""

from dataclasses import dataclass
from typing import Literal

from service.engine.schema.encode import AppliedPrompt, Array, Timing, Truncation, Wire
from service.engine.schema.explain import Unit

Pairs = Literal["all", "zip"]
SimilarityUnit = Literal["token", "word"]
Effect = Literal["none", "leave_one_out", "occlusion"]
SimilarityFunction = Literal["cosine", "dot", "maxsim", "sparse", "euclidean", "manhattan"]
"""Functions of embeddings, except that maxsim is one of token vectors, and sparse the model's own of sparse vectors."""
UnavailableReason = Literal["max_pooling", "nonlinear_dense_layers", "distance"]


@dataclass(frozen=True, slots=True)
class SimilarityRequest:
    """A similarity request, as docs/api.md describes it.

    Attributes:
        queries: Q texts.
        documents: N texts.
        pairs: "all" compares each query with each document, "zip" the query and the document of each position.
        similarity: None selects the function of the model.
        query_prompt_name: See `EncodeRequest.prompt_name`, for queries; likewise for documents.
        query_prompt: See `EncodeRequest.prompt`, for queries; likewise for documents.
        explain: Whether to return contributions per pair.
        unit: Units of contributions and effects.
        top_k: Number of contributions to return per pair; None returns all.
        effect: How to measure the effect of each unit on the score.

    Other fields are as in `EncodeRequest`.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    pairs: Pairs = "all"
    similarity: SimilarityFunction | None = None
    dimensions: int | None = None
    truncation: Truncation = "error"
    query_prompt_name: str | None = None
    query_prompt: str | None = None
    document_prompt_name: str | None = None
    document_prompt: str | None = None
    explain: bool = False
    unit: SimilarityUnit = "token"
    top_k: int | None = None
    effect: Effect = "none"
    wire: Wire = "json"
    deadline: float | None = None

    @property
    def pair_count(self) -> int:
        """Number of pairs."""
        return len(self.queries) if self.pairs == "zip" else len(self.queries) * len(self.documents)

    def index_pairs(self) -> list[tuple[int, int]]:
        """Return the indices (query, document) of each pair, queries outermost."""
        if self.pairs == "zip":
            return [(index, index) for index in range(len(self.queries))]
        return [(query, document) for query in range(len(self.queries)) for document in range(len(self.documents))]


@dataclass(frozen=True, slots=True)
class SimilaritySpec:
    """The similarity function and the prompts of a request, and why contributions are unavailable, if they are."""

    similarity: SimilarityFunction
    query_prompt: AppliedPrompt | None
    document_prompt: AppliedPrompt | None
    unavailable: UnavailableReason | None


@dataclass(frozen=True, slots=True)
class SimilarityText:
    """A query or a document; `units` is None without `explain`."""

    token_count: int
    truncated: bool
    units: list[Unit] | None


@dataclass(frozen=True, slots=True)
class TopContributions:
    """The contributions of the largest magnitude, in descending order: `values` (K), and K units on each side."""

    query_units: list[int]
    document_units: list[int]
    values: Array


SCORE_DECIMALS = 7
"""Further digits are float32 rounding error."""


@dataclass(frozen=True, slots=True)
class ContributionRest:
    """The terms of a score that are not listed as contributions, rounded to `SCORE_DECIMALS`."""

    special_tokens: float
    prompt: float
    bias: float
    dropped: float


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """A query token and the document token with the largest dot product, by their places in `units`.

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
class PairResult:
    """The explanation of one pair of U query units and V document units.

    The contributions (U, V) and the four terms of `rest` sum to the score. They are None if they are unavailable;
    `matrix` and `top` exclude each other. Effects, (U) and (V), are None if none were requested. `matches` are the
    terms of a score with maxsim, and `products` those of one with sparse vectors.
    """

    query: int
    document: int
    score: float
    matrix: Array | None
    top: TopContributions | None
    rest: ContributionRest | None
    query_effects: Array | None
    document_effects: Array | None
    matches: list[TokenMatch] | None = None
    products: list[SharedEntry] | None = None


@dataclass(frozen=True, slots=True)
class SimilarityResponse:
    """Scores, (Q, N) or (Q) for zipped pairs; `pairs` is None without `explain`."""

    model: str
    precision: str
    similarity: SimilarityFunction
    scores: Array
    queries: list[SimilarityText]
    documents: list[SimilarityText]
    pairs: list[PairResult] | None
    unavailable: UnavailableReason | None
    token_count: int
    truncated_inputs: int
    query_prompt: AppliedPrompt | None
    document_prompt: AppliedPrompt | None
    timing: Timing
