"""Export of a checkpoint to an artifact: graphs, shared weights, tokenizer, manifest and parity measurements."""

import contextlib
import json
import os
import resource
import shutil
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model.artifact.console import EX_CANTCREAT
from model.artifact.files import (
    GOLDEN,
    MANIFEST,
    REPORT,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    ArtifactError,
    describe_file,
    locked,
    write_manifest,
)
from model.artifact.manifest import (
    FORMAT_VERSION,
    Absent,
    Architecture,
    ExplainRecord,
    LayersRecord,
    Manifest,
    Report,
    TensorRecord,
    Variant,
)
from model.artifact.names import FAST, MAX_CHARACTERS, NAME_FORMAT, PADDED, is_model_name, restricts_commercial_use
from model.artifact.tokenizer import TokenizerInput, find_missing_token, find_missing_type, inserted_tokens
from model.checkpoint import Checkpoint, load_checkpoint
from model.encoder import Encoder, HiddenStatesEncoder
from model.export.cuda import write_cuda
from model.export.description import describe_heads, describe_settings, warn_about_assumptions
from model.export.golden_vectors import compute_golden_vectors
from model.export.graphs import GraphSet, GraphSignature, WeightStore, write_graph
from model.export.heads import write_embedding_head, write_heads
from model.export.imported import ONLY_GRAPH, PYTORCH, ImportedEncoder, limited_memory, load_imported, write_imported
from model.export.int8 import write_int8
from model.export.layers import attention_kinds, describe_layers, write_layer_graphs
from model.export.parity import measure_parity
from model.source.hub import ModelSource, SourceError, check_free_space, locate
from model.source.model_size import describe_export, read_model_size
from model.source.published import REDOWNLOAD, CheckpointError, Published, find_graph, half_bytes, model_weight_files
from model.source.sentence_transformers import FROM_FILES, SettingOptions, assume_pooling, resolve_roles
from model.source.tokenizer_patterns import find_slow_pattern

GRAPH_BYTES = 32 * 2**20
"""Maximum size of the graphs, the tokenizer and the other files of an artifact."""


class OutputError(ArtifactError):
    """An output directory that must not be replaced."""

    status = EX_CANTCREAT


