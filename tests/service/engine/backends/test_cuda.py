"""The flat runtime, whole, on the CPU: the vectors of the encoder, in any company, and nothing that is no number."""

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact import Artifact, Pooling
from model.corpus import sample_sentences
from model.tokenizer import Source
from service.engine.backends.base import BackendChoice
from service.engine.backends.cuda import CudaBackend
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeTask
from service.errors import NonFiniteOutput
from tests.service.conftest import POISON, cosine, encode_request, open_house
from tests.service.engine.backends.varlen_models import export_varlen, open_varlen

SENTENCES = (*sample_sentences(60), "!", "Ein kleiner Hund läuft über die Brücke.", "人生は短い")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The default model with its graph for CUDA."""
    return export_varlen("default", tmp_path_factory.mktemp("flat") / "artifact", *SENTENCES)


@pytest.fixture(scope="module")
def runtime(artifact: Artifact) -> CudaBackend:
    """Of that graph."""
    return open_varlen(artifact)


def texts_of(
    model: LoadedModel, *sentences: str, pooling: Pooling | None = "mean", hidden: bool = True
) -> list[EncodeTask]:
    found = model.tokenizer.encode([Source(text) for text in sentences])
    return [EncodeTask(tokens.truncate(256, "right"), pooling, hidden) for tokens in found]


def pooled_of(runtime: CudaBackend, texts: list[EncodeTask]) -> list[NDArray[Any]]:
    found = [vectors.pooled for vectors in runtime.run(texts)]
    return [vector for vector in found if vector is not None]


def test_vectors_are_those_of_float32(model: LoadedModel, artifact: Artifact, runtime: CudaBackend) -> None:
    """Of every token and of every text, with all texts in one row and each alone in the fast graph."""
    exact = OnnxRuntimeCpuBackend(artifact, BackendChoice("cpu", "float32", "fast", 1, 1, 256, "test"))
    texts = texts_of(model, *SENTENCES[:30])
    ours, theirs = runtime.run(texts), [exact.run([text])[0] for text in texts]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.hidden is not None
        assert other.hidden is not None
        assert mine.hidden.shape == other.hidden.shape
        assert mine.hidden.dtype == np.float32
        assert cosine(mine.pooled, other.pooled) >= 0.9999
        assert cosine(mine.hidden, other.hidden) >= 0.9999


def test_a_text_gets_the_same_vector_in_any_company(model: LoadedModel, runtime: CudaBackend) -> None:
    """Alone, in order, in the other order, in rows of other shapes."""
    texts = texts_of(model, *SENTENCES[:40])
    alone = [pooled_of(runtime, [text])[0] for text in texts]
    for company in (texts[:13], texts, texts[::-1]):
        for text, vector in zip(company, pooled_of(runtime, company), strict=True):
            assert cosine(vector, alone[texts.index(text)]) >= 0.999999


def test_every_shape_is_warmed_and_right(model: LoadedModel, artifact: Artifact) -> None:
    """Each runs before the first caller, and gives the same vector for a text alone in it."""
    runtime = open_varlen(artifact, max_batch_tokens=256)
    runtime.warm_up()
    assert set(runtime._device._bound) == set(runtime.shapes.shapes)
    (text,) = texts_of(model, "money bank grows")
    expected = pooled_of(runtime, [text])[0]
    for shape in runtime.shapes.shapes:
        narrowed = open_varlen(artifact, max_batch_tokens=256)
        narrowed.shapes = dataclasses.replace(narrowed.shapes, shapes=(shape,))
        assert cosine(pooled_of(narrowed, [text])[0], expected) >= 0.999999


def test_only_what_is_wanted_comes_back(model: LoadedModel, runtime: CudaBackend) -> None:
    """Each text by its own pooling: the graph's own, or the host's over the same hidden vectors."""
    (text,) = texts_of(model, SENTENCES[0])
    tokens = text.tokens
    wanted = [
        EncodeTask(tokens, None, True),
        *(EncodeTask(tokens, pooling, False) for pooling in ("mean", "cls", "max")),
    ]
    whole, mean, cls, largest = runtime.run(wanted)
    assert whole.pooled is None
    assert whole.hidden is not None
    assert (mean.hidden, cls.hidden, largest.hidden) == (None, None, None)
    assert cosine(mean.pooled, whole.hidden[0].mean(axis=0)) >= 0.99999
    assert cosine(cls.pooled, whole.hidden[0, 0]) >= 0.99999
    assert cosine(largest.pooled, whole.hidden[0].max(axis=0)) >= 0.99999


def test_results_are_not_overwritten_by_the_next_row(model: LoadedModel, runtime: CudaBackend) -> None:
    """Rows share the device's memory, so what is handed out must be a copy."""
    first, second = texts_of(model, *SENTENCES[:2])
    (found,) = runtime.run([first])
    assert found.pooled is not None
    assert found.hidden is not None
    pooled, hidden = found.pooled.copy(), found.hidden.copy()
    runtime.run([second])
    assert np.array_equal(found.pooled, pooled)
    assert np.array_equal(found.hidden, hidden)


