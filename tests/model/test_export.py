"""Exports: contents, replaced directories, interruptions, and int8."""

import getpass
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

from model.artifact.files import WEIGHTS, Artifact, ArtifactError, locked, write_manifest
from model.artifact.manifest import GraphReport, LayersRecord, Manifest, ParityRecord, ValueRecord
from model.artifact.names import SpaceError
from model.checkpoint import load_checkpoint
from model.encoder import Block, Encoder, EncoderConfig, LayerConfig, RotaryConfig
from model.export import export as export_module
from model.export.description import describe_settings
from model.export.export import Variants, export, export_graph
from model.export.graphs import GraphSet, ParityError
from model.export.int8 import quantize, write_int8
from model.export.layers import LayerAttention, write_layer_graphs
from model.export.parity import pack_sequences
from model.source.hub import SourceError, check_free_space, locate
from model.source.published import CheckpointError
from tests.conftest import run_python
from tests.manifests import static_record
from tests.model.conftest import Publish, mark_slow
from tests.model.model_files import change_json, write_json
from tests.model.tiny_tokenizers import SENTENCES
from tests.model.varlen_inputs import BERT_SHAPED, random_sequences, run_alone
from tests.model_records import TRAINING


def export_model(source: Path, out: Path, name: str | None = None, overwrite: bool = False) -> Manifest:
    return export(str(source), out, revision=None, name=name, progress=lambda step: None, overwrite=overwrite)


def read_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_exports")
def test_export_is_deterministic(published: Path, tmp_path: Path) -> None:
    """The digest must identify the model, not the export run."""
    for name in ("a", "b"):
        export(str(published), tmp_path / name, variants=Variants(("cuda", "int8"), SENTENCES))
    assert read_files(tmp_path / "a") == read_files(tmp_path / "b")


def test_manifest_of_model_without_sentence_transformers_files(published: Path, exported: Path) -> None:
    manifest = Artifact.open(exported).manifest
    assert (manifest.name, manifest.source, manifest.architecture.family) == ("tiny-bert", "tiny-bert", "bert")
    assert (
        manifest.architecture.num_hidden_layers,
        manifest.architecture.num_attention_heads,
        manifest.architecture.hidden_size,
        manifest.embedding.dimensions,
    ) == (2, 3, 24, 24)
    assert (manifest.architecture.vocab_size, manifest.architecture.type_vocab_size, manifest.max_input_tokens) == (
        211,
        2,
        41,
    )
    assert (manifest.embedding.pooling, manifest.embedding.normalize, manifest.embedding.dense) == ("mean", False, ())
    assert (manifest.revision, manifest.license) == (locate(str(published)).revision, None)
    assert (manifest.prompts, manifest.default_prompt_name, manifest.embedding.include_prompt) == ({}, None, True)
    graphs = ["explain.onnx", "fast.onnx", "layer_0.onnx", "steps_0.onnx"]
    assert sorted(manifest.files) == sorted([*graphs, "tokenizer.json", "weights.bin"])


@pytest.mark.slow
def test_manifest_of_causal_model(source: Path, exported: Path, tmp_path: Path) -> None:
    """Only the graphs and the assumed pooling may differ from a bidirectional model with the same weights."""
    change_json(source / "config.json", is_decoder=True)
    causal = export_model(source, tmp_path / "out")
    bidirectional = Artifact.open(exported).manifest
    assert bidirectional.architecture.attention == "bidirectional"
    assert causal.architecture == bidirectional.architecture.model_copy(update={"attention": "causal"})
    assert bidirectional.attention_kinds == ("probs", "scores", "norm", "block_norm", "projection")
    assert causal.attention_kinds == ("probs", "norm", "block_norm", "projection")
    changed = [name for name in causal.files if causal.files[name] != bidirectional.files[name]]
    assert changed == ["explain.onnx", "fast.onnx", "layer_0.onnx", "steps_0.onnx"]
    assert causal.heads == (bidirectional.embedding.model_copy(update={"pooling": "last"}),)
    same: dict[str, object] = {"architecture": None, "explain": None, "files": {}, "heads": ()}
    assert causal.model_copy(update=same) == bidirectional.model_copy(update=same)


def test_manifest_of_sentence_transformers_model(exported_labse: Path) -> None:
    manifest = Artifact.open(exported_labse).manifest
    assert (manifest.architecture.hidden_size, manifest.embedding.dimensions, manifest.max_input_tokens) == (24, 19, 31)
    assert (manifest.embedding.pooling, manifest.embedding.normalize) == ("cls", True)
    assert [dense.activation for dense in manifest.embedding.dense] == ["tanh"]
    assert manifest.prompts == {"document": "", "query": "find: "}
    settings = describe_settings(manifest.embedding, manifest.prompts, None, 31, manifest.origins)
    assert list(settings)[-1] == "dense layers: 24 to 19 tanh (modules.json)"


