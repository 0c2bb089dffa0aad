"""The parts of a manifest that describe heads besides the embedding head."""

from typing import Annotated, Literal

from pydantic import Field

from model.records import Record, Size, TensorRecord, TokenId

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared. A distance counts negatively, so that larger is always more similar."""
ClassifierPooling = Literal["cls", "last", "mean", "mean_logits"]
"""The row that a classifier reads: a token's, or the mean. "mean_logits": all rows, then the mean of their logits."""
SparsePooling = Literal["max", "sum"]
SparseActivation = Literal["relu", "log1p_relu", "log1p_log1p_relu"]
"""The function from a logit to a weight; the last one is log(1 + log(1 + relu(x)))."""
ScoreActivation = Literal["softmax", "sigmoid", "identity"]
"""The function from logits to scores."""


class PairTemplateRecord(Record):
    """How a causal language model reads a pair as a conversation.

    The tokens are `prefix_ids`, those of the text `head + query + middle + document + tail`, and `suffix_ids`.
    """

    prefix_ids: tuple[TokenId, ...]
    head: str
    middle: str
    tail: str
    suffix_ids: tuple[TokenId, ...]


class ClassificationHead(Record):
    """The labels of a text, or with one label the score of a cross-encoder.

    `graph` computes logits (N, C) of rows (N, D). With `pooling` "last", the row is that of the last token whose id is
    not `skipped_token_id`. With `template`, the model reads pairs only, in this form. `pair_activation` replaces
    `activation` for the score of a pair.
    """

    type: Literal["classification"] = "classification"
    graph: str
    pooling: ClassifierPooling
    skipped_token_id: TokenId | None
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    activation: ScoreActivation
    template: PairTemplateRecord | None = None
    pair_activation: ScoreActivation | None = None


class TokenClassificationHead(Record):
    """The labels of tokens. `graph` computes logits (N, C) of rows (N, D)."""

    type: Literal["token_classification"] = "token_classification"
    graph: str
    labels: Annotated[tuple[str, ...], Field(min_length=1)]


class MaskedLMHead(Record):
    """Words for a position: `decoder` (V, E) times what `graph` computes (N, E) of rows (N, D), plus `bias` (V).

    Without `graph`, the projection reads the rows themselves. `layer_graph` is the graph for hidden states that the
    final norm of the encoder has not read, which are those of all layers but the last; None if it is `graph`.
    """

    type: Literal["masked_lm"] = "masked_lm"
    graph: str | None
    layer_graph: str | None
    decoder: TensorRecord
    bias: TensorRecord | None
    mask_token_id: TokenId | None


class SparseHead(Record):
    """Weights of vocabulary entries: `pooling` over tokens of `activation` of logits.

    Without `decoder`, `graph` computes one logit (N, 1) per row (N, D), for the entry of the token itself. With it,
    each token has logits for all V entries: `decoder` (V, E) times what `graph` computes (N, E), or the rows themselves
    if it is None, plus `bias` (V). Entries of `skipped_token_ids` have no weight. `query_weights` (V)
    are those of the distinct tokens of a query, if it has its own (Geng et al. 2024); special tokens have weight 0.
    `max_active` keeps only the entries with the largest weights. `similarity` compares two sparse vectors.
    """

    type: Literal["sparse"] = "sparse"
    graph: str | None
    decoder: TensorRecord | None
    bias: TensorRecord | None
    pooling: SparsePooling
    activation: SparseActivation
    skipped_token_ids: tuple[TokenId, ...]
    query_weights: TensorRecord | None = None
    max_active: Size | None = None
    similarity: Similarity = "dot"


class SideRecord(Record):
    """How a model with late interaction reads queries, or documents.

    `marker` is the id of a token inserted before the text and its prompt. `max_tokens` is the limit of the whole input,
    the marker included.
    """

    marker: TokenId | None = None
    max_tokens: Size | None = None


class ExpansionRecord(Record):
    """Tokens that fill up a query to `length` (Khattab and Zaharia 2020). Tokens attend to them only if `attended`."""

    token_id: TokenId
    length: Size
    attended: bool


class MultiVectorHead(Record):
    """A vector of length 1 per token: `graph` computes (N, `dimensions`) of rows (N, D).

    `skips_first`: the first token has none. In documents, tokens of `skipped_token_ids` have none either. `score` is
    the mean or the sum of the largest dot products of the query's vectors.
    """

    type: Literal["multi_vector"] = "multi_vector"
    graph: str
    dimensions: Size
    skips_first: bool
    query: SideRecord = SideRecord()
    document: SideRecord = SideRecord()
    expansion: ExpansionRecord | None = None
    skipped_token_ids: tuple[TokenId, ...] = ()
    score: Literal["mean", "sum"] = "mean"

    @property
    def has_sides(self) -> bool:
        """Whether the model reads queries and documents differently, apart from their prompts."""
        plain = SideRecord()
        return (self.query, self.document, self.expansion, self.skipped_token_ids) != (plain, plain, None, ())
