"""An export: the same bytes each time, every fact in its manifest, and all or nothing."""

import getpass
import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from model import export as export_module
from model.artifact import Artifact, ArtifactError, Manifest, ParityRecord, TensorRecord
from model.checkpoint import load_checkpoint
from model.encoder import Block, Encoder
from model.export import ParityError, export, export_graph
from model.published import CheckpointError
from model.source import SourceError
from model.tokenizer import Source, Tokenizer

Publish = Callable[[str], Path]


def make(source: Path, out: Path, name: str | None = None) -> Manifest:
    return export(str(source), out, revision=None, name=name, progress=lambda step: None)


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


def table(artifact: Artifact, record: TensorRecord) -> torch.Tensor:
    return torch.from_numpy(np.array(artifact.map(record)))


def unequal(*_: object) -> ParityRecord:
    return ParityRecord(rows=1, max_abs_difference=0.5, tolerance=0.25)


def test_two_exports_are_equal_byte_for_byte(published: Path, exported: Path, tmp_path: Path) -> None:
    """Elsewhere, later, into an empty directory that is there: the digest stands for the model, not for the run."""
    (tmp_path / "again").mkdir()
    steps: list[str] = []
    export(str(published), tmp_path / "again", revision=None, name=None, progress=steps.append)
    assert contents(tmp_path / "again") == contents(exported)
    graph = "exporting comparing largest"
    assert " ".join(step.split()[0] for step in steps) == f"finding reading {graph} {graph} verifying"


def test_the_manifest_of_a_bare_model(exported: Path) -> None:
    """Every fact of the tiny BERT."""
    manifest = Artifact.open(exported).manifest
    assert (manifest.name, manifest.source, manifest.model_type) == ("tiny-bert", "tiny-bert", "bert")
    assert (manifest.num_hidden_layers, manifest.num_attention_heads, manifest.hidden_size, manifest.dimensions) == (
        2,
        3,
        24,
        24,
    )
    assert (manifest.vocab_size, manifest.type_vocab_size, manifest.max_input_tokens) == (211, 2, 41)
    assert (manifest.pooling, manifest.normalize, manifest.dense) == ("mean", False, ())
    assert (manifest.revision, manifest.license, manifest.prompts) == (None, None, {})
    assert sorted(manifest.files) == ["explain.onnx", "fast.onnx", "tokenizer.json", "weights.bin"]


def test_the_manifest_of_a_sentence_transformer(exported_labse: Path) -> None:
    """What comes after the encoder is there too."""
    manifest = Artifact.open(exported_labse).manifest
    assert (manifest.hidden_size, manifest.dimensions, manifest.max_input_tokens) == (24, 19, 31)
    assert (manifest.pooling, manifest.normalize) == ("cls", True)
    assert [dense.activation for dense in manifest.dense] == ["tanh"]
    assert manifest.prompts == {"document": "", "query": "find: "}


def test_the_graph_is_as_the_manifest_says(exported: Path) -> None:
    """Its inputs and outputs by name, and how near it came."""
    graph = Artifact.open(exported).manifest.graphs["fast"]
    session = onnxruntime.InferenceSession(exported / graph.file, providers=["CPUExecutionProvider"])
    assert graph.inputs == ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    assert tuple(node.name for node in session.get_inputs()) == graph.inputs
    assert tuple(node.name for node in session.get_outputs()) == graph.outputs == ("last_hidden_state",)
    assert {node.type for node in session.get_inputs()} == {"tensor(int64)"}
    report = Artifact.open(exported).read_report()
    assert report is not None
    parity = report.graphs["fast"].parity
    assert parity.max_abs_difference < 1e-5 < parity.tolerance


def test_the_explain_graph_gives_every_layer(published: Path, exported: Path) -> None:
    """The embeddings first, the fast graph's answer last, over the one weights file."""
    fast, explain = (
        onnxruntime.InferenceSession(exported / name, providers=["CPUExecutionProvider"])
        for name in ("fast.onnx", "explain.onnx")
    )
    encoder = load_checkpoint(published).encoder
    row = {
        name: np.ones((1, 7), dtype=np.int64)
        for name in ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    }
    (every,), (last,) = explain.run(None, row), fast.run(None, row)
    with torch.inference_mode():
        expected = encoder.encode(**{name: torch.from_numpy(values) for name, values in row.items()}).hidden
    np.testing.assert_allclose(every, torch.stack(expected).numpy(), atol=1e-5)
    np.testing.assert_allclose(every[-1], last, atol=1e-5)


