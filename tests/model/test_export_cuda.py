"""Export of the CUDA graph, tested without a GPU."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import torch
from attendant_client.types import required
from onnx import helper

from model.artifact.files import TOKENIZER, Artifact
from model.artifact.manifest import GraphRecord, Pooling
from model.artifact.names import CUDA, CUDA_SHORT, CUDA_SPARSE
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import load_checkpoint
from model.encoder import Encoder, EncoderConfig
from model.export import cuda as export_cuda_module
from model.export.cuda import MIN_COSINE, AccuracyError, VarlenEncoder, part_names, varlen_signature, write_cuda
from model.export.export import Variants, export
from model.export.graphs import GraphSet, GraphSignature, write_graph
from model.export.parity import open_reference_session
from model.source.sentence_transformers import SettingOptions
from service.config import ConfigError
from service.engine.backends import cuda as cuda_backend
from service.engine.backends import cuda_memory
from service.engine.backends.base import BackendChoice, Gpu
from service.engine.backends.cuda import CudaBackend, _Device
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.varlen import VarlenBatch
from service.engine.golden_check import EXPECTED_COSINE, golden_cosines
from service.engine.tasks import EncodeTask, HeadName, OccludedSequence
from service.engine.vectors import DenseLayers
from tests.labels import CLASSIFIER, TOKEN_CLASSIFIER, publish_classifier
from tests.model.conftest import Publish, mark_slow
from tests.model.logit_score_cases import LOGIT_SCORE
from tests.model.retriever_cases import BGE_M3
from tests.model.tiny_tokenizers import SENTENCES
from tests.model.varlen_inputs import WINDOWS, check_kernels, publish_windows
from tests.retrievers import INFERENCE_FREE, SPLADE, publish_retriever
from tests.scratch import make_directory
from tests.service.engine.backends.varlen_models import cuda_choice, open_varlen


@cache
def export_cuda(kind: str) -> Artifact:
    """Return the artifact of a retriever with its CUDA graphs, exported once per process."""
    return export_model(publish_retriever(kind), make_directory() / "out")


def export_model(source: Path, out: Path, *, explain: bool = False) -> Artifact:
    export(str(source), out, variants=Variants(("cuda",), SENTENCES, explain=explain))
    return Artifact.open(out)


def write_source_graph(source: Path, root: Path) -> GraphRecord:
    root.mkdir(parents=True)
    graphs = GraphSet(root)
    write_cuda(graphs, load_checkpoint(source), SENTENCES)
    return graphs.records["cuda"]


def test_artifact_contains_cuda_graph(published: Path, exported: Path, tmp_path: Path) -> None:
    """All other files must be unchanged, and the weights take about half the space."""
    artifact = export_model(published, tmp_path / "out", explain=True)
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


def test_projections_are_one_product_whose_biases_the_operator_adds(published: Path, tmp_path: Path) -> None:
    """All other nodes are standard ONNX."""
    record = write_source_graph(published, tmp_path / "root")
    graph = onnx.load(tmp_path / "root" / record.file, load_external_data=False).graph
    packed = [node for node in graph.node if node.domain]
    assert [(node.domain, node.op_type) for node in packed] == [("com.microsoft", "PackedMultiHeadAttention")] * 2
    for node in packed:
        assert [bool(name) for name in node.input] == [True, False, False, True, True, True]
        assert {entry.name: helper.get_attribute_value(entry) for entry in node.attribute} == {
            "num_heads": 3, "scale": pytest.approx(8**-0.5),
        }  # fmt: skip


def test_layer_of_bert_fuses_to_eight_operators(tmp_path: Path) -> None:
    """As onnxruntime fuses them: the operators of two layers less those of one. The first `Add` is the reference's."""
    counts = []
    for layers in (1, 2):
        config = EncoderConfig(61, 64, layers, 4, 128, 64, norm_eps=1e-6, type_vocab_size=2)
        encoder = Encoder(config).eval()
        module = VarlenEncoder(encoder, "mean", part_names(encoder), torch.float32).eval()
        path, fused = tmp_path / f"{layers}" / "varlen.onnx", tmp_path / f"{layers}.onnx"
        path.parent.mkdir()
        write_graph(module, path, "varlen.bin", varlen_signature(module))
        exported = onnx.load(path, load_external_data=False)
        open_reference_session(path, "varlen.bin", fused)
        operators = Counter(node.op_type for node in onnx.load(fused, load_external_data=False).graph.node)
        counts.append((Counter(node.op_type for node in exported.graph.node), operators))
    exported_layer, fused_layer = (two - one for one, two in zip(*counts, strict=True))
    assert exported_layer == {
        "MatMul": 4, "Add": 5, "LayerNormalization": 2, "Gelu": 1,
        "Reshape": 1, "PackedMultiHeadAttention": 1, "Unsqueeze": 1,
    }  # fmt: skip
    kernels = ("MatMul", "SkipLayerNormalization", "BiasGelu", "Add", "Gemm", "LayerNormalization", "Gelu")
    assert [fused_layer[name] for name in kernels] == [4, 2, 1, 1, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last", "weighted_mean"])
def test_graph_has_cuda_kernels_for_every_pooling(published: Path, pooling: Pooling, tmp_path: Path) -> None:
    module = VarlenEncoder(load_checkpoint(published).encoder, pooling).eval()
    (tmp_path / "root").mkdir()
    write_graph(module, tmp_path / "root" / "varlen.onnx", "varlen.bin", varlen_signature(module))
    check_kernels(tmp_path / "root" / "varlen.onnx")


GRAPHS = (
    "bert", "causal-bert", "mpnet", "t5", "jina_bert_code", "deberta-v2", "nomic_bert", "gte", "modernbert", "eurobert",
    "qwen3, windows", "gemma3_text",
)  # fmt: skip
"""A family for each kind of graph: test_varlen.py and test_mixed_precision.py compare all, before the export."""
INACCURATE = {"gte": (0.9998, 0.997)}
"""The smallest cosines of golden vectors and of tokens, where random weights make the rounding of float16 matter."""


@pytest.mark.parametrize("family", mark_slow(*GRAPHS, fast=("bert",)))
def test_backend_agrees_with_float32_for_every_kind_of_graph(publish: Publish, family: str, tmp_path: Path) -> None:
    """In float16 as exported, in batches of every shape: embeddings, and the vectors of tokens."""
    artifact = export_model(publish(family), tmp_path / "out")
    check_kernels(tmp_path / "out" / artifact.manifest.graphs["cuda"].file)
    backend = open_varlen(artifact, max_batch_tokens=512)
    backend.warm_up()
    golden, tokenizer = artifact.read_golden_vectors(), Tokenizer(artifact.read(TOKENIZER))
    assert golden is not None
    found = golden_cosines(golden, artifact.manifest, tokenizer, backend, DenseLayers(artifact))
    least, least_of_tokens = INACCURATE.get(family, (EXPECTED_COSINE["float16"], 0.9995))
    assert min(found.values()) >= least, found
    assert artifact.manifest.graphs["cuda"].inputs[0].shape == ("T",)
    float32 = OnnxRuntimeCpuBackend(artifact, BackendChoice("cpu", "float32", "fast", 1, 1, 256, "test"))
    limit = artifact.manifest.max_input_tokens
    *short, long = (
        EncodeTask(tokens.truncate(limit, "right"), None, hidden=True)
        for tokens in tokenizer.encode([TokenizerInput(text) for text in (*SENTENCES[:5], " ".join(SENTENCES))])
    )
    for batch in (short, [long]):
        for task, result in zip(batch, backend.run(batch), strict=True):
            hidden, expected = result.hidden, float32.run([task])[0].hidden
            assert hidden is not None
            assert expected is not None
            cosines = (hidden * expected).sum(-1) / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(expected, axis=-1)
            assert cosines.min() > least_of_tokens


@pytest.mark.slow
@pytest.mark.parametrize("family", WINDOWS)
def test_texts_that_every_window_covers_run_in_a_graph_without_windows(family: str, tmp_path: Path) -> None:
    """It contains no weights. Longer texts, also beside short ones, run in the other graph."""
    longest = WINDOWS[family][1]
    publish_windows(family, tmp_path / "source")
    export(str(tmp_path / "source"), tmp_path / "out", variants=Variants(("cuda",), SENTENCES, explain=False))
    artifact = Artifact.open(tmp_path / "out")
    graphs, files = artifact.manifest.graphs, artifact.manifest.files
    short = graphs[CUDA_SHORT]
    assert (graphs[CUDA].longest, short.longest, short.weights) == (None, longest, graphs[CUDA].weights)
    assert files[short.file].size < 1.1 * files[graphs[CUDA].file].size
    check_kernels(tmp_path / "out" / short.file)
    nodes = onnx.load(tmp_path / "out" / short.file, load_external_data=False).graph.node
    assert not any(node.op_type == "MultiHeadAttention" for node in nodes)
    backend, tokenizer = open_varlen(artifact, max_batch_tokens=512), Tokenizer(artifact.read(TOKENIZER))
    backend.warm_up()
    needed = backend.gpu_memory_bytes
    assert needed > 2 * files["cuda.bin"].size
    float32 = OnnxRuntimeCpuBackend(artifact, BackendChoice("cpu", "float32", "fast", 1, 1, 256, "test"))
    chance = np.random.default_rng(0)
    special = len(tokenizer.encode([TokenizerInput(token_ids=())])[0])
    for lengths in ((3,), (longest,), (4, longest, 5, 3), (longest + 1,), (3, longest + 1, 4), (70, 9)):
        ids = [tuple(chance.integers(5, 60, length - special).tolist()) for length in lengths]
        tokenized = tokenizer.encode([TokenizerInput(token_ids=own) for own in ids])
        tasks = [EncodeTask(tokens, None, hidden=True) for tokens in tokenized]
        shape = backend.fit(lengths)
        assert (shape.longest <= longest) == (max(lengths) <= longest)
        for task, result in zip(tasks, backend.run(tasks), strict=True):
            hidden, expected = result.hidden, float32.run([task])[0].hidden
            assert hidden is not None
            assert expected is not None
            np.testing.assert_allclose(hidden, expected, atol=float(0.02 * np.abs(expected).max()))
    long, every = {shape for shape in backend.shapes.shapes if shape.longest > longest}, {*backend.shapes.shapes}
    assert backend._short_device is not None
    assert ({*backend._device._bound}, {*backend._short_device._bound}) == (long, every - long)
    (task,) = (EncodeTask(tokens, None, hidden=True) for tokens in tokenizer.encode([TokenizerInput("a")]))
    both = [backend.run([task])[0].hidden for _ in backend.each_graph()]
    np.testing.assert_allclose(both[0], both[1], atol=0.05)  # type: ignore[arg-type]
    assert {*backend._device._bound} > long
    backend.memory.release()
    smaller = open_varlen(artifact, max_batch_tokens=512, gpu=Gpu(0, needed - 1))  # has room for one graph
    smaller.warm_up()
    assert (smaller._short_device, {*smaller._device._bound}) == (None, every)
    assert smaller.gpu_memory_bytes == needed - files["cuda.bin"].size


def test_second_graph_is_left_out_if_its_batches_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs them for the first time, or when a session has failed and others are opened."""
    publish_windows("modernbert", tmp_path / "source")
    export(str(tmp_path / "source"), tmp_path / "out", variants=Variants(("cuda",), SENTENCES, explain=False))
    artifact = Artifact.open(tmp_path / "out")

    class FullDevice(_Device):
        def run(self, batch: VarlenBatch, hidden: bool) -> Any:
            if len(self._bound) > 1 and batch.shape.longest <= 16:
                raise RuntimeError("Available memory of 5 is smaller than requested bytes of 9")
            return super().run(batch, hidden)

    monkeypatch.setattr(cuda_backend, "_Device", FullDevice)
    backend = open_varlen(artifact, max_batch_tokens=512)
    before = backend.gpu_memory_bytes
    with pytest.raises(ConfigError):  # without the second graph, this device runs the batches in the first one
        backend.warm_up()
    assert (backend._short_device, backend.gpu_memory_bytes) == (None, before)
    monkeypatch.undo()
    backend = open_varlen(artifact, max_batch_tokens=512)
    backend.warm_up()
    make, opened = backend._make_device, []

    def make_device(name: str, gpu: Gpu) -> _Device:
        opened.append((name, backend._short_device))
        if name == CUDA_SHORT:
            raise RuntimeError("CUDA error: out of memory")
        return make(name, gpu)

    monkeypatch.setattr(backend, "_make_device", make_device)
    backend.reopen()
    assert opened == [(CUDA, None), (CUDA_SHORT, None)]
    backend.probe()
    assert backend._short_device is None


HEADS = (
    *((publish_classifier, kind) for kind in (CLASSIFIER, TOKEN_CLASSIFIER)),
    *((publish_retriever, kind) for kind in (SPLADE, BGE_M3, LOGIT_SCORE, "stanford", "native, causal")),
)
"""Each kind of head; of late interaction, with tokens that no token attends to, and in a causal model."""


@pytest.mark.slow
@pytest.mark.parametrize(("publish_head", "kind"), HEADS)
def test_heads_on_the_graph_agree_with_float32(publish_head: Publish, kind: str, tmp_path: Path) -> None:
    """The golden vectors of every head: labels, rankings, words, and sparse and token vectors."""
    artifact = export_model(publish_head(kind), tmp_path / "out")
    golden, tokenizer = artifact.read_golden_vectors(), Tokenizer(artifact.read(TOKENIZER))
    assert golden is not None
    backend = open_varlen(artifact, max_batch_tokens=512)
    backend.warm_up()  # opens the optional graphs
    found = golden_cosines(golden, artifact.manifest, tokenizer, backend, DenseLayers(artifact))
    assert len(found) > 1
    assert min(found.values()) >= 0.9998, found  # random weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SPLADE, INFERENCE_FREE])
@pytest.mark.parametrize("logit_bytes", [cuda_backend.LOGIT_BYTES, 1], ids=["all segments", "one segment"])
def test_sparse_vectors_are_projected_where_the_hidden_states_are(
    kind: str, logit_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares batches of short and long texts, some with other results, with a backend that projects on the CPU."""
    artifact = export_cuda(kind)
    assert {name for name in artifact.manifest.graphs if name.startswith("cuda")} == {CUDA, CUDA_SPARSE}
    chance = np.random.default_rng(0)
    monkeypatch.setattr(cuda_backend, "LOGIT_BYTES", logit_bytes)
    backend, on_cpu = (open_varlen(artifact, max_batch_tokens=512) for _ in range(2))
    before = backend.gpu_memory_bytes
    backend.warm_up()
    table = 2 * math.prod(required(required(artifact.manifest.sparse).decoder).shape)
    assert backend.gpu_memory_bytes == before + table + 2 * logit_bytes
    for number in range(20):
        tasks = []
        for _ in range(chance.integers(1, 9)):
            ids = chance.integers(5, 200, chance.integers(1, 60)).tolist()
            heads: tuple[HeadName, ...] = () if chance.random() < 0.2 else ("sparse",)
            tokens = OccludedSequence(ids, [0] * len(ids), side="query" if chance.random() < 0.3 else "document")
            pooling: Literal["mean"] | None = "mean" if chance.random() < 0.3 else None
            tasks.append(EncodeTask(tokens, pooling, chance.random() < 0.2, heads=heads))
        if number == 10:  # other sessions behave the same
            backend.reopen()
        for actual, expected in zip(backend.run(tasks), on_cpu.run(tasks), strict=True):
            for name in ("pooled", "hidden"):
                assert (getattr(actual, name) is None) == (getattr(expected, name) is None)
            assert (actual.sparse is None) == (expected.sparse is None)
            if actual.sparse is not None and expected.sparse is not None:
                (size, _) = required(required(artifact.manifest.sparse).decoder).shape
                found, wanted = (np.zeros(size, np.float32) for _ in range(2))
                found[actual.sparse.token_ids] = actual.sparse.weights
                wanted[expected.sparse.token_ids] = expected.sparse.weights
                np.testing.assert_allclose(found, wanted, atol=5e-3)


@pytest.mark.slow
def test_sparse_vectors_without_room_on_the_gpu_are_projected_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    artifact = export_cuda(SPLADE)
    needed = open_varlen(artifact, max_batch_tokens=512).gpu_memory_bytes
    backend = open_varlen(artifact, max_batch_tokens=512, gpu=Gpu(0, needed + 1))
    backend.warm_up()
    assert (backend._sparse_device, backend.gpu_memory_bytes) == (None, needed)
    assert "graph unused: not enough GPU memory graph=cuda_sparse" in caplog.text


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
    monkeypatch.setattr(export_cuda_module, "write_graph", write_without_words)
    with pytest.raises(AccuracyError, match=r"^cuda\.onnx: smallest cosine 0\.\d+, limit"):
        export(str(published), tmp_path / "out", variants=variants, settings=settings)
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_on_the_gpu_is_refused_with_figures(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before it is loaded, or as ONNX Runtime reports it while the shapes run for the first time."""
    artifact = export_model(published, tmp_path / "out")
    backend = open_varlen(artifact)
    needed = backend.gpu_memory_bytes
    assert needed > artifact.manifest.files["cuda.bin"].size

    def run(self: CudaBackend, batch: VarlenBatch, *, hidden: bool) -> None:
        raise RuntimeError("Non-zero status code: Available memory of 5 is smaller than requested bytes of 9")

    monkeypatch.setattr(CudaBackend, "_infer", run)
    figures = rf"^not enough GPU memory \(weights and buffers take {needed:,} bytes"
    with pytest.raises(ConfigError, match=f"{figures}, and batches do not fit") as raised:
        backend.warm_up()
    assert backend.memory not in cuda_memory.models
    assert not hasattr(backend, "_device"), raised.traceback
    limit = needed - 1
    with pytest.raises(
        ConfigError, match=rf"{figures}; .*ATTENDANT_GPU_MEMORY_LIMIT_BYTES allows this process {limit:,}"
    ):
        CudaBackend(artifact, replace(cuda_choice(), gpu=Gpu(0, limit)))
