"""The CUDA backend with the varlen graph on the CPU: accuracy, independence of batch composition, NaN checks."""

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact.files import Artifact
from model.artifact.manifest import Pooling
from model.artifact.tokenizer import TokenizerInput
from model.export.sample_texts import sample_sentences
from service.engine.backends.base import BackendChoice
from service.engine.backends.cuda import CudaBackend
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.golden_check import EXPECTED_COSINE, golden_cosines
from service.engine.model_loader import LoadedModel
from service.engine.tasks import EncodeTask
from service.engine.vectors import DenseLayers
from service.errors import NonFiniteOutput
from tests.running import run
from tests.service.conftest import POISON, cosine, encode_request, open_harness
from tests.service.engine.backends.varlen_models import export_varlen, open_varlen

pytestmark = pytest.mark.slow  # exports the default model's graph

SENTENCES = (*sample_sentences(60), "!", "Ein kleiner Hund läuft über die Brücke.", "人生は短い")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The default model with its CUDA graph."""
    return export_varlen("default", tmp_path_factory.mktemp("flat") / "artifact", *SENTENCES[:8])


@pytest.fixture(scope="module")
def backend(artifact: Artifact) -> CudaBackend:
    """The CUDA backend over that graph."""
    return open_varlen(artifact)


def make_tasks(
    model: LoadedModel, *sentences: str, pooling: Pooling | None = "mean", hidden: bool = True
) -> list[EncodeTask]:
    sequences = model.tokenizer.encode([TokenizerInput(text) for text in sentences])
    return [EncodeTask(tokens.truncate(256, "right"), pooling, hidden) for tokens in sequences]


def run_pooled(backend: CudaBackend, tasks: list[EncodeTask]) -> list[NDArray[Any]]:
    pooled = [vectors.pooled for vectors in backend.run(tasks)]
    return [vector for vector in pooled if vector is not None]


def test_vectors_match_float32(model: LoadedModel, artifact: Artifact, backend: CudaBackend) -> None:
    """Compares one varlen batch of all texts with the fast graph running one text at a time."""
    float32 = OnnxRuntimeCpuBackend(artifact, BackendChoice("cpu", "float32", "fast", 1, 1, 256, "test"))
    tasks = make_tasks(model, *SENTENCES[:30])
    for actual, expected in zip(backend.run(tasks), [float32.run([task])[0] for task in tasks], strict=True):
        assert actual.hidden is not None
        assert expected.hidden is not None
        assert actual.hidden.shape == expected.hidden.shape
        assert actual.hidden.dtype == np.float32
        assert cosine(actual.pooled, expected.pooled) >= 0.9999
        assert cosine(actual.hidden, expected.hidden) >= 0.9999


def test_golden_check_compares_embeddings_pooled_in_the_graph(artifact: Artifact, model: LoadedModel) -> None:
    """Batches of few tokens hold few sequences, and the check must not exceed either."""
    golden = artifact.read_golden_vectors()
    assert golden is not None
    for tokens in (64, 1024):
        backend = open_varlen(artifact, max_batch_tokens=tokens)
        found = golden_cosines(golden, artifact.manifest, model.tokenizer, backend, DenseLayers(artifact))
        assert EXPECTED_COSINE["float16"] <= found["embedding"] < 1


def test_embedding_does_not_depend_on_batch_composition(model: LoadedModel, backend: CudaBackend) -> None:
    """Compares single-text batches with larger batches, in both orders."""
    tasks = make_tasks(model, *SENTENCES[:40])
    alone = [run_pooled(backend, [task])[0] for task in tasks]
    for batch in (tasks[:13], tasks, tasks[::-1]):
        for task, vector in zip(batch, run_pooled(backend, batch), strict=True):
            assert cosine(vector, alone[tasks.index(task)]) >= 0.999999


def test_warm_up_runs_every_shape_and_shapes_agree(model: LoadedModel, artifact: Artifact) -> None:
    backend = open_varlen(artifact, max_batch_tokens=256)
    backend.warm_up()
    assert set(backend._device._bound) == set(backend.shapes.shapes)
    (task,) = make_tasks(model, "money bank grows")
    expected = run_pooled(backend, [task])[0]
    for shape in backend.shapes.shapes:
        single_shape = open_varlen(artifact, max_batch_tokens=256)
        single_shape.shapes = dataclasses.replace(single_shape.shapes, shapes=(shape,))
        assert cosine(run_pooled(single_shape, [task])[0], expected) >= 0.999999


def test_only_requested_vectors_are_returned(model: LoadedModel, backend: CudaBackend) -> None:
    """Each task uses a different pooling mode: the one in the graph, or one computed on the host."""
    (task,) = make_tasks(model, SENTENCES[0])
    tokens = task.tokens
    tasks = [
        EncodeTask(tokens, None, True),
        *(EncodeTask(tokens, pooling, False) for pooling in ("mean", "cls", "max")),
    ]
    unpooled, mean, cls, largest = backend.run(tasks)
    assert unpooled.pooled is None
    assert unpooled.hidden is not None
    assert (mean.hidden, cls.hidden, largest.hidden) == (None, None, None)
    assert cosine(mean.pooled, unpooled.hidden[0].mean(axis=0)) >= 0.99999
    assert cosine(cls.pooled, unpooled.hidden[0, 0]) >= 0.99999
    assert cosine(largest.pooled, unpooled.hidden[0].max(axis=0)) >= 0.99999


def test_results_are_not_overwritten_by_the_next_batch(model: LoadedModel, backend: CudaBackend) -> None:
    """Batches reuse device memory, so results must be copies."""
    first, second = make_tasks(model, *SENTENCES[:2])
    (result,) = backend.run([first])
    assert result.pooled is not None
    assert result.hidden is not None
    pooled, hidden = result.pooled.copy(), result.hidden.copy()
    backend.run([second])
    assert np.array_equal(result.pooled, pooled)
    assert np.array_equal(result.hidden, hidden)


def test_one_thread_runs_the_session(model: LoadedModel, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured CUDA graph belongs to the thread that captured it."""
    backend = open_varlen(artifact)
    threads: list[str] = []
    run = backend._device.run

    def record(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return run(*arguments)

    monkeypatch.setattr(backend._device, "run", record)
    tasks = make_tasks(model, *SENTENCES[:8])
    sequential = [run_pooled(backend, [task])[0] for task in tasks]
    with ThreadPoolExecutor(4) as executor:
        concurrent = list(executor.map(lambda task: run_pooled(backend, [task])[0], tasks))
    assert len(threads) == 16
    assert len(set(threads)) == 1
    assert all(cosine(left, right) >= 0.999999 for left, right in zip(sequential, concurrent, strict=True))


def test_batch_limits_follow_the_shapes(backend: CudaBackend) -> None:
    assert (backend.max_batch_tokens, backend.max_batch_size) == (1024, 128)
    assert backend.length_buckets == (64, 128, 256, 512, 1024)


def test_nan_raises(poisoned_varlen: tuple[LoadedModel, CudaBackend]) -> None:
    """The second of three tasks contains the NaN."""
    model, backend = poisoned_varlen
    backend.run(make_tasks(model, "harmless"))
    for hidden in (True, False):
        with pytest.raises(NonFiniteOutput):
            backend.run(make_tasks(model, "harmless", f"a {POISON} runs", "harmless too", hidden=hidden))


@pytest.fixture(scope="module")
def poisoned_varlen(
    model: LoadedModel, artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, CudaBackend]:
    """The backend with NaN in one word's embedding."""
    import onnx

    graph = artifact.manifest.graphs["cuda"]
    initializers = onnx.load_from_string(artifact.read(graph.file)).graph.initializer
    (table,) = [tensor for tensor in initializers if tensor.name == "embeddings.word_embeddings.weight"]
    offset = next(int(entry.value) for entry in table.external_data if entry.key == "offset")
    (token_id,) = model.tokenizer.encode([TokenizerInput(POISON)])[0].input_ids[1:-1]
    root = tmp_path_factory.mktemp("poisoned")
    weights = np.frombuffer(artifact.read("cuda.bin"), dtype=np.uint8).copy()
    vectors = weights[offset : offset + table.dims[0] * table.dims[1] * 2].view(np.float16)
    vectors.reshape(*table.dims)[token_id] = np.nan
    return model, open_varlen(_with_weights(artifact, root, weights.tobytes()))


def _with_weights(artifact: Artifact, root: Path, weights: bytes) -> Artifact:
    """Write a copy of the artifact with different CUDA weights."""
    from model.artifact.files import describe_file, write_manifest

    for name in artifact.manifest.files:
        (root / name).write_bytes(artifact.read(name))
    (name,) = artifact.manifest.graphs["cuda"].weights
    (root / name).write_bytes(weights)
    files = {**artifact.manifest.files, name: describe_file(root / name)}
    write_manifest(root, artifact.manifest.model_copy(update={"files": files}))
    return Artifact.open(root)


async def test_engine_serves_the_cuda_backend(model: LoadedModel, artifact: Artifact, backend: CudaBackend) -> None:
    """Checks vectors, the number of batches and the model info."""
    cuda_model = dataclasses.replace(model, artifact=artifact, backend=backend)
    async with open_harness(cuda_model) as harness:
        batched = await run(harness.engine, encode_request(*SENTENCES[:40], outputs=("pooled", "tokens", "words")))
        assert harness.batches_run <= 3
        single = await asyncio.gather(*(run(harness.engine, encode_request(text)) for text in SENTENCES[:40]))
        info = harness.engine.info
    assert (batched.precision, info.precision, info.provider) == ("float16", "float16", "cuda")
    assert info.length_buckets == [64, 128, 256, 512, 1024]
    async with open_harness(model) as harness:
        reference = await run(harness.engine, encode_request(*SENTENCES[:40], outputs=("pooled", "tokens", "words")))
    for result, alone, expected in zip(batched.results, single, reference.results, strict=True):
        assert result.pooled is not None
        assert expected.pooled is not None
        assert alone.results[0].pooled is not None
        assert cosine(result.pooled, expected.pooled) >= 0.9999
        assert cosine(result.pooled, alone.results[0].pooled) >= 0.9999
        assert result.word_vectors is not None
        assert expected.word_vectors is not None
        assert cosine(result.word_vectors, expected.word_vectors) >= 0.999


async def test_poisoned_text_fails_alone(poisoned_varlen: tuple[LoadedModel, CudaBackend]) -> None:
    """The other texts in the batch must get their vectors."""
    model, backend = poisoned_varlen
    async with open_harness(dataclasses.replace(model, backend=backend)) as harness:
        calls = [run(harness.engine, encode_request(text)) for text in ("harmless", POISON, "harmless too")]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(second, NonFiniteOutput)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
