"""Records of the files in an artifact: manifest.json (docs/manifest.schema.json), report.json and golden vectors."""

import base64
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from model.artifact.names import FAST, PADDED

Count = Annotated[int, Field(ge=0, lt=2**63)]
PositiveInt = Annotated[int, Field(ge=1, le=2**24)]
"""A model size. Larger values are mistakes; reject them before they exhaust memory."""
TokenId = Annotated[int, Field(ge=-(2**31), lt=2**31)]
TensorType = Literal["float32", "float16", "bfloat16"]


class Record(BaseModel):
    """An immutable object without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorRecord(Record):
    """A little-endian array in a file of the artifact; `offset` in bytes."""

    file: str
    offset: Count
    shape: tuple[PositiveInt, ...]
    dtype: TensorType


Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Similarity function of two vectors. Distances are negated, so that larger is always more similar."""
ClassifierPooling = Literal["cls", "last", "mean", "mean_logits"]
"""The row that a classifier reads: a token's, or the mean. "mean_logits": all rows, then the mean of their logits."""
SparsePooling = Literal["max", "sum"]
SparseActivation = Literal["relu", "log1p_relu", "log1p_log1p_relu"]
"""The function from a logit to a weight; the last one is log(1 + log(1 + relu(x)))."""
ScoreActivation = Literal["softmax", "sigmoid", "identity"]
"""The function from logits to scores."""


class PairTemplateRecord(Record):
    """How a causal language model reads a pair as a conversation.

    The tokens are `prefix_ids`, the tokens of `head + query + middle + document + tail`, and `suffix_ids`.
    """

    prefix_ids: tuple[TokenId, ...]
    head: str
    middle: str
    tail: str
    suffix_ids: tuple[TokenId, ...]

    def fill(self, query: str, document: str) -> str:
        """Return the text between the prefix and the suffix."""
        return f"{self.head}{query}{self.middle}{document}{self.tail}"


class ClassificationHead(Record):
    """The labels of a text, or with one label the score of a cross-encoder.

    `graph` computes logits (N, C) from rows (N, D). `pooling` "last" selects the last token whose id is not
    `skipped_token_id`. With `template`, the model reads pairs only, in this form. `pair_activation` replaces
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

    Without `graph`, the projection reads the rows themselves. `layer_graph` also applies the encoder's final norm, for
    hidden states of all layers but the last; None if it equals `graph`.
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
    if it is None, plus `bias` (V). Entries of `skipped_token_ids` get no weight. `query_weights` (V), if present,
    weigh the distinct tokens of a query instead (Geng et al. 2024); special tokens weigh 0. `max_active` keeps only the
    entries with the largest weights. `similarity` compares two sparse vectors.
    """

    type: Literal["sparse"] = "sparse"
    graph: str | None
    decoder: TensorRecord | None
    bias: TensorRecord | None
    pooling: SparsePooling
    activation: SparseActivation
    skipped_token_ids: tuple[TokenId, ...]
    query_weights: TensorRecord | None = None
    max_active: PositiveInt | None = None
    similarity: Similarity = "dot"


class SideRecord(Record):
    """How a late-interaction model reads queries or documents.

    `marker` is the id of a token inserted before the prompt and the text. `max_tokens` limits the whole input,
    including the marker.
    """

    marker: TokenId | None = None
    max_tokens: PositiveInt | None = None


class ExpansionRecord(Record):
    """Tokens that fill up a query to `length` (Khattab and Zaharia 2020). Tokens attend to them only if `attended`."""

    token_id: TokenId
    length: PositiveInt
    attended: bool


class MultiVectorHead(Record):
    """A normalized vector per token: `graph` computes (N, `dimensions`) from rows (N, D).

    `skips_first` drops the first token's vector, and documents also drop the vectors of `skipped_token_ids`. `score` is
    the mean or the sum over the query's vectors of the largest dot product with a document vector.
    """

    type: Literal["multi_vector"] = "multi_vector"
    graph: str
    dimensions: PositiveInt
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


