"""Export of a checkpoint to an artifact: graphs, shared weights, tokenizer, manifest and parity measurements."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model.artifact import GOLDEN, REPORT, TOKENIZER, WEIGHTS, Artifact, describe_file, write_manifest
from model.checkpoint import Checkpoint, load_checkpoint
from model.checkpoint_files import CheckpointError
from model.console import EX_SOFTWARE
from model.description import EmbeddingSettings, describe_classifier, describe_other_heads
from model.encoder import Encoder, HiddenStatesEncoder
from model.export_checks import (
    check_directory,
    check_same_source,
    check_space,
    check_tokenizer,
)
from model.export_cuda import check_cuda, write_cuda
from model.export_heads import write_heads
from model.export_int8 import GRAPH as INT8_GRAPH
from model.export_int8 import write_int8
from model.export_layers import write_layer_graphs
from model.export_records import (
    WeightStore,
    attention_kinds,
    describe_architecture,
    describe_layers,
    write_embedding_head,
)
from model.golden_vectors import compute_golden_vectors
from model.license import restricts_commercial_use
from model.manifest import FORMAT_VERSION, Absent, ExplainRecord, GraphRecord, Head, LayersRecord, Manifest, Variant
from model.measurements import GraphReport, ParityRecord, Report
from model.model_name import MAX_CHARACTERS, NAME_FORMAT, is_model_name
from model.model_source import ModelSource, SourceError, locate
from model.onnx_graph import GraphSignature, describe_graph, write_graph
from model.parity import measure_parity
from model.prompts import resolve_roles
from model.sentence_transformers_config import FROM_FILES, SettingOptions, assume_pooling

INPUTS = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
OUTPUTS = {"fast": ("last_hidden_state",), "explain": ("hidden_states",)}
NO_EXPLAIN = Absent(reason="exported with --no-explain", remedy="Export it again without --no-explain.")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Variants:
    """Optional graphs to write. `eval_texts` are the texts for the accuracy measurement of `cuda`.

    `explain`: write the graph of all hidden states and the records that attention maps need.
    """

    names: Sequence[Variant] = ()
    eval_texts: Sequence[str] = ()
    explain: bool = True


class ParityError(Exception):
    """A difference over the tolerance between the encoder and an exported graph; no artifact was written."""

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
    located = locate(source, revision, progress)
    name = name or located.name
    if not is_model_name(name):
        raise SourceError(
            f"{source}: the name {NAME_FORMAT} ({name[:MAX_CHARACTERS]!r}). Set --name, or rename the directory."
        )
    if not overwrite:
        check_same_source(out, located)
    check_space(out, located)
    progress(f"reading {located.source}")
    try:
        checkpoint = load_checkpoint(located.directory, settings)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"{located.directory}: a configuration file has an invalid value ({problem}). Download the model again."
        ) from error
    embedding = assume_pooling(checkpoint.embedding_config, causal=checkpoint.encoder.config.causal)
    checkpoint = replace(checkpoint, embedding_config=embedding)
    check_tokenizer(checkpoint)
    _report_settings(checkpoint, source, revision, progress)
    if restricts_commercial_use(located.license):
        progress(
            f'warning: the license "{located.license}" restricts commercial use. Read it before you use the model.'
        )
    if "cuda" in variants.names:
        check_cuda(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        root = Path(scratch) / "artifact"
        root.mkdir()
        manifest = _write(root, checkpoint, located, name, progress, variants)
        progress("verifying the artifact")
        Artifact.open(root)
        _replace(out, root, Path(scratch) / "old")
    return manifest


def _report_settings(checkpoint: Checkpoint, source: str, revision: str | None, progress: Progress) -> None:
    embedding = checkpoint.embedding_config
    settings = EmbeddingSettings(
        embedding.pooling,
        embedding.include_prompt,
        embedding.normalize,
        checkpoint.max_input_tokens,
        [name for name, text in embedding.prompts.items() if text],
        embedding.default_prompt_name,
        [(layer.weight.shape[1], layer.weight.shape[0], layer.activation) for layer in embedding.dense],
        embedding.origins,
    )
    for line in settings.describe():
        progress(line)
    for problem in checkpoint.warnings:
        progress(f"warning: {problem}")
    if checkpoint.tasks:
        progress(f"task: {checkpoint.task or 'none'} (the model has adapters for {', '.join(checkpoint.tasks)})")
    if (classifier := checkpoint.classifier) is not None:
        progress(describe_classifier(classifier.labels, classifier.pooling, classifier.activation))
    tokens = checkpoint.token_classifier
    has_sparse, has_multi_vector = checkpoint.sparse is not None, checkpoint.multi_vector is not None
    for line in describe_other_heads(
        None if tokens is None else tokens.labels,
        masked_lm=checkpoint.masked_lm is not None,
        sparse=has_sparse,
        multi_vector=has_multi_vector,
    ):
        progress(line)
    if checkpoint.unexported:
        progress(f"not exported: {', '.join(checkpoint.unexported)}")
    # The embeddings of a model for another task have no training of their own.
    has_other_task = classifier is not None or tokens is not None or has_sparse or has_multi_vector
    if not has_other_task and (warning := settings.warning(source, revision)):
        progress(warning)


def _write(
    root: Path,
    checkpoint: Checkpoint,
    source: ModelSource,
    name: str,
    progress: Progress,
    variants: Variants,
) -> Manifest:
    encoder, config = checkpoint.encoder, checkpoint.encoder.config
    (root / TOKENIZER).write_bytes(checkpoint.tokenizer)
    modules: dict[str, Encoder | HiddenStatesEncoder] = {"fast": encoder}
    if variants.explain:
        modules["explain"] = HiddenStatesEncoder(encoder)
    graphs, reports = {}, {}
    for graph, module in modules.items():
        progress(f"exporting {graph}.onnx ({sum(p.numel() for p in encoder.parameters()) / 1e6:.1f} M parameters)")
        export_graph(module, root / f"{graph}.onnx", OUTPUTS[graph])
        progress(f"comparing {graph}.onnx with torch")
        parity = measure_parity(module, root / f"{graph}.onnx", checkpoint.max_input_tokens)
        _check_parity(f"{graph}.onnx", parity, progress)
        reports[graph] = GraphReport(parity=parity)
        graphs[graph] = describe_graph(root / f"{graph}.onnx", WEIGHTS, "float32")
    for variant in variants.names:
        graphs[variant], reports[variant] = _write_variant(variant, root, checkpoint, variants.eval_texts, progress)
        _check_parity(graphs[variant].file, reports[variant].parity, progress)
    for notice in source.notices:
        shutil.copyfile(notice, root / notice.name)
    embedding = checkpoint.embedding_config
    store = WeightStore(root / graphs["fast"].file)
    layers: LayersRecord | Absent = NO_EXPLAIN
    if variants.explain:
        progress("exporting the graphs of attention maps")
        written = write_layer_graphs(encoder, root)
        for layer_graph, report in written.reports.items():
            _check_parity(f"{layer_graph}.onnx", report.parity, progress)
        graphs |= written.graphs
        reports |= written.reports
        layers = describe_layers(encoder, written.graph_of_layer, store)
    heads: list[Head] = [write_embedding_head(root, embedding, config.hidden_size)]
    for item in write_heads(root, checkpoint, store):
        heads.append(item.head)
        for graph_name, head_graph in item.graphs.items():
            progress(f"exported {head_graph.file}")
            _check_parity(head_graph.file, item.reports[graph_name].parity, progress)
        graphs |= item.graphs
        reports |= item.reports
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=source.source,
        revision=source.revision,
        license=source.license,
        notices=tuple(notice.name for notice in source.notices),
        architecture=describe_architecture(checkpoint.family.name, config),
        max_input_tokens=checkpoint.max_input_tokens,
        truncation_side=checkpoint.truncation_side,
        role_max_tokens=dict(checkpoint.role_max_tokens),
        special_tokens_in_text=checkpoint.special_tokens_in_text,
        heads=tuple(heads),
        prompts=embedding.prompts,
        default_prompt_name=embedding.default_prompt_name,
        roles=resolve_roles(embedding.prompts),
        origins=embedding.origins,
        task=checkpoint.task,
        graphs=graphs,
        explain=ExplainRecord(graph="explain", kinds=attention_kinds(config)) if variants.explain else NO_EXPLAIN,
        layers=layers,
        static=store.find(encoder.embeddings.word_embeddings.weight),
        training=checkpoint.training,
        files={path.name: describe_file(path) for path in sorted(root.iterdir())},
    )
    write_manifest(root, manifest)
    (root / REPORT).write_text(Report(graphs=reports).model_dump_json(indent=1))
    golden = compute_golden_vectors(checkpoint, manifest)
    (root / GOLDEN).write_text(golden.model_dump_json(indent=1))
    return manifest


def _write_variant(
    variant: Variant, root: Path, checkpoint: Checkpoint, eval_texts: Sequence[str], progress: Progress
) -> tuple[GraphRecord, GraphReport]:
    if variant == "int8":
        return write_int8(root, checkpoint, progress)
    return write_cuda(root, checkpoint, eval_texts, progress)


def _check_parity(graph: str, parity: ParityRecord, progress: Progress) -> None:
    progress(
        f"largest difference between {graph} and torch in any output value: {parity.max_abs_difference:.2e}, "
        f"limit {parity.tolerance:.0e}"
    )
    if not parity.max_abs_difference <= parity.tolerance:
        if graph == INT8_GRAPH:
            raise ParityError(
                f"{graph}: too inaccurate for this model (a vector differs by {parity.max_abs_difference:.2e}, "
                f"limit {parity.tolerance:.0e}). Export without --variant int8."
            )
        raise ParityError(
            f"{graph}: onnxruntime differs from torch (by {parity.max_abs_difference:.2e}, "
            f"limit {parity.tolerance:.0e}). Report this as a bug."
        )


def export_graph(module: Encoder | HiddenStatesEncoder, path: Path, outputs: tuple[str, ...] = OUTPUTS["fast"]) -> None:
    """Export `module` to the graph `path`, with four int64 inputs (R, T), dynamic R and T, and weights in WEIGHTS."""
    examples = {name: torch.zeros(2, 16, dtype=torch.int64) for name in INPUTS}
    dynamic_axes = {name: {0: "R", 1: "T"} for name in INPUTS}
    write_graph(module, path, WEIGHTS, GraphSignature(examples, dynamic_axes, outputs))


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
