"""What an export writes: the same files each time, manifest, weights and graphs."""

import getpass
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from model.artifact.files import Artifact
from model.artifact.manifest import LayersRecord, Manifest, ValueRecord
from model.checkpoint import load_checkpoint
from model.encoder import Block, Encoder, EncoderConfig, LayerConfig, RotaryConfig
from model.export.description import describe_settings
from model.export.export import Variants, export, export_graph
from model.export.graphs import GraphSet
from model.export.layers import LayerAttention, write_layer_graphs
from model.source.hub import locate
from tests.manifests import static_record
from tests.model.model_files import change_json, write_json
from tests.model.tiny_tokenizers import SENTENCES
from tests.model_records import TRAINING

Publish = Callable[[str], Path]


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
