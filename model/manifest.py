"""The manifest of an artifact and the records of its report: what the JSON files of an artifact contain."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

FORMAT_VERSION = 5

Similarity = Literal["cosine", "dot"]
Attention = Literal["bidirectional", "causal"]
Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "max")
Variant = Literal["cuda", "int8"]
VARIANTS: tuple[Variant, ...] = ("cuda", "int8")
"""Optional graphs of an artifact besides `fast` and `explain`, by their name in the manifest."""
GraphPrecision = Literal["float32", "float16", "int8"]
Kind = Literal["probs", "scores", "norm", "block_norm", "projection"]
KINDS: tuple[Kind, ...] = ("probs", "scores", "norm", "block_norm", "projection")
"""Kinds of attention map. service/engine/explain/maps.py defines them."""
ASSUMED = "assumed"
"""Origin of a setting that neither a file of the model nor an option contains."""
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ManifestVersion(BaseModel):
    """The format version alone: other formats have other fields."""

    format_version: int


class FileRecord(_Record):
    """Digest and size in bytes of a file."""

    sha256: str
    size: int


class TensorRecord(_Record):
    """A little-endian float32 array in a file of the artifact; `offset` in bytes."""

    file: str
    offset: int
    shape: tuple[int, ...]


class BlockRecord(_Record):
    """The weights of one block that attention maps need. Linear maps are `x @ weight + bias`, weight (in, out)."""

    query: TensorRecord
    query_bias: TensorRecord
    key: TensorRecord
    key_bias: TensorRecord
    value: TensorRecord
    value_bias: TensorRecord
    output: TensorRecord
    output_bias: TensorRecord
    norm: TensorRecord
    norm_bias: TensorRecord

    def tensors(self) -> list[TensorRecord]:
        """Return the records of all tensors of the block."""
        return [getattr(self, name) for name in type(self).model_fields]


class DenseRecord(_Record):
    """A dense layer on the pooled vector, as in LaBSE: `activation(x @ weight.T + bias)`."""

    weight: TensorRecord
    bias: TensorRecord | None
    activation: Literal["identity", "tanh"]


class ParityRecord(_Record):
    """The largest absolute difference between onnxruntime and torch over a grid of packed batches."""

    batches: int
    max_abs_difference: float
    tolerance: float


class AccuracyRecord(_Record):
    """The smallest cosine similarity between float16 and float32 embeddings, over a number of texts.

    `float32_parts` are the parts of the encoder that stay in float32 to reach it.
    """

    texts: int
    min_cosine: float
    float32_parts: tuple[str, ...]


class GraphReport(_Record):
    """Measurements of one graph; `accuracy` is set for float16."""

    parity: ParityRecord
    accuracy: AccuracyRecord | None = None


class Report(_Record):
    """The measurements of an export, by graph.

    Their last digits differ between machines, so they are in a separate file that the digest does not cover.
    The server does not read it.
    """

    graphs: dict[str, GraphReport]


class GoldenVectors(_Record):
    """Reference vectors in float32: the mean of the last hidden states for each of N texts.

    Last digits differ between machines, so they are in a file that the digest does not cover. `vectors` is (N, D)
    little-endian float32 in base64.
    """

    texts: tuple[str, ...]
    vectors: str


class GraphRecord(_Record):
    """An ONNX graph; `file` and `weights` are file names, `inputs` and `outputs` tensor names."""

    file: str
    weights: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: GraphPrecision


class DataFileRecord(_Record):
    """A file of training texts: its name without directories, and its size in bytes."""

    name: str
    size: Count


class TrainingRecord(_Record):
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


class EvaluationRecord(_Record):
    """One measure of `attendant evaluate`, with its 95 % interval; `file` is a name without directories."""

    task: str
    file: str
    measure: str
    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None


class Manifest(_Record):
    """The description of a model and the files of its artifact.

    `max_input_tokens` includes special tokens. `dimensions` is the size of an embedding after the dense layers.
    `attention_kinds` are the kinds of map whose formulas apply to the model's blocks. `static` is the embedding table.
    `include_prompt` False means that pooling excludes the prompt and all tokens before it.
    `similarity` is the function that the model was trained for. `training` is None for models that others trained.
    `origins` has the origin of settings by field name: a file of the model, an option of the export, or `ASSUMED`.
    """

    format_version: int
    name: str
    source: str
    revision: str | None
    license: str | None
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    dimensions: int
    vocab_size: int
    type_vocab_size: int
    max_input_tokens: int
    pooling: Pooling
    normalize: bool
    dense: tuple[DenseRecord, ...]
    prompts: dict[str, str]
    default_prompt_name: str | None
    include_prompt: bool
    origins: dict[str, str] = {}
    similarity: Similarity = "cosine"
    attention: Attention = "bidirectional"
    training: TrainingRecord | None = None
    evaluations: tuple[EvaluationRecord, ...] = ()
    graphs: dict[str, GraphRecord]
    static: TensorRecord
    attention_kinds: tuple[Kind, ...]
    blocks: tuple[BlockRecord, ...]
    layer_norm_eps: float
    files: dict[str, FileRecord]
