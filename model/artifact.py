"""The artifact: the directory that `attendant-model export` writes and `attendant serve` reads.

Nothing else passes from model/ to service/. `Artifact.open` trusts nothing: it refuses a directory in which
any byte differs from the manifest, a listed file is missing, or a file is there that is not listed.
This module knows no torch and no onnxruntime.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
TOKENIZER = "tokenizer.json"
REPORT = "report.json"
WEIGHTS = "weights.bin"

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "max")
Variant = Literal["cuda", "int8"]
VARIANTS: tuple[Variant, ...] = ("cuda", "int8")
"""Graphs that an artifact may hold beside `fast` and `explain`, by the name of each in the manifest."""
GraphPrecision = Literal["float32", "float16", "int8"]
Kind = Literal["probs", "scores", "norm", "block_norm", "projection"]
KINDS: tuple[Kind, ...] = ("probs", "scores", "norm", "block_norm", "projection")
"""Kinds of attention map, as service/engine/explain/maps.py defines them."""


class ArtifactError(Exception):
    """The directory is not a sound artifact; the message names the file and says what to do."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Version(BaseModel):
    """Read before the rest: another format has other fields."""

    format_version: int


class FileRecord(_Record):
    sha256: str
    size: int


class TensorRecord(_Record):
    """A float32 little-endian array inside a file of the artifact; `offset` in bytes."""

    file: str
    offset: int
    shape: tuple[int, ...]


class BlockRecord(_Record):
    """The weights that attention maps are computed from; a linear map is `x @ weight + bias`, weight `(in, out)`."""

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
        return [getattr(self, name) for name in type(self).model_fields]


class DenseRecord(_Record):
    """A linear map applied to the pooled vector (as LaBSE has): `activation(x @ weight.T + bias)`."""

    weight: TensorRecord
    bias: TensorRecord | None
    activation: Literal["identity", "tanh"]


class ParityRecord(_Record):
    """How far onnxruntime came from torch over a grid of row lengths, as `attendant-model export` measured it."""

    rows: int
    max_abs_difference: float
    tolerance: float


class AccuracyRecord(_Record):
    """How near a narrowed graph stays to the encoder in float32: the smallest cosine of a text's vector over `texts`.

    `kept` names the parts of the encoder that stay in float32 because the cosine asked for it.
    """

    texts: int
    min_cosine: float
    kept: tuple[str, ...]


class GraphReport(_Record):
    """Measurements of one graph; `accuracy` is set for float16."""

    parity: ParityRecord
    accuracy: AccuracyRecord | None = None


class Report(_Record):
    """The measurements of an export, by graph.

    They differ in the last digits between machines, so they lie in a file of their own that the digest leaves out.
    The server does not read it.
    """

    graphs: dict[str, GraphReport]


class GraphRecord(_Record):
    """One graph. `weights` is the file of its weights."""

    file: str
    weights: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: GraphPrecision


class Manifest(_Record):
    """The contents of an artifact. Sizes are counts; `max_input_tokens` includes the special tokens.

    `attention_kinds` are the kinds of map whose formulas fit the layout of the model's blocks.
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
    graphs: dict[str, GraphRecord]
    static: TensorRecord
    attention_kinds: tuple[Kind, ...]
    blocks: tuple[BlockRecord, ...]
    layer_norm_eps: float
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Artifact:
    """A verified directory. `digest` is the sha256 of the manifest, so it stands for every byte of the model."""

    root: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, root: Path, expected_digest: str | None = None) -> "Artifact":
        """Verify every file of `root`; raise `ArtifactError` naming the first that is wrong."""
        if not root.is_dir():
            raise ArtifactError(f"{root}: no such directory. Make one with: attendant-model export SOURCE -o {root}")
        root = root.resolve()
        body = _read(root, MANIFEST)
        digest = hashlib.sha256(body).hexdigest()
        if _read(root, MANIFEST_DIGEST) != f"{digest}\n".encode():
            raise ArtifactError(f"{root / MANIFEST}: its sha256 is not the one in {MANIFEST_DIGEST}. Export it again.")
        if expected_digest is not None and expected_digest.removeprefix("sha256:") != digest:
            raise ArtifactError(f"{root / MANIFEST}: its sha256 is {digest}, not the pinned one.")
        artifact = cls(root, _parse(root, body), digest)
        artifact._refuse_strangers()
        for name in artifact.manifest.files:
            artifact.read(name)
        return artifact

    def read(self, name: str) -> bytes:
        """The bytes of a listed file, checked against its hash: what is returned is what was hashed."""
        record = self.manifest.files[name]
        body = _read(self.root, name)
        if len(body) != record.size:
            raise ArtifactError(f"{self.root / name}: {len(body)} bytes, not the {record.size} of the manifest.")
        if hashlib.sha256(body).hexdigest() != record.sha256:
            raise ArtifactError(f"{self.root / name}: its sha256 is not the manifest's; the file is damaged.")
        return body

    def read_report(self) -> Report | None:
        """Return what export measured; None if the file is missing or was changed beyond reading."""
        try:
            return Report.model_validate_json(_read(self.root, REPORT))
        except (ArtifactError, ValidationError):
            return None

    def map(self, tensor: TensorRecord) -> NDArray[np.float32]:
        """A read-only view of a tensor; pages come into memory as they are touched."""
        return np.memmap(
            self.root / tensor.file, dtype="<f4", mode="r", offset=tensor.offset, shape=tuple(tensor.shape)
        )

    def _refuse_strangers(self) -> None:
        listed = {*self.manifest.files, MANIFEST, MANIFEST_DIGEST, REPORT}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name not in listed:
                raise ArtifactError(f"{path}: not listed in {MANIFEST}. An artifact holds only what it lists.")
        for name in [
            *(name for graph in self.manifest.graphs.values() for name in (graph.file, graph.weights)),
            TOKENIZER,
            self.manifest.static.file,
            *(tensor.file for block in self.manifest.blocks for tensor in block.tensors()),
            *(tensor.file for dense in self.manifest.dense for tensor in (dense.weight, dense.bias) if tensor),
        ]:
            if name not in self.manifest.files:
                raise ArtifactError(f"{self.root / MANIFEST}: refers to {name!r}, which it does not list.")


def write_manifest(root: Path, manifest: Manifest) -> str:
    """Write the manifest and its digest file; return the digest."""
    body = manifest.model_dump_json(indent=1).encode()
    digest = hashlib.sha256(body).hexdigest()
    (root / MANIFEST).write_bytes(body)
    (root / MANIFEST_DIGEST).write_text(digest + "\n")
    return digest


def describe_file(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _parse(root: Path, body: bytes) -> Manifest:
    try:
        version = _Version.model_validate_json(body).format_version
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"{root / MANIFEST}: format {version}, but this version reads {FORMAT_VERSION}. Export it again."
            )
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ArtifactError(
            f"{root / MANIFEST}: not a manifest this version reads (at {where or 'the top'}). Export it again."
        ) from None


def _read(root: Path, name: str) -> bytes:
    """Read a file that really lies in `root`: not a link of either kind, which could change behind our back."""
    path = root / name
    if "\0" in name or root not in path.resolve().parents:
        raise ArtifactError(f"{path}: leads out of the artifact.")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait
    except FileNotFoundError:
        raise ArtifactError(f"{path}: missing. Export it again.") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise ArtifactError(f"{path}: not a plain file of its own (a link, or hard-linked elsewhere).")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