GoldenOutput = Literal[
    "embedding", "classification", "token_classification", "masked_lm", "sparse", "multi_vector", "multi_vector_query"
]
"""The type of a head. "multi_vector_query" encodes texts as queries, if the model reads them differently."""
SPARSE_ENTRIES = 1024
"""Maximum number of entries per sparse vector in golden.json; the largest weights are kept."""


class ParityRecord(Record):
    """The largest absolute difference between onnxruntime and torch over a grid of packed batches."""

    batches: int
    max_abs_difference: float
    tolerance: float


class AccuracyRecord(Record):
    """The smallest cosine similarity between float16 and float32 embeddings, over a number of texts.

    `float32_parts` are the parts of the encoder that remain float32 to reach it.
    """

    texts: int
    min_cosine: float
    float32_parts: tuple[str, ...]


class GraphReport(Record):
    """Measurements of one graph; `accuracy` is set for float16."""

    parity: ParityRecord
    accuracy: AccuracyRecord | None = None


class Report(Record):
    """The measurements of an export, by graph. The server does not read them."""

    graphs: dict[str, GraphReport]


class GoldenHead(Record):
    """The results of a head in float32 for some of the texts.

    `texts` are the indices of these texts, and `sizes` the number of values of each. `values` are the values of all in
    turn, and `ids` the entries of the vocabulary that they belong to, if any: little-endian float32 and int32 in
    base64.
    """

    texts: tuple[Count, ...]
    sizes: tuple[Count, ...]
    values: str
    ids: str | None = None

    @model_validator(mode="after")
    def check_sizes(self) -> "GoldenHead":
        """Raise ValueError if the numbers of values differ from the sizes, or a value is NaN or infinite."""
        values = _decode(self.values, "<f4")
        counts = {len(values)} | ({len(_decode(self.ids, "<i4"))} if self.ids is not None else set())
        if len(self.texts) != len(self.sizes) or counts != {sum(self.sizes)} or not np.isfinite(values).all():
            raise ValueError("values do not match the sizes, or are not finite")
        return self

    def has_ids_below(self, limit: int) -> bool:
        """Return whether all ids are entries of a vocabulary of this size."""
        ids = _decode(self.ids or "", "<i4")
        return not ids.size or bool(ids.min() >= 0 and ids.max() < limit)

    def split_values(self) -> list[NDArray[np.float32]]:
        """Return the values of each text."""
        return np.split(_decode(self.values, "<f4"), np.cumsum(self.sizes)[:-1])

    def split_ids(self) -> list[NDArray[np.int32]]:
        """Return the entries of the vocabulary that the values of each text belong to."""
        return np.split(_decode(self.ids or "", "<i4"), np.cumsum(self.sizes)[:-1])


class GoldenVectors(Record):
    """Reference results in float32 of every head for a few texts, as the server returns them without a prompt.

    - "embedding": the embedding.
    - "classification": the logits. A head with one label or a template reads a text and the next one as a pair.
    - "token_classification": the logits of each token.
    - "masked_lm": the probabilities of the likeliest entries at the token in the middle, `len(tokens) // 2`.
    - "sparse": the weights, at most `SPARSE_ENTRIES`, of a text as a document.
    - "multi_vector": the vectors of the tokens, of a text as a document.
    """

    texts: tuple[str, ...]
    heads: dict[GoldenOutput, GoldenHead]

    @model_validator(mode="after")
    def check_texts(self) -> "GoldenVectors":
        """Raise ValueError if a head has no text, or one that is missing."""
        if not all(head.texts and {*head.texts} <= {*range(len(self.texts))} for head in self.heads.values()):
            raise ValueError("a head without texts, or with a missing text")
        return self


def _decode(values: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(values, validate=True), dtype)


FORMAT_VERSION = 8

Attention = Literal["bidirectional", "causal"]
PositionKind = Literal["table", "rotary", "relative"]
Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
COMBINED = "+"
CombinedPooling = Annotated[str, Field(pattern=rf"^({'|'.join(POOLINGS)})(\+({'|'.join(POOLINGS)}))*$")]
"""A pooling, or several joined by "+", whose vectors are concatenated in this order."""