def test_the_manifest_finds_the_weights_of_each_block(published: Path, exported: Path) -> None:
    """Linear maps are (in, out), whatever the exporter called them."""
    artifact = Artifact.open(exported)
    blocks = load_checkpoint(published).encoder.blocks
    assert len(artifact.manifest.blocks) == len(blocks)
    for record, block in zip(artifact.manifest.blocks, blocks, strict=True):
        assert isinstance(block, Block)
        for name in ("query", "key", "value", "output"):
            linear = getattr(block.attention, name)
            assert np.array_equal(artifact.map(getattr(record, name)), linear.weight.detach().numpy().T)
            assert np.array_equal(artifact.map(getattr(record, f"{name}_bias")), linear.bias.detach().numpy())
        assert np.array_equal(artifact.map(record.norm), block.attention_norm.weight.detach().numpy())


def test_the_tokenizer_is_the_published_one(published: Path, exported: Path) -> None:
    """Byte for byte."""
    assert (exported / "tokenizer.json").read_bytes() == (published / "tokenizer.json").read_bytes()


def test_the_default_export_has_its_facts(default_artifact: Path) -> None:
    """Of the real model: where it is from, under which licence, and how near it came."""
    manifest = Artifact.open(default_artifact).manifest
    assert (manifest.name, manifest.license, manifest.max_input_tokens) == ("all-MiniLM-L6-v2", "apache-2.0", 256)
    assert (manifest.num_hidden_layers, manifest.num_attention_heads, manifest.hidden_size) == (6, 12, 384)
    report = Artifact.open(default_artifact).read_report()
    assert report is not None
    assert report.graphs["fast"].parity.max_abs_difference <= 1e-4


def test_no_file_knows_the_machine(exported: Path, exported_labse: Path) -> None:
    """No path, user or host of the exporting machine, in any file."""
    secrets = [str(Path.cwd()), "/tmp/", "site-packages", '.py"', "encoder.py", "export.py"]
    secrets += [name for name in (platform.node(), getpass.getuser()) if len(name) > 5]
    for body in (*contents(exported).values(), *contents(exported_labse).values()):
        assert [secret for secret in secrets if secret.encode() in body] == []


def test_the_static_table_is_the_embedding_table(published: Path, exported: Path) -> None:
    """Row i is the vector of token i before any context."""
    artifact = Artifact.open(exported)
    expected = load_file(published / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(table(artifact, artifact.manifest.static), expected)


def test_the_static_table_of_a_narrow_model_is_narrow(publish: Publish, tmp_path: Path) -> None:
    """An ELECTRA's table has its own width."""
    make(publish("electra"), tmp_path / "electra")
    artifact = Artifact.open(tmp_path / "electra")
    expected = load_file(publish("electra") / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(table(artifact, artifact.manifest.static), expected)
    assert artifact.manifest.static.shape == (211, 13)


def test_dense_weights_are_mapped_back(labse: Path, exported_labse: Path) -> None:
    """Exactly those published."""
    artifact = Artifact.open(exported_labse)
    (dense,) = artifact.manifest.dense
    expected = load_file(labse / "2_Dense" / "model.safetensors")
    assert dense.bias is not None
    assert torch.equal(table(artifact, dense.weight), expected["linear.weight"])
    assert torch.equal(table(artifact, dense.bias), expected["linear.bias"])


def test_an_artifact_says_all_that_a_vector_needs(labse: Path, exported_labse: Path) -> None:
    """Graph, pooling, dense and normalisation as the manifest has them give sentence-transformers' own vector."""
    artifact = Artifact.open(exported_labse)
    (tokens,) = Tokenizer(artifact.read("tokenizer.json")).encode([Source("The river bank flows.")])
    length = len(tokens)
    row = {
        "input_ids": tokens.ids,
        "position_ids": list(range(length)),
        "token_type_ids": tokens.types,
        "sequence_ids": [1] * length,
    }
    session = onnxruntime.InferenceSession(exported_labse / "fast.onnx", providers=["CPUExecutionProvider"])
    hidden = session.run(None, {name: np.array([values]) for name, values in row.items()})[0]
    (dense,) = artifact.manifest.dense
    assert dense.bias is not None
    mapped = np.tanh(hidden[0, 0] @ artifact.map(dense.weight).T + artifact.map(dense.bias))
    expected = SentenceTransformer(str(labse), device="cpu").encode("The river bank flows.")
    assert np.allclose(mapped / np.linalg.norm(mapped), expected, atol=1e-5)


def test_prompts_licence_and_name_arrive(source: Path, tmp_path: Path) -> None:
    """From the published files and the caller, as deep as asked."""
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    (source / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "find: "}}))
    manifest = make(source, tmp_path / "deep" / "out", name="mine")
    assert (manifest.name, manifest.source) == ("mine", "tiny-bert")
    assert (manifest.license, manifest.prompts) == ("mit", {"query": "find: "})
    assert Artifact.open(tmp_path / "deep" / "out").manifest == manifest


