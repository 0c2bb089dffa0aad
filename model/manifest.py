"""The manifest of an artifact: what manifest.json contains. docs/manifest.schema.json is its JSON schema."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field, FiniteFloat, field_validator

from model.head_records import (
    ClassificationHead,
    MaskedLMHead,
    MultiVectorHead,
    Similarity,
    SparseHead,
    TokenClassificationHead,
)
from model.records import Count, Record, Size, TensorRecord

FORMAT_VERSION = 8

Attention = Literal["bidirectional", "causal"]
Pooling = Literal["mean", "cls", "max", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "max", "last")
ONE_TOKEN_POOLINGS: tuple[Pooling, ...] = ("cls", "last")
"""The embedding is the vector of the first or the last token."""
Variant = Literal["cuda", "int8"]
VARIANTS: tuple[Variant, ...] = ("cuda", "int8")
"""Optional graphs of an artifact besides `fast` and `explain`, by their name in the manifest."""
Precision = Literal["float32", "bfloat16", "float16", "int8"]
GraphPrecision = Literal["float32", "float16", "int8"]
Role = Literal["query", "document", "passage"]
"""The role of a text in retrieval. A model may have a prompt for each role."""
RetrievalRole = Literal["query", "document"]
TruncationSide = Literal["right", "left"]
Kind = Literal["probs", "scores", "norm", "block_norm", "projection"]
KINDS: tuple[Kind, ...] = ("probs", "scores", "norm", "block_norm", "projection")
"""Kinds of attention map. service/engine/explain/maps.py defines them."""
ASSUMED = "assumed"
"""Origin of a setting that neither a file of the model nor an option contains."""
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class ManifestVersion(BaseModel):
    """The format version alone: other formats have other fields."""

    format_version: Count


class FileRecord(Record):
    """Digest and size in bytes of a file."""

    sha256: str
    size: Count


class Absent(Record):
    """An optional part that an artifact lacks: the reason, and the sentence that says how to get it."""

    reason: str
    remedy: str


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

    def tensors(self) -> list[TensorRecord]:
        """Return the records of all tensors of the layer."""
        own = (self.output, self.output_bias, self.norm, self.norm_bias)
        return [*self.weights.values(), *(tensor for tensor in own if tensor is not None)]


class LayersRecord(Record):
    """The graphs and weights for attention maps, first layer first.

    `norm` describes the norm that reads the output of the attention: a LayerNorm subtracts the mean, an RMSNorm does
    not. `residual_in_norm`: it reads the sum of the output and the residual stream, else the output alone.
    """

    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: FiniteFloat
    residual_in_norm: bool
    layers: tuple[LayerRecord, ...]


class DenseRecord(Record):
    """A dense layer on the pooled vector, as in LaBSE: `activation(x @ weight.T + bias)`."""

    weight: TensorRecord
    bias: TensorRecord | None
    activation: Literal["identity", "tanh"]


class EmbeddingHead(Record):
    """Pooling, dense layers and normalization, from the last hidden states to the embedding of a text.

    `include_prompt` False means that pooling excludes the prompt and all tokens before it. `dimensions` is the size of
    an embedding. `similarity` is the function that the model was trained for. `truncate_dim`: an embedding is the first
    so many numbers of the normalized vector, without a second normalization, as in sentence-transformers.
    """

    type: Literal["embedding"] = "embedding"
    pooling: Pooling
    include_prompt: bool
    dense: tuple[DenseRecord, ...]
    normalize: bool
    dimensions: Size
    similarity: Similarity
    truncate_dim: Size | None = None


Head = Annotated[
    EmbeddingHead | ClassificationHead | TokenClassificationHead | MaskedLMHead | SparseHead | MultiVectorHead,
    Field(discriminator="type"),
]


class Architecture(Record):
    """The encoder: its family (`model_type` in config.json), and sizes by their names in config.json."""

    family: str
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: Size
    hidden_size: Size
    vocab_size: Size
    type_vocab_size: Annotated[int, Field(ge=0, le=2**24)]
    attention: Attention


class ValueRecord(Record):
    """An input or output of a graph. A dimension is a number, or the name of a size that varies."""

    name: str
    dtype: Literal["int32", "int64", "float16", "float32"]
    shape: tuple[int | str, ...]


class GraphRecord(Record):
    """An ONNX graph, and the files that contain its weights."""

    file: str
    weights: tuple[str, ...]
    inputs: tuple[ValueRecord, ...]
    outputs: tuple[ValueRecord, ...]
    precision: GraphPrecision


class ExplainRecord(Record):
    """The graph that returns the hidden states of all layers, and the kinds of map that the model has."""

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
    """One measure of `attendant evaluate`, with its 95 % interval; `file` is a name without directories."""

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
    a special token, such as `[SEP]`, contains that token. `roles` has the name of the prompt for each role that has
    one. `origins` has the origin of settings by name: a file of the model, an option of the export, or `ASSUMED`.
    `task` names the adapters that were merged. `training` is None for models that others trained. `static` is the
    embedding table, (V, E). `notices` are the license and notice files of the model. `files` has every file but the
    manifest, its digest and the files that are described in measurements.py.
    """

    format_version: int
    name: str
    source: str
    revision: str | None
    license: str | None
    notices: tuple[str, ...]
    architecture: Architecture
    max_input_tokens: Size
    truncation_side: TruncationSide = "right"
    role_max_tokens: dict[RetrievalRole, Size] = Field(default_factory=dict)
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
    def longest_input_tokens(self) -> int:
        """The largest limit of any role."""
        return max((self.max_input_tokens, *self.role_max_tokens.values()))

    @property
    def embedding(self) -> EmbeddingHead:
        """The head that computes embeddings."""
        head = self.heads[0]
        assert isinstance(head, EmbeddingHead)  # checked by `check_heads`
        return head

    @property
    def classification(self) -> ClassificationHead | None:
        """The head that classifies texts or scores pairs."""
        return next((head for head in self.heads if isinstance(head, ClassificationHead)), None)

    @property
    def token_classification(self) -> TokenClassificationHead | None:
        """The head that labels tokens."""
        return next((head for head in self.heads if isinstance(head, TokenClassificationHead)), None)

    @property
    def masked_lm(self) -> MaskedLMHead | None:
        """The head that predicts words."""
        return next((head for head in self.heads if isinstance(head, MaskedLMHead)), None)

    @property
    def sparse(self) -> SparseHead | None:
        """The head that computes sparse vectors."""
        return next((head for head in self.heads if isinstance(head, SparseHead)), None)

    @property
    def multi_vector(self) -> MultiVectorHead | None:
        """The head that computes one vector per token for late interaction."""
        return next((head for head in self.heads if isinstance(head, MultiVectorHead)), None)

    def tensors(self) -> Iterator[tuple[str, TensorRecord]]:
        """Yield the records of all tensors, each with its field."""
        for number, dense in enumerate(self.embedding.dense):
            yield from _present(f"embedding.dense.{number}", weight=dense.weight, bias=dense.bias)
        if (masked := self.masked_lm) is not None:
            yield from _present("masked_lm", decoder=masked.decoder, bias=masked.bias)
        if (sparse := self.sparse) is not None:
            own = {"decoder": sparse.decoder, "bias": sparse.bias, "query_weights": sparse.query_weights}
            yield from _present("sparse", **own)
        if isinstance(self.layers, LayersRecord):
            for number, layer in enumerate(self.layers.layers):
                yield from ((f"layers.{number}", tensor) for tensor in layer.tensors())
        if isinstance(self.static, TensorRecord):
            yield "static", self.static

    @property
    def attention_kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention map of the model."""
        return self.explain.kinds if isinstance(self.explain, ExplainRecord) else ()


def _present(field: str, **tensors: TensorRecord | None) -> Iterator[tuple[str, TensorRecord]]:
    yield from ((f"{field}.{name}", tensor) for name, tensor in tensors.items() if tensor is not None)