def test_one_thread_runs_the_session(model: LoadedModel, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks, from however many threads: what is recorded belongs to a thread."""
    runtime = open_varlen(artifact)
    threads: list[str] = []
    run = runtime._device.run

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return run(*arguments)

    monkeypatch.setattr(runtime._device, "run", noting)
    texts = texts_of(model, *SENTENCES[:8])
    alone = [pooled_of(runtime, [text])[0] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: pooled_of(runtime, [text])[0], texts))
    assert len(threads) == 16
    assert len(set(threads)) == 1
    assert all(cosine(one, other) >= 0.999999 for one, other in zip(alone, together, strict=True))


def test_limits_of_a_batch_are_those_of_the_shapes(runtime: CudaBackend) -> None:
    assert (runtime.max_batch_tokens, runtime.max_batch_size) == (1024, 128)
    assert runtime.length_buckets == (64, 128, 256, 512, 1024)


def test_nan_raises(poisoned_varlen: tuple[LoadedModel, CudaBackend]) -> None:
    """It is never handed out, whichever text of the row it is in."""
    model, runtime = poisoned_varlen
    runtime.run(texts_of(model, "harmless"))
    for hidden in (True, False):
        with pytest.raises(NonFiniteOutput):
            runtime.run(texts_of(model, "harmless", f"a {POISON} runs", "harmless too", hidden=hidden))


@pytest.fixture(scope="module")
def poisoned_varlen(
    model: LoadedModel, artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, CudaBackend]:
    """The graph with one word's embedding spoiled."""
    import onnx

    graph = artifact.manifest.graphs["cuda"]
    described = onnx.load_from_string(artifact.read(graph.file)).graph.initializer
    (table,) = [tensor for tensor in described if tensor.name == "embeddings.tokens.weight"]
    offset = next(int(entry.value) for entry in table.external_data if entry.key == "offset")
    (number,) = model.tokenizer.encode([Source(POISON)])[0].ids[1:-1]
    root = tmp_path_factory.mktemp("poisoned")
    weights = np.frombuffer(artifact.read(graph.weights), dtype=np.uint8).copy()
    vectors = weights[offset : offset + table.dims[0] * table.dims[1] * 2].view(np.float16)
    vectors.reshape(*table.dims)[number] = np.nan
    return model, open_varlen(_with_weights(artifact, root, weights.tobytes()))


def _with_weights(artifact: Artifact, root: Path, weights: bytes) -> Artifact:
    """The artifact with other weights for CUDA."""
    from model.artifact import describe_file, write_manifest

    for name in artifact.manifest.files:
        (root / name).write_bytes(artifact.read(name))
    name = artifact.manifest.graphs["cuda"].weights
    (root / name).write_bytes(weights)
    files = {**artifact.manifest.files, name: describe_file(root / name)}
    write_manifest(root, artifact.manifest.model_copy(update={"files": files}))
    return Artifact.open(root)


async def test_the_engine_serves_it(model: LoadedModel, artifact: Artifact, runtime: CudaBackend) -> None:
    """Pooled, tokens and words through the one door, in few rows, and its facts are told."""
    served = dataclasses.replace(model, artifact=artifact, backend=runtime)
    async with open_house(served) as house:
        whole = await house.engine.encode(encode_request(*SENTENCES[:40], outputs=("pooled", "tokens", "words")))
        assert house.batches_run <= 3
        answers = await asyncio.gather(*(house.engine.encode(encode_request(text)) for text in SENTENCES[:40]))
        facts = house.engine.info
    assert (whole.precision, facts.precision, facts.provider) == ("float16", "float16", "cuda")
    assert facts.row_lengths == [64, 128, 256, 512, 1024]
    async with open_house(model) as house:
        expected = await house.engine.encode(encode_request(*SENTENCES[:40], outputs=("pooled", "tokens", "words")))
    for mine, alone, other in zip(whole.results, answers, expected.results, strict=True):
        assert mine.pooled is not None
        assert other.pooled is not None
        assert alone.results[0].pooled is not None
        assert cosine(mine.pooled.values, other.pooled.values) >= 0.9999
        assert cosine(mine.pooled.values, alone.results[0].pooled.values) >= 0.9999
        assert mine.word_vectors is not None
        assert other.word_vectors is not None
        assert cosine(mine.word_vectors.values, other.word_vectors.values) >= 0.999


async def test_a_poisoned_text_fails_alone(poisoned_varlen: tuple[LoadedModel, CudaBackend]) -> None:
    """Its mates in the row get their answers."""
    model, runtime = poisoned_varlen
    async with open_house(dataclasses.replace(model, backend=runtime)) as house:
        asked = [house.engine.encode(encode_request(text)) for text in ("harmless", POISON, "harmless too")]
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(second, NonFiniteOutput)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
