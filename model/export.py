"""A checkpoint to an artifact: the graphs, the weights they share, the tokenizer, and the proof that they agree."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from model.artifact import (
    FORMAT_VERSION,
    KINDS,
    MANIFEST,
    REPORT,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    ArtifactError,
    BlockRecord,
    DenseRecord,
    GraphRecord,
    GraphReport,
    Manifest,
    ParityRecord,
    Report,
    TensorRecord,
    Variant,
    describe_file,
    write_manifest,
)
from model.checkpoint import Checkpoint, load_checkpoint
from model.cuda import write_cuda
from model.encoder import Block, Encoder, EveryLayer
from model.export_int8 import write_int8
from model.graphs import Signature, write_graph
from model.modules import TextVector
from model.parity import measure_parity
from model.published import CheckpointError
from model.source import Origin, locate
from model.tokenizer import Tokenizer

DENSE_WEIGHTS = "dense.bin"
INPUTS = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
OUTPUTS = {"fast": ("last_hidden_state",), "explain": ("hidden_states",)}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Variants:
    """Graphs to write beside those of every artifact, and the texts over which the precision of `cuda` is chosen."""

    names: Sequence[Variant] = ()
    texts: Sequence[str] = ()


class ParityError(Exception):
    """The exported graph does not compute what the encoder computes; no artifact was written."""


def export(
    source: str,
    out: Path,
    *,
    revision: str | None,
    name: str | None,
    progress: Progress,
    variants: Variants = Variants(),
) -> Manifest:
    """Write the artifact of `source` to the directory `out`, replacing an artifact that is there.

    The directory appears whole or not at all. Raises SourceError, CheckpointError, ParityError, AccuracyError or
    ArtifactError.
    """
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out}: not a directory. Name a new one.")
    if out.exists() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise ArtifactError(f"{out}: not empty, and not an artifact. Name a new directory.")
    progress(f"finding {source}")
    origin = locate(source, revision)
    progress(f"reading the weights of {origin.source}")
    checkpoint = load_checkpoint(origin.directory)
    _check_tokenizer(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        root = Path(scratch) / "artifact"
        root.mkdir()
        manifest = _write(root, checkpoint, origin, name or origin.name, progress, variants)
        progress("verifying the artifact")
        Artifact.open(root)
        _replace(out, root, Path(scratch) / "old")
    return manifest


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    try:
        vocabulary = Tokenizer(checkpoint.tokenizer).vocabulary
    except Exception as error:  # noqa: BLE001  # tokenizers raises nothing narrower
        raise CheckpointError(f"tokenizer.json: {error}") from None
    if vocabulary > checkpoint.encoder.config.vocab_size:
        raise CheckpointError(
            f"tokenizer.json: gives {vocabulary} ids, but the weights have {checkpoint.encoder.config.vocab_size} rows."
        )


def _write(
    root: Path, checkpoint: Checkpoint, origin: Origin, name: str, progress: Progress, variants: Variants
) -> Manifest:
    encoder, config = checkpoint.encoder, checkpoint.encoder.config
    (root / TOKENIZER).write_bytes(checkpoint.tokenizer)
    modules: dict[str, Encoder | EveryLayer] = {"fast": encoder, "explain": EveryLayer(encoder)}
    graphs, reports = {}, {}
    for graph, module in modules.items():
        progress(f"exporting {graph}.onnx ({sum(p.numel() for p in encoder.parameters()) / 1e6:.1f} M parameters)")
        export_graph(module, root / f"{graph}.onnx", OUTPUTS[graph])
        progress("comparing torch with onnxruntime over a grid of lengths")
        parity = measure_parity(module, root / f"{graph}.onnx", checkpoint.max_tokens)
        _check_parity(f"{graph}.onnx", parity, progress)
        reports[graph] = GraphReport(parity=parity)
        graphs[graph] = GraphRecord(
            file=f"{graph}.onnx",
            weights=WEIGHTS,
            inputs=INPUTS,
            outputs=OUTPUTS[graph],
            precision="float32",
        )
    for variant in variants.names:
        graphs[variant], reports[variant] = _write_variant(variant, root, checkpoint, variants.texts, progress)
        _check_parity(graphs[variant].file, reports[variant].parity, progress)
    text_vector = checkpoint.text_vector
    dense = _write_dense(root, text_vector)
    find = _tensor_finder(root / graphs["explain"].file)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=origin.source,
        revision=origin.revision,
        license=origin.licence,
        model_type=checkpoint.family,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        hidden_size=config.width,
        dimensions=dense[-1].weight.shape[0] if dense else config.width,
        vocab_size=config.vocab_size,
        type_vocab_size=config.types,
        max_input_tokens=checkpoint.max_tokens,
        pooling=text_vector.pooling,
        normalize=text_vector.normalize,
        dense=dense,
        prompts=text_vector.prompts,
        graphs=graphs,
        static=find(encoder.embeddings.tokens.weight),
        attention_kinds=KINDS,  # every family that checkpoint.py reads has the block that the formulas are of
        blocks=tuple(_block_record(block, find) for block in encoder.blocks),
        layer_norm_eps=config.layer_norm_eps,
        files={path.name: describe_file(path) for path in sorted(root.iterdir())},
    )
    write_manifest(root, manifest)
    (root / REPORT).write_text(Report(graphs=reports).model_dump_json(indent=1))
    return manifest


def _write_variant(
    variant: Variant, root: Path, checkpoint: Checkpoint, texts: Sequence[str], progress: Progress
) -> tuple[GraphRecord, GraphReport]:
    if variant == "int8":
        return write_int8(root, checkpoint, progress)
    return write_cuda(root, checkpoint, texts, progress)


def _check_parity(graph: str, parity: ParityRecord, progress: Progress) -> None:
    progress(f"largest difference {parity.max_abs_difference:.2e}, allowed {parity.tolerance:.0e}")
    if not parity.max_abs_difference <= parity.tolerance:
        raise ParityError(
            f"{graph}: onnxruntime differs from torch by {parity.max_abs_difference:.2e}; "
            f"{parity.tolerance:.0e} is allowed. Nothing was written."
        )


def export_graph(module: Encoder | EveryLayer, path: Path, outputs: tuple[str, ...] = OUTPUTS["fast"]) -> None:
    """A graph from four int64 inputs `(R, T)`, both free, to what the module gives, with its weights in WEIGHTS."""
    examples = {name: torch.zeros(2, 16, dtype=torch.int64) for name in INPUTS}
    write_graph(module, path, WEIGHTS, Signature(examples, {name: {0: "R", 1: "T"} for name in INPUTS}, outputs))


def _tensor_finder(graph: Path) -> Callable[[Tensor], TensorRecord]:
    """Where the exporter put a tensor, found by its bytes: it renames linear weights, and shares equal ones."""
    model = onnx.load(graph, load_external_data=False)
    weights = (graph.parent / WEIGHTS).read_bytes()
    found: dict[bytes, tuple[str, int]] = {}
    for tensor in model.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where:
            offset, length = int(where.get("offset", 0)), int(where["length"])
            found[hashlib.sha256(weights[offset : offset + length]).digest()] = where["location"], offset

    def find(tensor: Tensor) -> TensorRecord:
        file, offset = found[hashlib.sha256(np.ascontiguousarray(tensor.detach().numpy()).tobytes()).digest()]
        return TensorRecord(file=file, offset=offset, shape=tuple(tensor.shape))

    return find


def _block_record(block: nn.Module, find: Callable[[Tensor], TensorRecord]) -> BlockRecord:
    assert isinstance(block, Block)
    attention = block.attention
    linear = {"query": attention.query, "key": attention.key, "value": attention.value, "output": attention.output}
    return BlockRecord(
        **{name: find(part.weight.T) for name, part in linear.items()},
        **{f"{name}_bias": find(part.bias) for name, part in linear.items()},
        norm=find(block.attention_norm.weight),
        norm_bias=find(block.attention_norm.bias),
    )


def _write_dense(root: Path, text_vector: TextVector) -> tuple[DenseRecord, ...]:
    if not text_vector.dense:
        return ()
    body = bytearray()

    def put(tensor: Tensor) -> TensorRecord:
        record = TensorRecord(file=DENSE_WEIGHTS, offset=len(body), shape=tuple(tensor.shape))
        body.extend(np.ascontiguousarray(tensor.numpy(), dtype="<f4").tobytes())
        return record

    records = tuple(
        DenseRecord(
            weight=put(dense.weight),
            bias=None if dense.bias is None else put(dense.bias),
            activation=dense.activation,
        )
        for dense in text_vector.dense
    )
    (root / DENSE_WEIGHTS).write_bytes(body)
    return records


def _replace(out: Path, new: Path, old: Path) -> None:
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(new, out)
    except BaseException:
        if old.exists():
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
