"""Export of a checkpoint to an artifact: graphs, shared weights, tokenizer, manifest and parity measurements."""

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

from model.artifact import GOLDEN, REPORT, TOKENIZER, WEIGHTS, Artifact, describe_file, write_manifest
from model.checkpoint import Checkpoint, load_checkpoint
from model.console import EX_SOFTWARE
from model.description import EmbeddingSettings
from model.encoder import Block, Encoder, EncoderConfig, HiddenStatesEncoder
from model.export_checks import check_directory, check_same_source, check_tokenizer
from model.export_cuda import check_cuda, write_cuda
from model.export_int8 import write_int8
from model.golden_vectors import compute_golden_vectors
from model.manifest import (
    FORMAT_VERSION,
    KINDS,
    BlockRecord,
    DenseRecord,
    GraphRecord,
    GraphReport,
    Kind,
    Manifest,
    ParityRecord,
    Report,
    TensorRecord,
    Variant,
)
from model.model_source import ModelSource, locate
from model.onnx_graph import GraphSignature, write_graph
from model.parity import measure_parity
from model.sentence_transformers_config import FROM_FILES, EmbeddingConfig, SettingOptions

DENSE_WEIGHTS = "dense.bin"
INPUTS = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
OUTPUTS = {"fast": ("last_hidden_state",), "explain": ("hidden_states",)}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Variants:
    """Optional graphs to write. `eval_texts` are the texts for the accuracy measurement of `cuda`."""

    names: Sequence[Variant] = ()
    eval_texts: Sequence[str] = ()


class ParityError(Exception):
    """A difference over the tolerance between the encoder and its exported graph; no artifact was written."""

    status = EX_SOFTWARE


def export(  # noqa: PLR0913  # the options of the command
    source: str,
    out: Path,
    *,
    revision: str | None,
    name: str | None,
    progress: Progress,
    variants: Variants = Variants(),
    settings: SettingOptions = FROM_FILES,
    overwrite: bool = False,
) -> Manifest:
    """Write the artifact of `source` to the directory `out`, atomically, replacing an artifact of the same source.

    Args:
        source: "default", a directory or a Hugging Face model ID.
        out: directory to write: an existing artifact, an empty directory, or a new path.
        revision: branch, tag or commit of a Hugging Face model ID.
        name: model name in the manifest; defaults to the last part of the source.
        progress: called with a message before each step.
        variants: optional graphs.
        settings: embedding settings that replace those in the files of the model.
        overwrite: replace the artifact of another source, too.

    Raises:
        SourceError: the source is unavailable.
        CheckpointError: the checkpoint is invalid or unsupported.
        ParityError: a graph differs from the encoder.
        AccuracyError: float16 embeddings differ too much from float32.
        ArtifactError: `out` is unusable or has the artifact of another source, or the written artifact is invalid.
    """
    check_directory(out)
    progress(f"locating {source}")
    located = locate(source, revision)
    if not overwrite:
        check_same_source(out, located)
    progress(f"reading {located.source}")
    checkpoint = load_checkpoint(located.directory, settings)
    check_tokenizer(checkpoint)
    _report_settings(checkpoint, progress)
    if "cuda" in variants.names:
        check_cuda(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        root = Path(scratch) / "artifact"
        root.mkdir()
        manifest = _write(root, checkpoint, located, name or located.name, progress, variants)
        progress("verifying the artifact")
        Artifact.open(root)
        _replace(out, root, Path(scratch) / "old")
    return manifest


def _report_settings(checkpoint: Checkpoint, progress: Progress) -> None:
    embedding = checkpoint.embedding_config
    settings = EmbeddingSettings(
        embedding.pooling,
        embedding.include_prompt,
        embedding.normalize,
        checkpoint.max_input_tokens,
        list(embedding.prompts),
        embedding.default_prompt_name,
        [(layer.weight.shape[1], layer.weight.shape[0], layer.activation) for layer in embedding.dense],
        embedding.origins,
    )
    for line in settings.describe():
        progress(line)
    if warning := settings.warning():
        progress(warning)


def _write(
    root: Path, checkpoint: Checkpoint, source: ModelSource, name: str, progress: Progress, variants: Variants
) -> Manifest:
    encoder, config = checkpoint.encoder, checkpoint.encoder.config
    (root / TOKENIZER).write_bytes(checkpoint.tokenizer)
    modules: dict[str, Encoder | HiddenStatesEncoder] = {"fast": encoder, "explain": HiddenStatesEncoder(encoder)}
    graphs, reports = {}, {}
    for graph, module in modules.items():
        progress(f"exporting {graph}.onnx ({sum(p.numel() for p in encoder.parameters()) / 1e6:.1f} M parameters)")
        export_graph(module, root / f"{graph}.onnx", OUTPUTS[graph])
        progress(f"comparing {graph}.onnx with torch")
        parity = measure_parity(module, root / f"{graph}.onnx", checkpoint.max_input_tokens)
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
        graphs[variant], reports[variant] = _write_variant(variant, root, checkpoint, variants.eval_texts, progress)
        _check_parity(graphs[variant].file, reports[variant].parity, progress)
    embedding = checkpoint.embedding_config
    dense = _write_dense(root, embedding)
    find = _tensor_finder(root / graphs["explain"].file)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=source.source,
        revision=source.revision,
        license=source.license,
        model_type=checkpoint.model_type,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        dimensions=dense[-1].weight.shape[0] if dense else config.hidden_size,
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
        max_input_tokens=checkpoint.max_input_tokens,
        pooling=embedding.pooling,
        normalize=embedding.normalize,
        dense=dense,
        prompts=embedding.prompts,
        default_prompt_name=embedding.default_prompt_name,
        include_prompt=embedding.include_prompt,
        origins=embedding.origins,
        similarity=embedding.similarity,
        graphs=graphs,
        static=find(encoder.embeddings.word_embeddings.weight),
        attention="causal" if config.causal else "bidirectional",
        training=checkpoint.training,
        attention_kinds=_attention_kinds(config),
        blocks=tuple(_block_record(block, find) for block in encoder.blocks),
        layer_norm_eps=config.layer_norm_eps,
        files={path.name: describe_file(path) for path in sorted(root.iterdir())},
    )
    write_manifest(root, manifest)
    (root / REPORT).write_text(Report(graphs=reports).model_dump_json(indent=1))
    golden = compute_golden_vectors(encoder, checkpoint.tokenizer, checkpoint.max_input_tokens)
    (root / GOLDEN).write_text(golden.model_dump_json(indent=1))
    return manifest