def test_graph_inputs_and_outputs_match_manifest(exported: Path) -> None:
    graph = Artifact.open(exported).manifest.graphs["fast"]
    session = onnxruntime.InferenceSession(exported / graph.file, providers=["CPUExecutionProvider"])
    names = ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    assert graph.inputs == tuple(ValueRecord(name=name, dtype="int64", shape=("R", "T")) for name in names)
    assert graph.outputs == (ValueRecord(name="last_hidden_state", dtype="float32", shape=("R", "T", 24)),)
    for values, nodes in ((graph.inputs, session.get_inputs()), (graph.outputs, session.get_outputs())):
        assert [(value.name, list(value.shape)) for value in values] == [(node.name, node.shape) for node in nodes]
    assert {node.type for node in session.get_inputs()} == {"tensor(int64)"}
    report = Artifact.open(exported).read_report()
    assert report is not None
    parity = report.graphs["fast"].parity
    assert parity.max_abs_difference < 1e-5 < parity.tolerance


def test_manifest_locates_the_weights_of_layers(published: Path, exported: Path) -> None:
    """Linear weights are stored as (in, out)."""
    artifact, encoder = Artifact.open(exported), load_checkpoint(published).encoder
    assert isinstance(artifact.manifest.layers, LayersRecord)
    for index, (record, block) in enumerate(zip(artifact.manifest.layers.layers, encoder.blocks, strict=True)):
        assert isinstance(block, Block)
        weights = LayerAttention(encoder, index).weights()
        assert record.weights.keys() == weights.keys() == set(LAYER_WEIGHTS)
        for name, tensor in weights.items():
            assert np.array_equal(artifact.map(record.weights[name])[:], tensor.detach().numpy())
        output = block.attention.output.weight.detach().numpy().T
        assert np.array_equal(artifact.map(record.output)[:], output)
        assert np.array_equal(artifact.map(record.norm)[:], block.mixed_norm.weight.detach().numpy())


LAYER_WEIGHTS = [f"attention.{part}.{leaf}" for part in ("query", "key", "value") for leaf in ("weight", "bias")]


def test_files_contain_no_machine_specific_data(exported: Path, exported_labse: Path) -> None:
    """Paths, user names and host names must not appear."""
    secrets = [str(Path.cwd()), "/tmp/", "site-packages", '.py"', "encoder.py", "export.py"]
    secrets += [name for name in (platform.node(), getpass.getuser()) if len(name) > 5]
    for body in (*read_files(exported).values(), *read_files(exported_labse).values()):
        assert [secret for secret in secrets if secret.encode() in body] == []


@pytest.mark.parametrize(("kind", "size"), [("bert", 24), pytest.param("electra", 13, marks=pytest.mark.slow)])
def test_static_tensor_is_embedding_table(publish: Publish, tmp_path: Path, kind: str, size: int) -> None:
    export_model(publish(kind), tmp_path / "out")
    artifact = Artifact.open(tmp_path / "out")
    expected = load_file(publish(kind) / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert np.array_equal(artifact.map(static_record(artifact.manifest))[:], expected.numpy())
    assert static_record(artifact.manifest).shape == (211, size)


def test_manifest_has_what_other_files_of_the_model_say(source: Path, tmp_path: Path) -> None:
    prompts = {"query": "q: ", "passage": "p: ", "other": "o: "}
    config = {"prompts": prompts, "default_prompt_name": "query"}
    write_json(source / "config_sentence_transformers.json", config)
    (source / "training.json").write_text(TRAINING.model_dump_json(indent=1))
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    notices = {"COPYING.LESSER": b"\xff", "LICENSE": b"MIT\r\n", "NOTICE.txt": "Ein Hinweis: ä\n".encode()}
    for name, body in notices.items():
        (source / name).write_bytes(body)
    (source / "LICENSES").mkdir()
    manifest = export_model(source, tmp_path / "deep" / "out", name="mine")
    artifact = Artifact.open(tmp_path / "deep" / "out")
    assert artifact.manifest == manifest
    assert (manifest.name, manifest.source, manifest.license) == ("mine", "tiny-bert", "mit")
    assert (manifest.prompts, manifest.default_prompt_name) == (prompts, "query")
    assert manifest.roles == {"query": "query", "document": "passage", "passage": "passage"}
    assert (manifest.training, manifest.evaluations) == (TRAINING, ())
    assert {name: artifact.read(name) for name in manifest.notices} == notices


@pytest.mark.usefixtures("fresh_exports")
def test_export_graph_does_not_change_encoder(published: Path, tmp_path: Path) -> None:
    encoder: Encoder = load_checkpoint(published).encoder
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    export_graph(encoder, tmp_path / "fast.onnx")
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast.onnx", "weights.bin"]


def test_graphs_of_layers_are_measured_within_few_positions(tmp_path: Path) -> None:
    """Tables of rotary positions end at the maximum input length, here less than the usual tokens of a measurement."""
    config = EncoderConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=5,
        max_position_embeddings=10, type_vocab_size=0, norm_eps=1e-6, position_table=False,
        layers=(LayerConfig(rotary=RotaryConfig(100.0)),),
    )  # fmt: skip
    graphs = GraphSet(tmp_path)
    assert write_layer_graphs(Encoder(config).eval(), graphs) == [("layer_0", "steps_0")]
    assert [*graphs.reports] == ["layer_0", "steps_0"]
    for report in graphs.reports.values():
        assert report.parity.max_abs_difference <= report.parity.tolerance


