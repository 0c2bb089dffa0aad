"""Export of the CUDA graph, tested without a GPU."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from model.artifact.files import Artifact
from model.artifact.manifest import GraphRecord, Pooling
from model.checkpoint import load_checkpoint
from model.export import cuda as export_cuda_module
from model.export.cuda import MIN_COSINE, AccuracyError, VarlenEncoder, varlen_signature, write_cuda
from model.export.export import Variants, export
from model.export.graphs import GraphSet, GraphSignature, write_graph
from model.export.parity import open_reference_session, pack_varlen
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions
from tests.model.conftest import mark_slow
from tests.model.tiny_tokenizers import SENTENCES
from tests.model.varlen_inputs import FAMILIES, random_sequences, run_alone

Publish = Callable[[str], Path]

NOT_CAPTURABLE = {"If", "Loop", "NonZero", "Range", "Scan", "Shape", "Size"}


def export_model(source: Path, out: Path) -> Artifact:
    export(str(source), out, variants=Variants(("cuda",), SENTENCES))
    return Artifact.open(out)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("causal-bert", "causal attention"),
        ("modernbert", "rotary positions"),
        ("mpnet", "relative position biases"),
        ("qwen3", "causal attention"),
    ],
)
def test_unsupported_parts_are_rejected_before_the_export(
    publish: Publish, tmp_path: Path, kind: str, part: str
) -> None:
    with pytest.raises(
        CheckpointError, match=rf"^--variant cuda: not available for models with {part}\. Export without it\.$"
    ):
        export_model(publish(kind), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def write_source_graph(source: Path, root: Path) -> GraphRecord:
    root.mkdir(parents=True)
    graphs = GraphSet(root)
    write_cuda(graphs, load_checkpoint(source), SENTENCES)
    return graphs.records["cuda"]


def test_artifact_contains_cuda_graph(published: Path, exported: Path, tmp_path: Path) -> None:
    """All other files must be unchanged, and the weights take about half the space."""
    artifact = export_model(published, tmp_path / "out")
    names = set(artifact.manifest.files)
    assert names - set(Artifact.open(exported).manifest.files) == {"cuda.onnx", "cuda.bin"}
    for name in Artifact.open(exported).manifest.files:
        assert artifact.read(name) == (exported / name).read_bytes()
    record = artifact.manifest.graphs["cuda"]
    assert (record.file, record.weights, record.precision) == ("cuda.onnx", ("cuda.bin",), "float16")
    assert [(value.name, *value.shape) for value in record.inputs] == [
        ("input_ids", "T"), ("position_ids", "T"), ("token_type_ids", "T"), ("cu_seqlens", "bounds"),
        ("token_offset", "B", "S"),
    ]  # fmt: skip
    assert {value.dtype for value in record.inputs} == {"int32"}
    assert [(value.name, value.shape[-1]) for value in record.outputs] == [
        ("last_hidden_state", 24), ("sentence_embedding", 24),
    ]  # fmt: skip
    report = artifact.read_report()
    assert report is not None
    accuracy, parity = report.graphs["cuda"].accuracy, report.graphs["cuda"].parity
    assert accuracy is not None
    assert accuracy.texts == len(SENTENCES)
    assert MIN_COSINE <= accuracy.min_cosine < 1
    assert parity.max_abs_difference <= parity.tolerance
    sizes = artifact.manifest.files
    assert 0.45 < sizes["cuda.bin"].size / sizes["weights.bin"].size < 0.6


@pytest.mark.parametrize("family", mark_slow(*FAMILIES, fast=("bert",)))
def test_graph_has_one_packed_attention_per_block(publish: Publish, family: str, tmp_path: Path) -> None:
    """Query, key and value must be separate inputs without bias; all other nodes are standard ONNX."""
    record = write_source_graph(publish(family), tmp_path / "root")
    graph = onnx.load(tmp_path / "root" / record.file, load_external_data=False).graph
    packed = [node for node in graph.node if node.domain]
    assert [(node.domain, node.op_type) for node in packed] == [("com.microsoft", "PackedMultiHeadAttention")] * 2
    for node in packed:
        assert [bool(name) for name in node.input] == [True, True, True, False, True, True]
        assert [(entry.name, entry.i) for entry in node.attribute] == [("num_heads", 3)]
    assert {node.op_type for node in graph.node}.isdisjoint(NOT_CAPTURABLE)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_graph_can_be_captured_as_cuda_graph(published: Path, pooling: Pooling, tmp_path: Path) -> None:
    """Whatever the pooling, the graph must not compute shapes or branch."""
    module = VarlenEncoder(load_checkpoint(published).encoder, pooling).eval()
    (tmp_path / "root").mkdir()
    write_graph(module, tmp_path / "root" / "varlen.onnx", "varlen.bin", varlen_signature(module))
    graph = onnx.load(tmp_path / "root" / "varlen.onnx", load_external_data=False).graph
    assert {node.op_type for node in graph.node}.isdisjoint(NOT_CAPTURABLE)


def test_graph_output_equals_encoder(published: Path, tmp_path: Path) -> None:
    record = write_source_graph(published, tmp_path / "root")
    encoder = load_checkpoint(published).encoder
    sequences = random_sequences(encoder, (7, 1, 33))
    hidden, pooled = open_reference_session(tmp_path / "root" / record.file, "cuda.bin").run(
        None, pack_varlen(sequences)
    )
    alone = run_alone(encoder, sequences)
    expected = torch.cat(alone).numpy()
    np.testing.assert_allclose(hidden, expected, atol=float(5e-3 * np.abs(expected).max()))
    np.testing.assert_allclose(pooled, torch.stack([part.mean(0) for part in alone]), atol=0.01)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_export_rejects_inaccurate_graph(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: Pooling
) -> None:
    """Errors of the exporter are found by running the written graph."""

    def write_without_words(module: VarlenEncoder, path: Path, weights: str, signature: GraphSignature) -> None:
        with torch.no_grad():
            module.embeddings.word_embeddings.weight.zero_()
        write_graph(module, path, weights, signature)

    variants, settings = Variants(("cuda",), SENTENCES, explain=False), SettingOptions(pooling=pooling)
    export(str(published), tmp_path / "valid", variants=variants, settings=settings)
    monkeypatch.setattr(export_cuda_module, "write_graph", write_without_words)
    with pytest.raises(AccuracyError, match=r"^cuda\.onnx: smallest cosine 0\.\d+, limit"):
        export(str(published), tmp_path / "out", variants=variants, settings=settings)
    assert not (tmp_path / "out").exists()
