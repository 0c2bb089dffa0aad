"""The artifact: the directory that `attendant-model export` writes and `attendant serve` reads.

It is the only interface between model/ and service/. `Artifact.open` rejects a directory with a file that differs
from the manifest, is missing, or is not listed. This module imports neither torch nor onnxruntime.
"""

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
TOKENIZER = "tokenizer.json"
REPORT = "report.json"
TRAINING = "training.json"
"""The training record of a model that is not yet an artifact, next to its weights."""
WEIGHTS = "weights.bin"

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
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class ArtifactError(Exception):
    """An invalid artifact. The message names the file and a remedy."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Version(BaseModel):
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

    `initial_model` is the model that training started from, and `teacher` that of a distillation. `tokens` counts the
    tokens of all steps, without padding. The unit of `validation_loss` depends on the objective.
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


@dataclass(frozen=True)
class Artifact:
    """A verified artifact. `digest` is the SHA-256 of the manifest, which contains the digest of every file."""

    root: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, root: Path, expected_digest: str | None = None) -> "Artifact":
        """Verify every file of `root`.

        Raises:
            ArtifactError: a file is invalid, missing or unlisted, or the digest is not `expected_digest`.
        """
        if not root.is_dir():
            raise ArtifactError(f"{root}: no such directory. Create it with: attendant-model export SOURCE -o {root}")
        root = root.resolve()
        body = _read(root, MANIFEST)
        digest = hashlib.sha256(body).hexdigest()
        if digest not in _listed_digests(_read(root, MANIFEST_DIGEST)):
            raise ArtifactError(f"{root / MANIFEST}: SHA-256 mismatch with {MANIFEST_DIGEST}. Export again.")
        if expected_digest is not None and expected_digest.removeprefix("sha256:") != digest:
            raise ArtifactError(
                f"{root / MANIFEST}: not the pinned digest (sha256:{digest}, pinned {expected_digest}). "
                "Change the pin or the artifact."
            )
        artifact = cls(root, _parse(root, body), digest)
        artifact._reject_unlisted_files()
        for name in artifact.manifest.files:
            artifact.read(name)
        return artifact

    def read(self, name: str) -> bytes:
        """Return the bytes of a listed file after verifying its digest. Raises ArtifactError."""
        record = self.manifest.files[name]
        body = _read(self.root, name)
        if len(body) != record.size:
            raise ArtifactError(
                f"{self.root / name}: size mismatch with {MANIFEST} ({len(body)} bytes, expected {record.size}). "
                "Export again."
            )
        if hashlib.sha256(body).hexdigest() != record.sha256:
            raise ArtifactError(f"{self.root / name}: SHA-256 mismatch with {MANIFEST}. Export again.")
        return body

    def read_report(self) -> Report | None:
        """Return the measurements of the export; None if report.json is missing or invalid."""
        try:
            return Report.model_validate_json(_read(self.root, REPORT))
        except (ArtifactError, ValidationError):
            return None

    def map(self, tensor: TensorRecord) -> NDArray[np.float32]:
        """Return a read-only memory map of a tensor."""
        return np.memmap(
            self.root / tensor.file, dtype="<f4", mode="r", offset=tensor.offset, shape=tuple(tensor.shape)
        )

    def _reject_unlisted_files(self) -> None:
        listed = {*self.manifest.files, MANIFEST, MANIFEST_DIGEST, REPORT}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name not in listed:
                raise ArtifactError(f"{path}: not listed in {MANIFEST}. Remove it.")
        for name in [
            *(name for graph in self.manifest.graphs.values() for name in (graph.file, graph.weights)),
            TOKENIZER,
            self.manifest.static.file,
            *(tensor.file for block in self.manifest.blocks for tensor in block.tensors()),
            *(tensor.file for dense in self.manifest.dense for tensor in (dense.weight, dense.bias) if tensor),
        ]:
            if name not in self.manifest.files:
                raise ArtifactError(f"{self.root / MANIFEST}: refers to unlisted file {name!r}. Export again.")


def write_manifest(root: Path, manifest: Manifest) -> str:
    """Write the manifest and its digest file; return the digest."""
    body = manifest.model_dump_json(indent=1).encode()
    digest = hashlib.sha256(body).hexdigest()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(digest + "\n")
    return digest


def describe_file(path: Path) -> FileRecord:
    """Return the record of a file."""
    with path.open("rb") as file:
        return FileRecord(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _parse(root: Path, body: bytes) -> Manifest:
    try:
        version = _Version.model_validate_json(body).format_version
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"{root / MANIFEST}: unsupported format ({version}, expected {FORMAT_VERSION}). Export again."
            )
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ArtifactError(f"{root / MANIFEST}: invalid manifest (at {field or 'the top'}). Export again.") from None


def _listed_digests(body: bytes) -> list[str]:
    """Return the digests of a digest file: one, or two while the manifest is replaced (manifest_update.py)."""
    return body.decode().split() if re.fullmatch(rb"([0-9a-f]{64}\n){1,2}", body) else []


def _read(root: Path, name: str) -> bytes:
    """Read a regular file of `root`. Links are rejected, because their target can change after verification."""
    path = root / name
    if "\0" in name or root not in path.resolve().parents:
        raise ArtifactError(f"{path}: outside of the artifact. Export again.")
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # O_NONBLOCK: opening a pipe blocks
    except FileNotFoundError:
        raise ArtifactError(f"{path}: missing. Export again.") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}). Check its type and permissions.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise ArtifactError(f"{path}: not a regular file with a single link. Copy the artifact without links.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
