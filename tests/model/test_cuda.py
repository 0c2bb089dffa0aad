"""The graph for CUDA: written, proven and recorded where there is no GPU."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from model import cuda as cuda_module
from model.accuracy import LEAST_COSINE, AccuracyError
from model.artifact import Artifact, GraphRecord, Pooling
from model.checkpoint import load_checkpoint
from model.cuda import write_cuda
from model.export import Variants, export
from model.flat import FlatEncoder, flat_signature
from model.graphs import write_graph
from model.parity import pack_flat
from model.reference import open_reference
from tests.model.conftest import SENTENCES
from tests.model.flat_texts import FAMILIES, random_texts

Publish = Callable[[str], Path]

NOT_RECORDED = {"If", "Loop", "NonZero", "Range", "Scan", "Shape", "Size"}


def make(source: Path, out: Path) -> Artifact:
    export(
        str(source), out, revision=None, name=None, progress=lambda step: None, variants=Variants(("cuda",), SENTENCES)
    )
    return Artifact.open(out)


def write(source: Path, root: Path) -> GraphRecord:
    root.mkdir(parents=True)
    return write_cuda(root, load_checkpoint(source), SENTENCES, lambda step: None)[0]


def test_an_artifact_holds_the_graph(published: Path, exported: Path, tmp_path: Path) -> None:
    """Beside what it held anyway, byte for byte, with a weights file of its own in half the size."""
    artifact = make(published, tmp_path / "out")
    names = set(artifact.manifest.files)
    assert names - set(Artifact.open(exported).manifest.files) == {"cuda.onnx", "cuda.bin"}
    for name in Artifact.open(exported).manifest.files:
        assert artifact.read(name) == (exported / name).read_bytes()
    record = artifact.manifest.graphs["cuda"]
    assert (record.file, record.weights, record.precision) == ("cuda.onnx", "cuda.bin", "float16")
    assert record.inputs == ("input_ids", "position_ids", "token_type_ids", "cu_seqlens", "token_offset")
    assert record.outputs == ("last_hidden_state", "sentence_embedding")
    report = artifact.read_report()
    assert report is not None
    accuracy, parity = report.graphs["cuda"].accuracy, report.graphs["cuda"].parity
    assert accuracy is not None
    assert accuracy.texts == len(SENTENCES)
    assert LEAST_COSINE <= accuracy.min_cosine < 1
    assert parity.max_abs_difference <= parity.tolerance
    sizes = artifact.manifest.files
    assert 0.45 < sizes["cuda.bin"].size / sizes["weights.bin"].size < 0.6


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_operator(publish: Publish, family: str, tmp_path: Path) -> None:
    """One in each block, with three inputs of their own and no bias; every other node is standard ONNX."""
    record = write(publish(family), tmp_path / "root")
    graph = onnx.load(tmp_path / "root" / record.file, load_external_data=False).graph
    packed = [node for node in graph.node if node.domain]
    assert [(node.domain, node.op_type) for node in packed] == [("com.microsoft", "PackedMultiHeadAttention")] * 2
    for node in packed:
        assert [bool(name) for name in node.input] == [True, True, True, False, True, True]
        assert [(entry.name, entry.i) for entry in node.attribute] == [("num_heads", 3)]
    assert {node.op_type for node in graph.node}.isdisjoint(NOT_RECORDED)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_nothing_waits_for_the_cpu(published: Path, pooling: Pooling, tmp_path: Path) -> None:
    """No pooling asks for a size as a number, or for control flow: else no CUDA graph could be recorded."""
    module = FlatEncoder(load_checkpoint(published).encoder, pooling).eval()
    (tmp_path / "root").mkdir()
    write_graph(module, tmp_path / "root" / "flat.onnx", "flat.bin", flat_signature(module))
    graph = onnx.load(tmp_path / "root" / "flat.onnx", load_external_data=False).graph
    assert {node.op_type for node in graph.node}.isdisjoint(NOT_RECORDED)


def test_the_graph_gives_the_encoders_vectors(published: Path, tmp_path: Path) -> None:
    """Token by token and text by text, from the file that was written."""
    record = write(published, tmp_path / "root")
    encoder = load_checkpoint(published).encoder
    texts = random_texts(encoder, (7, 1, 33))
    hidden, pooled = open_reference(tmp_path / "root" / record.file, record.weights).run(None, pack_flat(texts))
    with torch.inference_mode():
        alone = [encoder(**{name: torch.from_numpy(values) for name, values in text.items()})[0] for text in texts]
    expected = torch.cat(alone).numpy()
    np.testing.assert_allclose(hidden, expected, atol=float(5e-3 * np.abs(expected).max()))
    np.testing.assert_allclose(pooled, torch.stack([part.mean(0) for part in alone]), atol=0.01)


def test_two_exports_are_equal_byte_for_byte(published: Path, tmp_path: Path) -> None:
    """The same texts, the same choice, the same files."""
    first, second = (write(published, tmp_path / name / "root") for name in ("a", "b"))
    assert first == second
    for name in ("cuda.onnx", "cuda.bin"):
        assert (tmp_path / "a" / "root" / name).read_bytes() == (tmp_path / "b" / "root" / name).read_bytes()


def test_an_inaccurate_graph_is_not_written(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that got it wrong is found by running what it wrote."""

    def shuffled(texts: list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]]) -> object:
        row = pack_flat(texts)
        return row | {"position_ids": np.zeros_like(row["position_ids"])}

    monkeypatch.setattr(cuda_module, "pack_flat", shuffled)
    with pytest.raises(AccuracyError, match=r"cuda\.onnx: the exported graph gives a cosine of 0\.\d+"):
        make(published, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