def split_pooling(pooling: CombinedPooling) -> list[Pooling]:
    """Return the poolings whose vectors are concatenated."""
    return cast("list[Pooling]", pooling.split(COMBINED))


ONE_TOKEN_POOLINGS: tuple[Pooling, ...] = ("cls", "last")
"""The embedding is the vector of the first or the last token."""
Variant = Literal["cuda", "int8"]
VARIANTS: tuple[Variant, ...] = ("cuda", "int8")
"""Optional graphs of an artifact besides those that compute hidden states, by their name in the manifest."""
Precision = Literal["float32", "bfloat16", "float16", "int8"]
GraphPrecision = Literal["float32", "float16", "int8"]
Role = Literal["query", "document", "passage"]
"""The role of a text in retrieval. A model may have a prompt for each role."""
RetrievalRole = Literal["query", "document"]
TruncationSide = Literal["right", "left"]
Kind = Literal["probs", "scores", "norm", "block_norm", "projection"]
KINDS: tuple[Kind, ...] = ("probs", "scores", "norm", "block_norm", "projection")
"""Kinds of attention map. service/operations/maps.py defines them."""
ASSUMED = "assumed"
"""Origin of a setting that neither a file of the model nor an option contains."""
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class ManifestVersion(BaseModel):
    """Only the format version: other formats have other fields."""

    format_version: Count


class FileRecord(Record):
    """Digest and size in bytes of a file."""

    sha256: str
    size: Count


class Absent(Record):
    """An optional part that is missing from an artifact: the reason, and a sentence that says how to get it."""

    reason: str
    remedy: str


class StepsRecord(Record):
    """The graph of every step of one layer.

    `weights` are its inputs besides the layer's input, positions and rows. `angles` and `bias` repeat whether it
    returns these, for servers of earlier versions.
    """

    graph: str
    weights: dict[str, TensorRecord]
    angles: bool = False
    bias: bool = False


class LayerRecord(Record):
    """The graph and the weights for the attention maps of one layer.

    `graph` computes scores, probs and values; `weights` are its inputs besides the input of the layer and positions.
    `output` (H * d, D) and `output_bias` map the heads to the output of the attention. `norm` and `norm_bias` are the
    weights of the norm that reads this output.
    """

    graph: str
    weights: dict[str, TensorRecord]
    output: TensorRecord
    output_bias: TensorRecord | None
    norm: TensorRecord
    norm_bias: TensorRecord | None
    steps: StepsRecord | None = None
    """None in artifacts of earlier versions."""


class StructureRecord(Record):
    """The structure of an encoder's layers.

    `block`: the norms follow the sums (post), or precede attention and feed-forward network (pre), or both (sandwich).
    double_post: as post, but after attention, the input of the layer is added and the sum normalized a second time.
    `positions`: a table whose rows are added to the embeddings, rotated queries and keys, or a bias of the scores.
    `segments`: token type embeddings are added to the token embeddings. `embedding_norm`: the sum is normalized.
    `position_table` (P, E) is None in models without a table, and in artifacts of earlier versions.
    """

    block: Literal["post", "double_post", "pre", "sandwich"]
    positions: tuple[PositionKind, ...]
    segments: bool
    embedding_norm: bool
    head_size: PositiveInt
    num_key_value_heads: PositiveInt
    attention_scale: FiniteFloat
    intermediate_size: PositiveInt
    gated: bool
    position_table: TensorRecord | None = None


class LayersRecord(Record):
    """The graphs and weights for attention maps, first layer first.

    `norm` describes the norm that reads the output of the attention: a LayerNorm subtracts the mean, an RMSNorm does
    not. `residual_in_norm`: it reads the sum of the output and the residual stream, else only the output.
    """

    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: FiniteFloat
    residual_in_norm: bool
    layers: tuple[LayerRecord, ...]
    structure: StructureRecord | None = None
    """None in artifacts of earlier versions."""