def check_directory(out: Path) -> None:
    """Raise OutputError unless `out` is an artifact, an empty directory, or a new path."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: not a directory. Choose another path.")
    if out.exists() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise OutputError(f"{out}: not empty and not an artifact. Choose another directory.")


def check_same_source(out: Path, source: ModelSource) -> None:
    """Raise OutputError if `out` contains another model's artifact, even if damaged or in an older format."""
    if not (out / MANIFEST).is_file():
        return
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        existing = manifest["source"], manifest["revision"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise OutputError(f"{out}: has a damaged {MANIFEST}. Choose another directory, or set --overwrite.") from None
    # Two models' directories can have the same name, but a Hugging Face model ID identifies one model in all revisions.
    is_directory = str(source.revision).startswith("sha256:")
    if existing[0] != source.source or (is_directory and existing[1] != source.revision):
        raise OutputError(
            f"{out}: has the artifact of another model ({_describe_source(*existing)}, "
            f"not {_describe_source(source.source, source.revision)}). Choose another directory, or set --overwrite."
        )


def _describe_source(source: str, revision: str | None) -> str:
    return f'"{source}"' + (f" with weights {revision[:19]}" if revision and revision.startswith("sha256:") else "")


def check_space(out: Path, source: ModelSource) -> None:
    """Raise SpaceError if the artifact may not fit.

    The second graph's weights are written before they are compared, and 16-bit weights are also written in float32.
    """
    files = model_weight_files(source.directory)
    halves = sum(map(half_bytes, files))
    required = 2 * (sum(path.stat().st_size for path in files) + halves) + GRAPH_BYTES
    check_free_space(out, required, f"the artifact of {source.source}", "choose another directory")


def _allow_mapped_files(directory: Path) -> None:
    """Raise the soft limit on private memory, if any, by the size of the files that an export maps privately.

    An export maps the published weights and, while comparing a graph, the artifact's weights. RLIMIT_DATA counts
    private mappings in full, even if few of their pages are in memory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        raised = soft + 2 * sum(path.stat().st_size for path in model_weight_files(directory))
        resource.setrlimit(
            resource.RLIMIT_DATA, (raised if hard == resource.RLIM_INFINITY else min(raised, hard), hard)
        )


def check_tokenizer(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if the tokenizer is invalid or slow, or does not fit the embeddings or the token limit."""
    config, classifier, masked = checkpoint.encoder.config, checkpoint.classifier, checkpoint.masked_lm
    try:
        tokenizer = checkpoint.text_tokenizer()
        tokens, special_tokens = tokenizer.find_input_tokens(), len(tokenizer.encode([TokenizerInput("")])[0])
        letters = tokenizer.encode([TokenizerInput(letter) for letter in string.ascii_lowercase])
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception
        raise CheckpointError(f"tokenizer.json: invalid ({error}). {REDOWNLOAD}") from None
    if (slow := find_slow_pattern(checkpoint.tokenizer)) is not None:
        raise CheckpointError(f"tokenizer.json: {slow}. Use another tokenizer, or correct the pattern.")
    # If the vocabulary files are missing, transformers 5 writes a tokenizer with only special tokens: every word
    # becomes [UNK]. Either condition alone may be legitimate: a model for another script may not distinguish Latin
    # letters, and an embedding table may be larger than the vocabulary. A real model that meets both is very unlikely.
    indistinct = len({tuple(tokens.input_ids) for tokens in letters}) == 1
    if indistinct and 2 * (max(tokens) + 1) < config.vocab_size:
        raise CheckpointError(f"tokenizer.json: no vocabulary ({tokenizer.vocab_size} tokens). Use another one.")
    inserted = inserted_tokens(
        None if checkpoint.multi_vector is None else checkpoint.multi_vector.record,
        None if classifier is None else classifier.record.template,
        None if masked is None else masked.mask_token_id,
    )
    problem = find_missing_token(tokenizer, config.vocab_size, inserted)
    problem = problem or find_missing_type(tokenizer, config.type_vocab_size)
    if problem is not None:
        raise CheckpointError(f"tokenizer.json: {problem}. Use the tokenizer of the model.")
    if checkpoint.max_input_tokens <= special_tokens:
        limit, origin = checkpoint.max_input_tokens, checkpoint.embedding_config.origins["max_input_tokens"]
        raise CheckpointError(f"{origin}: no room for text ({limit} tokens, {special_tokens} special tokens).")


INPUTS = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
OUTPUTS = {FAST: ("last_hidden_state",), "explain": ("hidden_states",)}
NO_EXPLAIN = Absent(reason="exported with --no-explain", remedy="Export it again without --no-explain.")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Variants:
    """Optional graphs to write. `eval_texts` are the texts for measuring the accuracy of `cuda`.

    `explain`: write the graph that returns all hidden states, and the records needed for attention maps.
    """

    names: Sequence[Variant] = ()
    eval_texts: Sequence[str] = ()
    explain: bool = True


def export(  # noqa: PLR0913  # the options of the command
    source: str,
    out: Path,
    *,
    revision: str | None = None,
    name: str | None = None,
    progress: Progress = lambda step: None,
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
        settings: embedding settings that override the settings in the model's files.
        overwrite: replace the artifact of another source, too.

    Raises:
        SourceError: the source is unavailable.
        CheckpointError: the checkpoint is invalid or unsupported.
        ParityError: a graph differs from the encoder.
        AccuracyError: float16 embeddings differ too much from float32.
        ArtifactError: `out` is unusable or contains another model's artifact, or the written artifact is invalid.
    """
    check_directory(out)
    progress(f"locating {source}")
    located = locate(source, revision, progress)
    name = name or located.name
    if not is_model_name(name):
        raise SourceError(f"{source}: the name {NAME_FORMAT} ({name[:MAX_CHARACTERS]!r}). Set --name.")
    if not overwrite:
        check_same_source(out, located)
    check_space(out, located)
    settings = replace(settings, source=located.source)
    progress(f"reading {located.source}")
    graph = find_graph(Published(located.directory).transformer)
    with contextlib.suppress(SourceError):  # errors in config.json are reported where it is read
        size = read_model_size(str(located.directory))
        progress(describe_export(size, maps_weights=graph is None and "cuda" not in variants.names))
    _allow_mapped_files(located.directory)
    if graph is not None:
        progress(f"graph: {graph.relative_to(located.directory)}, because there are no PyTorch weights")
    if graph is not None and not variants.explain:
        progress("warning: --no-explain changes nothing: an ONNX graph has no attention maps")
    if graph is not None and variants.names:
        raise CheckpointError(f"--variant {variants.names[0]}: an ONNX graph has no variants. {PYTORCH}")
    with (
        limited_memory(graph),
        _scratch_directory(out) as scratch,
    ):
        root = scratch / "artifact"
        checkpoint = _load(located.directory, settings, scratch, is_graph=graph is not None)
        _report_settings(checkpoint, source, revision, progress)
        if restricts_commercial_use(located.license):
            progress(
                f'warning: the license "{located.license}" restricts commercial use. Read it before you use the model.'
            )
        root.mkdir()
        manifest = _write(root, checkpoint, located, name, progress, variants)
        progress("verifying the artifact")
        Artifact.open(root)
        _replace(out, root, scratch / "old")
    return manifest


def _load(directory: Path, settings: SettingOptions, scratch: Path, *, is_graph: bool) -> Checkpoint:
    """Load a checkpoint and check that it can be exported. Raises CheckpointError."""
    try:
        checkpoint = (
            load_imported(directory, settings, scratch) if is_graph else load_checkpoint(directory, settings, scratch)
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{directory}: invalid configuration ({problem}). {REDOWNLOAD}") from error
    embedding = assume_pooling(checkpoint.embedding_config, causal=checkpoint.encoder.config.causal)
    checkpoint = replace(checkpoint, embedding_config=embedding)
    check_tokenizer(checkpoint)
    return checkpoint


def _report_settings(checkpoint: Checkpoint, source: str, revision: str | None, progress: Progress) -> None:
    embedding, classifier, tokens = checkpoint.embedding_config, checkpoint.classifier, checkpoint.token_classifier
    prompts, default = embedding.prompts, embedding.default_prompt_name
    for line in describe_settings(embedding, prompts, default, checkpoint.max_input_tokens, embedding.origins):
        progress(line)
    for problem in checkpoint.warnings:
        progress(f"warning: {problem}")
    if checkpoint.tasks:
        progress(f"task: {checkpoint.task or 'none'} (the model has adapters for {', '.join(checkpoint.tasks)})")
    sparse, vectors = checkpoint.sparse, checkpoint.multi_vector
    others = {"sparse vectors": sparse, "multi-vector": vectors, "masked LM": checkpoint.masked_lm}
    classifier_record = None if classifier is None else classifier.record
    for line in describe_heads(classifier_record, None if tokens is None else tokens.record, others):
        progress(line)
    if checkpoint.unexported:
        progress(f"not exported: {', '.join(checkpoint.unexported)}")
    # A model for another task was not trained to produce embeddings.
    warning = warn_about_assumptions(embedding.pooling, embedding.origins, source, revision)
    if warning and all(head is None for head in (classifier, tokens, sparse, vectors)):
        progress(warning)


def _write(
    root: Path, checkpoint: Checkpoint, source: ModelSource, name: str, progress: Progress, variants: Variants
) -> Manifest:
    encoder, config, embedding = checkpoint.encoder, checkpoint.encoder.config, checkpoint.embedding_config
    (root / TOKENIZER).write_bytes(checkpoint.tokenizer)
    for notice in source.notices:
        shutil.copyfile(notice, root / notice.name)
    graphs = GraphSet(root, progress)
    explain: ExplainRecord | Absent = NO_EXPLAIN
    layers: LayersRecord | Absent = NO_EXPLAIN
    static: TensorRecord | Absent = ONLY_GRAPH
    if isinstance(encoder, ImportedEncoder):
        write_imported(graphs, encoder, checkpoint.max_input_tokens)
        store = WeightStore(graphs.path(PADDED))
        explain = layers = ONLY_GRAPH
    else:
        _write_graphs(graphs, checkpoint, variants)
        store = WeightStore(graphs.path(FAST))
        static = store.find(encoder.embeddings.word_embeddings.weight)
        if variants.explain:
            progress("exporting the graphs of attention maps")
            explain = ExplainRecord(graph="explain", kinds=attention_kinds(config))
            layers = describe_layers(encoder, write_layer_graphs(encoder, graphs), store)
    heads = (write_embedding_head(embedding, config.hidden_size, store), *write_heads(checkpoint, store, graphs))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=source.source,
        revision=source.revision,
        license=source.license,
        notices=tuple(notice.name for notice in source.notices),
        architecture=Architecture(
            family=checkpoint.family.name,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            type_vocab_size=config.type_vocab_size,
            attention="causal" if config.causal else "bidirectional",
        ),
        max_input_tokens=checkpoint.max_input_tokens,
        truncation_side=checkpoint.truncation_side,
        role_max_tokens=dict(checkpoint.role_max_tokens),
        special_tokens_in_text=checkpoint.special_tokens_in_text,
        heads=heads,
        prompts=embedding.prompts,
        default_prompt_name=embedding.default_prompt_name,
        roles=resolve_roles(embedding.prompts),
        origins=embedding.origins,
        task=checkpoint.task,
        graphs=graphs.records,
        explain=explain,
        layers=layers,
        static=static,
        training=checkpoint.training,
        files={path.name: describe_file(path) for path in sorted(root.iterdir())},
    )
    write_manifest(root, manifest)
    (root / REPORT).write_text(Report(graphs=graphs.reports).model_dump_json(indent=1))
    progress("computing the golden vectors")
    golden = compute_golden_vectors(checkpoint, manifest)
    (root / GOLDEN).write_text(golden.model_dump_json(indent=1))
    return manifest


def _write_graphs(graphs: GraphSet, checkpoint: Checkpoint, variants: Variants) -> None:
    """Write the graphs of the encoder."""
    encoder = checkpoint.encoder
    modules: dict[str, Encoder | HiddenStatesEncoder] = {FAST: encoder}
    if variants.explain:
        modules["explain"] = HiddenStatesEncoder(encoder)
    for name, module in modules.items():
        size = sum(parameter.numel() for parameter in encoder.parameters())
        graphs.progress(f"exporting {name}.onnx ({size / 1e6:.1f} M parameters)")
        export_graph(module, graphs.path(name), OUTPUTS[name])
        graphs.progress(f"comparing {name}.onnx with torch")
        graphs.add(name, measure_parity(module, graphs.path(name), checkpoint.max_input_tokens), WEIGHTS)
    for variant in variants.names:
        if variant == "int8":
            write_int8(graphs, checkpoint)
        else:
            write_cuda(graphs, checkpoint, variants.eval_texts)


def export_graph(module: Encoder | HiddenStatesEncoder, path: Path, outputs: tuple[str, ...] = OUTPUTS[FAST]) -> None:
    """Export `module` to the graph `path`, with four int64 inputs (R, T), dynamic R and T, and weights in WEIGHTS."""
    examples = {name: torch.zeros(2, 16, dtype=torch.int64) for name in INPUTS}
    dynamic_axes = {name: {0: "R", 1: "T"} for name in INPUTS}
    write_graph(module, path, WEIGHTS, GraphSignature(examples, dynamic_axes, outputs))


@contextlib.contextmanager
def _scratch_directory(out: Path) -> Iterator[Path]:
    """Yield an empty directory beside `out`, after removing what a killed export has left there.

    Raises OutputError while another export to `out` is running.
    """
    scratch = out.parent / f".{out.name}.export"
    scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(scratch, wait=False))
        except BlockingIOError:
            raise OutputError(f"{out}: another export is writing it. Wait, or choose another directory.") from None
        for path in scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _replace(out: Path, new: Path, old: Path) -> None:
    try:
        if out.exists():
            os.rename(out, old)
        os.rename(new, out)
    except BaseException:  # including the end of the process on a signal
        if old.exists() and not out.exists():
            os.rename(old, out)
        raise