def _attention_kinds(config: EncoderConfig) -> tuple[Kind, ...]:
    """Return the kinds of map whose formulas apply: all families of checkpoint.py have the post-LN blocks they assume.

    Scores of a causal model are -inf for later tokens, which maps cannot contain.
    """
    return tuple(kind for kind in KINDS if not (config.causal and kind == "scores"))


def _write_variant(
    variant: Variant, root: Path, checkpoint: Checkpoint, eval_texts: Sequence[str], progress: Progress
) -> tuple[GraphRecord, GraphReport]:
    if variant == "int8":
        return write_int8(root, checkpoint, progress)
    return write_cuda(root, checkpoint, eval_texts, progress)


def _check_parity(graph: str, parity: ParityRecord, progress: Progress) -> None:
    progress(f"largest difference {parity.max_abs_difference:.2e}, limit {parity.tolerance:.0e}")
    if not parity.max_abs_difference <= parity.tolerance:
        raise ParityError(
            f"{graph}: onnxruntime differs from torch (by {parity.max_abs_difference:.2e}, "
            f"limit {parity.tolerance:.0e}). Report this as a bug."
        )


def export_graph(module: Encoder | HiddenStatesEncoder, path: Path, outputs: tuple[str, ...] = OUTPUTS["fast"]) -> None:
    """Export `module` to the graph `path`, with four int64 inputs (R, T), dynamic R and T, and weights in WEIGHTS."""
    examples = {name: torch.zeros(2, 16, dtype=torch.int64) for name in INPUTS}
    dynamic_axes = {name: {0: "R", 1: "T"} for name in INPUTS}
    write_graph(module, path, WEIGHTS, GraphSignature(examples, dynamic_axes, outputs))


def _tensor_finder(graph: Path) -> Callable[[Tensor], TensorRecord]:
    """Return a function that finds a tensor in the weights file by its digest.

    Tensor names cannot be used: the exporter renames linear weights and merges equal tensors.
    """
    model = onnx.load(graph, load_external_data=False)
    weights = (graph.parent / WEIGHTS).read_bytes()
    locations: dict[bytes, tuple[str, int]] = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            offset, length = int(entries.get("offset", 0)), int(entries["length"])
            locations[hashlib.sha256(weights[offset : offset + length]).digest()] = entries["location"], offset

    def find(tensor: Tensor) -> TensorRecord:
        file, offset = locations[hashlib.sha256(np.ascontiguousarray(tensor.detach().numpy()).tobytes()).digest()]
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


def _write_dense(root: Path, embedding: EmbeddingConfig) -> tuple[DenseRecord, ...]:
    if not embedding.dense:
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
        for dense in embedding.dense
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