# What an export replaces, what it refuses, and what it leaves as it was.


def large_difference(*_: object) -> ParityRecord:
    return ParityRecord(batches=1, max_abs_difference=0.5, tolerance=0.25)


def test_export_rejects_nonempty_directory_and_keeps_it(published: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("text")
    with pytest.raises(ArtifactError, match=r"out: not empty and not an artifact\. Choose another directory"):
        export_model(published, tmp_path / "out")
    assert read_files(tmp_path / "out") == {"notes": b"text"}


def test_export_replaces_existing_artifact_completely(labse: Path, artifact: Path, exported_labse: Path) -> None:
    (artifact / "leftover").touch()
    siblings = set(artifact.parent.iterdir())
    export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported_labse)
    assert set(artifact.parent.iterdir()) == siblings


def rename_source(artifact: Path, name: str) -> None:
    write_manifest(artifact, Artifact.open(artifact).manifest.model_copy(update={"source": name}))


def change_weights(source: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"pooler.dense.bias": tensors["pooler.dense.bias"] + 1}, source / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda artifact, _: rename_source(artifact, "other"),
            'the artifact of another model ("other" with weights sha',
        ),
        (lambda _, source: change_weights(source), 'the artifact of another model ("tiny-bert" with weights sha256:'),
        (lambda artifact, _: (artifact / "manifest.json").write_text("{"), "a damaged manifest.json"),
    ],
    ids=["other source", "other weights in a directory of this name", "damaged manifest"],
)
def test_export_keeps_artifact_of_another_model(
    source: Path, artifact: Path, change: Callable[[Path, Path], None], message: str
) -> None:
    change(artifact, source)
    before = read_files(artifact)
    with pytest.raises(ArtifactError) as raised:
        export_model(source, artifact)
    assert str(raised.value).startswith(f"{artifact}: has {message}")
    assert str(raised.value).endswith("Choose another directory, or set --overwrite.")
    assert read_files(artifact) == before


@pytest.mark.parametrize("format_version", [4, 5])
def test_export_may_replace_artifact_of_same_source(source: Path, artifact: Path, format_version: int) -> None:
    """This includes artifacts in an older format. The invalid tokenizer stops the export right after the check."""
    (source / "tokenizer.json").write_text("{}")
    change_json(artifact / "manifest.json", format_version=format_version)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        export_model(source, artifact)


def test_export_writes_nothing_when_graph_differs_from_torch(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "measure_parity", large_difference)
    with pytest.raises(ParityError, match=r"differs from torch \(by 5\.00e-01, limit 2e-01\)\. Report .*, unless"):
        export_model(published, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_export_keeps_old_artifact_when_rename_fails(
    labse: Path, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def fail_on_new_artifact(old: Path, new: Path) -> None:
        if Path(old).name == "artifact" and Path(old).parent != artifact.parent:
            raise OSError("no")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail_on_new_artifact)
    with pytest.raises((OSError, ArtifactError)):
        export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported)