def test_a_directory_with_something_in_it_is_left_alone(published: Path, tmp_path: Path) -> None:
    """Not an artifact, not empty: refused, untouched."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter").write_text("dear")
    with pytest.raises(ArtifactError, match=r"out: not empty, and not an artifact\. Name a new directory"):
        make(published, tmp_path / "out")
    assert contents(tmp_path / "out") == {"letter": b"dear"}


def test_a_file_in_the_way_is_left_alone(published: Path, tmp_path: Path) -> None:
    """It is not a directory: refused, untouched."""
    (tmp_path / "out").write_text("dear")
    with pytest.raises(ArtifactError, match="out: "):
        make(published, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "dear"


def test_an_artifact_is_replaced_whole(labse: Path, artifact: Path, exported_labse: Path) -> None:
    """Nothing of the old one stays, and nothing else appears beside it."""
    (artifact / "left over").touch()
    beside = set(artifact.parent.iterdir())
    make(labse, artifact)
    assert contents(artifact) == contents(exported_labse)
    assert set(artifact.parent.iterdir()) == beside


def test_a_graph_that_differs_is_not_written(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the directory nor any scratch is left."""
    monkeypatch.setattr(export_module, "measure_parity", unequal)
    with pytest.raises(ParityError, match=r"differs from torch by 5\.00e-01; .* is allowed\. Nothing was written"):
        make(published, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_move_that_fails_leaves_the_old_artifact(
    labse: Path, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is gone only when the new one stands."""
    rename = os.rename

    def refuse_the_new(old: Path, new: Path) -> None:
        if Path(old).name == "artifact" and Path(old).parent != artifact.parent:
            raise OSError("no")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse_the_new)
    with pytest.raises((OSError, ArtifactError)):
        make(labse, artifact)
    assert contents(artifact) == contents(exported)


def test_weights_that_are_no_numbers_are_not_exported(source: Path, tmp_path: Path) -> None:
    """A NaN in the weights makes every vector NaN; it must not pass as agreement."""
    tensors = load_file(source / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][7] = float("nan")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises((ParityError, CheckpointError)):
        make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("body", [b"{}", b"", b"\xff"])
def test_a_tokenizer_that_is_none_is_refused(source: Path, tmp_path: Path, body: bytes) -> None:
    """As a fault of the checkpoint, naming the file."""
    (source / "tokenizer.json").write_bytes(body)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_with_more_tokens_than_the_table_is_refused(source: Path, publish: Publish, tmp_path: Path) -> None:
    """An id past the table would fail in the graph, at the first text that has it."""
    shutil.copy(publish("roberta") / "tokenizer.json", source)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        make(source, tmp_path / "out")


def test_a_missing_source_writes_nothing(tmp_path: Path) -> None:
    """Not even the parents."""
    with pytest.raises(SourceError):
        make(tmp_path / "none", tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_exporting_leaves_the_encoder_as_it_was(published: Path, tmp_path: Path) -> None:
    """The same numbers before and after."""
    encoder: Encoder = load_checkpoint(published).encoder
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    export_graph(encoder, tmp_path / "fast.onnx")
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast.onnx", "weights.bin"]