class DenseRecord(Record):
    """A dense layer on the pooled vector, as in LaBSE: `activation(x @ weight.T + bias)`."""

    weight: TensorRecord
    bias: TensorRecord | None
    activation: Literal["identity", "tanh"]


class EmbeddingHead(Record):
    """Pooling, dense layers and normalization, from the last hidden states to the embedding of a text.

    `include_prompt` False means that pooling excludes the prompt and all tokens before it. `dimensions` is the size of
    an embedding. `similarity` is the function that the model was trained for. `truncate_dim`: an embedding is the first
    `truncate_dim` numbers of the normalized vector, without a second normalization, as in sentence-transformers.
    """

    type: Literal["embedding"] = "embedding"
    pooling: CombinedPooling
    include_prompt: bool
    dense: tuple[DenseRecord, ...]
    normalize: bool
    dimensions: PositiveInt
    similarity: Similarity
    truncate_dim: PositiveInt | None = None


Head = Annotated[
    EmbeddingHead | ClassificationHead | TokenClassificationHead | MaskedLMHead | SparseHead | MultiVectorHead,
    Field(discriminator="type"),
]


class Architecture(Record):
    """The encoder: its family (`model_type` in config.json), and sizes by their names in config.json."""

    family: str
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: PositiveInt
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    type_vocab_size: Annotated[int, Field(ge=0, le=2**24)]
    attention: Attention


class ValueRecord(Record):
    """An input or output of a graph. A dimension is a number, or the name of a size that varies."""

    name: str
    dtype: Literal["int32", "int64", "float16", "float32"]
    shape: tuple[int | str, ...]


class GraphRecord(Record):
    """An ONNX graph, and the files that contain its weights. Sequences have at most `longest` tokens, if it is set."""

    file: str
    weights: tuple[str, ...]
    inputs: tuple[ValueRecord, ...]
    outputs: tuple[ValueRecord, ...]
    precision: GraphPrecision
    longest: PositiveInt | None = Field(None, exclude_if=lambda value: value is None)
    """Left out unless it is set, so that earlier versions can read the artifact."""


class ExplainRecord(Record):
    """The graph that returns the hidden states of all layers, and the kinds of map that the model supports."""

    graph: str
    kinds: tuple[Kind, ...]


class DataFileRecord(Record):
    """A file of training texts: its name without directories, and its size in bytes."""

    name: str
    size: Count


class TrainingRecord(Record):
    """How `attendant-model train` trained a model.

    `initial_model` is the model that training started from, and `teacher` the model that a distillation learned from.
    `tokens` counts the tokens of all steps, without padding. The unit of `validation_loss` depends on the objective.
    """

    objective: str
    initial_model: str | None
    teacher: str | None
    data: tuple[DataFileRecord, ...]
    steps: Count
    tokens: Count
    seed: Int64
    precision: str
    validation_loss: FiniteFloat


class EvaluationRecord(Record):
    """One measure of `attendant evaluate`, with its 95% confidence interval; `file` is a name without directories."""

    task: str
    file: str
    measure: str
    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None