def test_export_keeps_old_artifact_when_it_is_stopped_between_two_renames(
    labse: Path, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def stop(old: Path, new: Path) -> None:
        rename(old, new)
        if old == artifact:
            raise SystemExit(143)

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(SystemExit):
        export_model(labse, artifact, overwrite=True)
    assert read_files(artifact) == read_files(exported)


def test_export_removes_files_of_a_killed_export_but_not_of_a_running_one(published: Path, tmp_path: Path) -> None:
    out, scratch = tmp_path / "out", tmp_path / ".out.export"
    (scratch / "artifact").mkdir(parents=True)
    (scratch / "weights").touch()
    with locked(scratch), pytest.raises(ArtifactError, match="out: another export is writing it"):
        export_model(published, out)
    assert len(list(scratch.iterdir())) == 2
    export_model(published, out)
    assert list(tmp_path.iterdir()) == [out]


def test_export_writes_nothing_when_source_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        export_model(tmp_path / "none", tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_directory_that_does_not_exist_is_checked(tmp_path: Path) -> None:
    check_free_space(tmp_path / "a" / "b", 1, "files", "move")
    required = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(SpaceError, match=rf"a/b: files: .*{required:,} required\..*or move\."):
        check_free_space(tmp_path / "a" / "b", required, "files", "move")


@pytest.mark.slow
def test_mapped_files_do_not_count_as_memory(source: Path, tmp_path: Path) -> None:
    """`attendant serve SOURCE` limits the private memory of the exporter, in which the system counts mapped files."""
    code = (
        "import resource, sys; from pathlib import Path; from model.export.export import export\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))\n"
        "export(sys.argv[1], Path(sys.argv[2]))\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] - 2**40)"
    )
    result = run_python("-c", code, str(source), str(tmp_path / "out"))
    assert result.stdout == f"{2 * (source / 'model.safetensors').stat().st_size}\n", result.stderr


@pytest.mark.parametrize("half", [False, True])
def test_export_checks_free_space_before_it_writes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """The weights are counted twice, because the second graph's are compared with the first one's.

    Weights of 16 bits are also written in float32.
    """
    halves, path = 0, source / "model.safetensors"
    if half:
        tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
        save_file(tensors, path)
        halves = sum(tensor.nbytes for tensor in tensors.values())
    required = 2 * (path.stat().st_size + halves) + 32 * 2**20
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=required - 1))
    with pytest.raises(SpaceError, match=rf"the artifact of tiny-bert: {required - 1:,} bytes free, {required:,}"):
        export(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The int8 graph: every linear layer, deterministic, close to float32.
WEIGHT = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-100, 100, width=32)
)


def write_source_graph(source: Path, root: Path) -> GraphReport:
    root.mkdir(parents=True)
    checkpoint = load_checkpoint(source)
    export_graph(checkpoint.encoder, root / "fast.onnx")
    graphs = GraphSet(root)
    write_int8(graphs, checkpoint)
    return graphs.reports["int8"]


@given(WEIGHT)
def test_rounding_error_is_at_most_half_a_step(weight: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    values, scales = quantize(weight)
    assert values.dtype == np.int8
    assert values.min() >= -127
    assert (np.abs(values * scales - weight) <= scales * 0.501 + np.finfo(np.float32).tiny).all()


def test_artifact_contains_int8_graph_and_unchanged_files(published: Path, exported: Path, tmp_path: Path) -> None:
    export(str(published), tmp_path / "out",
           variants=Variants(("int8",)))  # fmt: skip
    artifact, without = Artifact.open(tmp_path / "out"), Artifact.open(exported)
    assert set(artifact.manifest.files) - set(without.manifest.files) == {"int8.onnx", "int8.bin"}
    for name in without.manifest.files:
        assert artifact.read(name) == (exported / name).read_bytes()
    record = artifact.manifest.graphs["int8"]
    assert (record.precision, record.weights) == ("int8", ("int8.bin",))
    fast = artifact.manifest.graphs["fast"]
    assert (record.inputs, record.outputs) == (fast.inputs, fast.outputs)
    assert artifact.manifest.files["int8.bin"].size < artifact.manifest.files[WEIGHTS].size
    report = artifact.read_report()
    assert report is not None
    assert set(report.graphs) == {"fast", "explain", "layer_0", "steps_0", "int8"}
    # The last digits of measurements depend on the machine.
    (tmp_path / "out" / "report.json").unlink()
    assert Artifact.open(tmp_path / "out").digest == artifact.digest
    assert Artifact.open(tmp_path / "out").read_report() is None


@pytest.mark.parametrize("family", mark_slow(*BERT_SHAPED, "causal-bert", fast=("bert",)))
def test_linear_layers_are_int8_and_vectors_stay_close(publish: Publish, family: str, tmp_path: Path) -> None:
    source = publish(family)
    encoder = load_checkpoint(source).encoder
    layers = sum(isinstance(part, torch.nn.Linear) for part in encoder.modules())
    report = write_source_graph(source, tmp_path / "root")
    assert report.parity.max_abs_difference <= report.parity.tolerance
    graph = onnx.load(tmp_path / "root" / "int8.onnx").graph
    int8 = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(int8) == layers
    session = onnxruntime.InferenceSession(tmp_path / "root" / "int8.onnx", providers=["CPUExecutionProvider"])
    sequences = random_sequences(encoder, (7, 1, 33))
    alone = run_alone(encoder, sequences)
    (hidden,) = session.run(None, pack_sequences(sequences))
    expected = torch.cat(alone).numpy()
    cosines = (hidden[0] * expected).sum(1) / np.linalg.norm(hidden[0], axis=1) / np.linalg.norm(expected, axis=1)
    assert 0.995 < cosines.min() < 1