class Manifest(Record):
    """The description of a model and the files of its artifact.

    `max_input_tokens` includes special tokens. The first of the `heads` is the embedding head, and no two have the same
    type. `truncation_side` is where an input over the limit loses tokens unless a request names a side.
    `role_max_tokens` replaces `max_input_tokens` for queries or documents. `special_tokens_in_text`: a text that spells
    a special token, such as `[SEP]`, contains that token. `roles` contains the name of the prompt for each role with
    one. `origins` records where each setting comes from: a file of the model, an option of the export, or `ASSUMED`.
    `task` names the adapters that were merged. `training` is None for models that others trained. `static` is the
    embedding table, (V, E). `notices` are the license and notice files of the model. `files` lists every file
    except the manifest, its digest, report.json and golden.json.
    """

    format_version: int
    name: str
    source: str
    revision: str | None
    license: str | None
    notices: tuple[str, ...]
    architecture: Architecture
    max_input_tokens: PositiveInt
    truncation_side: TruncationSide = "right"
    role_max_tokens: dict[RetrievalRole, PositiveInt] = Field(default_factory=dict)
    special_tokens_in_text: bool = False
    heads: Annotated[tuple[Head, ...], Field(min_length=1)]
    prompts: dict[str, str]
    default_prompt_name: str | None
    roles: dict[Role, str]
    origins: dict[str, str]
    task: str | None = None
    graphs: dict[str, GraphRecord]
    explain: ExplainRecord | Absent
    layers: LayersRecord | Absent
    static: TensorRecord | Absent
    training: TrainingRecord | None = None
    evaluations: tuple[EvaluationRecord, ...] = ()
    files: dict[str, FileRecord]

    @field_validator("heads")
    @classmethod
    def check_heads(cls, heads: tuple[Head, ...]) -> tuple[Head, ...]:
        """Raise ValueError unless the first head computes embeddings and all types differ."""
        if not isinstance(heads[0], EmbeddingHead) or len({head.type for head in heads}) < len(heads):
            raise ValueError("the first head must be the only embedding head, and types must differ")
        return heads

    @property
    def pooled_size(self) -> int:
        """The size of a pooled vector before dense layers."""
        return self.architecture.hidden_size * len(split_pooling(self.embedding.pooling))

    @property
    def main_graph(self) -> str:
        """The name of the graph that every artifact contains."""
        return PADDED if PADDED in self.graphs else FAST

    @property
    def longest_input_tokens(self) -> int:
        return max((self.max_input_tokens, *self.role_max_tokens.values()))

    @property
    def graph_precisions(self) -> dict[str, GraphPrecision]:
        return {name: graph.precision for name, graph in self.graphs.items()}

    @property
    def embedding(self) -> EmbeddingHead:
        head = self.heads[0]
        assert isinstance(head, EmbeddingHead)  # checked by `check_heads`
        return head

    @property
    def classification(self) -> ClassificationHead | None:
        return next((head for head in self.heads if isinstance(head, ClassificationHead)), None)

    @property
    def token_classification(self) -> TokenClassificationHead | None:
        return next((head for head in self.heads if isinstance(head, TokenClassificationHead)), None)

    @property
    def masked_lm(self) -> MaskedLMHead | None:
        return next((head for head in self.heads if isinstance(head, MaskedLMHead)), None)

    @property
    def sparse(self) -> SparseHead | None:
        return next((head for head in self.heads if isinstance(head, SparseHead)), None)

    @property
    def multi_vector(self) -> MultiVectorHead | None:
        return next((head for head in self.heads if isinstance(head, MultiVectorHead)), None)

    def tensors(self) -> Iterator[tuple[str, TensorRecord]]:
        """Yield the records of all tensors, each with its field."""
        for head in self.heads:
            yield from _find_tensors(head.type, head)
        yield from _find_tensors("layers", self.layers)
        yield from _find_tensors("static", self.static)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The outputs of the layers' steps graphs; empty in artifacts that earlier versions exported."""
        if not isinstance(self.layers, LayersRecord) or (steps := self.layers.layers[0].steps) is None:
            return ()
        return tuple(value.name for value in self.graphs[steps.graph].outputs)

    @property
    def position_table(self) -> TensorRecord | None:
        """The vectors that are added to token embeddings, (P, E)."""
        structure = self.layers.structure if isinstance(self.layers, LayersRecord) else None
        return None if structure is None else structure.position_table

    @property
    def attention_kinds(self) -> tuple[Kind, ...]:
        return self.explain.kinds if isinstance(self.explain, ExplainRecord) else ()


def _find_tensors(field: str, value: Any) -> Iterator[tuple[str, TensorRecord]]:
    if isinstance(value, TensorRecord):
        yield field, value
    elif isinstance(value, Record | dict | tuple):
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else value
        for name, part in parts:
            yield from _find_tensors(f"{field}.{name}", part)
