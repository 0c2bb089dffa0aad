"""CPU backends with the real model: independence of batch composition, threads, NaN checks."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact.packing import BatchShape, pack_batch
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.export.sample_texts import sample_sentences
from service.config import Settings
from service.engine.backends.base import PackedBackend
from service.engine.backends.cpu import detect_cpu
from service.engine.model_loader import LoadedModel
from service.engine.tasks import EncodeTask
from service.errors import NonFiniteOutput
from tests.conftest import run_python
from tests.service.conftest import POISON, ServiceHarness, cosine, encode, min_cosine, open_harness

SENTENCES = (
    "money bank grows",
    "river bank flows",
    "Seven small boats wait at the bank for the morning tide, and nobody minds the wind or the rain.",
    "!",
    "Ein kleiner Hund läuft über die Brücke.",
    "人生は短い",
)
CPU = detect_cpu()
# On a CPU with bfloat16, "auto" is OpenVINO in the faster precision, and this is the other one.
OTHER_MODES = (f"openvino-{'float32' if CPU.fast_bfloat16 else 'bfloat16'}",) if CPU.bfloat16 else ()
MODES = ("auto", *OTHER_MODES, "cpu-float32")


@pytest.fixture(scope="module", params=MODES)
def opened(request: pytest.FixtureRequest, default_artifact: Path, model: LoadedModel) -> Iterator[LoadedModel]:
    """The default model in this machine's default mode, in the other precision, and with ONNX Runtime."""
    if request.param == "auto":
        yield model
        return
    provider, precision = request.param.split("-")
    yield LoadedModel.load(Settings(model_dir=default_artifact, provider=provider, precision=precision))


def packed_backend(model: LoadedModel) -> PackedBackend:
    assert isinstance(model.backend, PackedBackend)
    return model.backend


def make_tasks(tokenizer: Tokenizer, *sentences: str) -> list[EncodeTask]:
    return [
        EncodeTask(tokens, "mean", True) for tokens in tokenizer.encode([TokenizerInput(text) for text in sentences])
    ]


def run_hidden(model: LoadedModel, sentences: list[str]) -> list[NDArray[np.float32]]:
    results = [vectors.hidden for vectors in model.backend.run(make_tasks(model.tokenizer, *sentences))]
    return [hidden[0] for hidden in results if hidden is not None]


def test_embedding_does_not_depend_on_batch_composition(opened: LoadedModel) -> None:
    alone = {sentence: run_hidden(opened, [sentence])[0] for sentence in SENTENCES}
    for seed in range(4):
        together = random.Random(seed).sample(SENTENCES, len(SENTENCES))
        for sentence, vectors in zip(together, run_hidden(opened, together), strict=True):
            assert cosine(vectors, alone[sentence]) >= min_cosine(opened)


def test_backends_agree(opened: LoadedModel, model: LoadedModel) -> None:
    limit = min(min_cosine(opened), min_cosine(model))
    for sentence in SENTENCES:
        assert cosine(run_hidden(opened, [sentence])[0], run_hidden(model, [sentence])[0]) >= limit


def test_padding_content_is_ignored(opened: LoadedModel) -> None:
    (task,) = make_tasks(opened.tokenizer, SENTENCES[2])
    batch, size = pack_batch([(task.tokens.input_ids, None)], BatchShape(2, 64)), len(task.tokens)
    clean = packed_backend(opened).infer(batch.inputs)
    batch.inputs["input_ids"].ravel()[size:] = 2769
    batch.inputs["position_ids"].ravel()[size:] = 17
    other = packed_backend(opened).infer(batch.inputs)
    assert cosine(other[0, :size], clean[0, :size]) >= min_cosine(opened)


def test_only_requested_vectors_are_returned(opened: LoadedModel) -> None:
    (tokens,) = opened.tokenizer.encode([TokenizerInput(SENTENCES[0])])
    tasks = [EncodeTask(tokens, None, True), EncodeTask(tokens, "mean", False), EncodeTask(tokens, "cls", False)]
    unpooled, mean, cls = opened.backend.run(tasks)
    assert unpooled.pooled is None
    assert (mean.hidden, cls.hidden) == (None, None)
    assert unpooled.hidden is not None
    assert unpooled.hidden.shape == (1, len(tokens), 384)
    assert cosine(mean.pooled, unpooled.hidden.mean(axis=1)) >= min_cosine(opened)
    assert cosine(cls.pooled, unpooled.hidden[0, 0]) >= min_cosine(opened)


def test_results_are_not_overwritten_by_the_next_batch(opened: LoadedModel) -> None:
    first = run_hidden(opened, [SENTENCES[0]])[0]
    copy = first.copy()
    run_hidden(opened, [SENTENCES[1]])
    assert np.array_equal(first, copy)


def test_reopened_session_gives_the_same_vectors(opened: LoadedModel) -> None:
    before = run_hidden(opened, [SENTENCES[0]])[0]
    opened.backend.reopen()
    opened.backend.probe()
    assert cosine(run_hidden(opened, [SENTENCES[0]])[0], before) >= min_cosine(opened)


def test_concurrent_batches_of_random_lengths_are_correct(opened: LoadedModel) -> None:
    """Use more threads than streams. A crash in native code would kill the test process."""
    sentences = sample_sentences(120)
    tasks = make_tasks(opened.tokenizer, *(sentence[:400] for sentence in sentences))
    expected = [opened.backend.run([task])[0].pooled for task in tasks]
    failures: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            chosen = chance.sample(range(len(tasks)), chance.randint(1, 8))
            while sum(len(tasks[index].tokens) for index in chosen) > packed_backend(opened).max_batch_tokens:
                chosen.pop()
            results = opened.backend.run([tasks[index] for index in chosen]) if chosen else []
            failures.extend(
                sentences[index]
                for index, vectors in zip(chosen, results, strict=True)
                if cosine(vectors.pooled, expected[index]) < min_cosine(opened)
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(opened.backend.workers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_nan_raises(poisoned_model: LoadedModel) -> None:
    poisoned_model.backend.run(make_tasks(poisoned_model.tokenizer, "harmless"))
    with pytest.raises(NonFiniteOutput):
        poisoned_model.backend.run(make_tasks(poisoned_model.tokenizer, "harmless", f"a {POISON} runs", "harmless too"))


def test_bindings_are_initialized_before_threads_use_them(tiny_artifact: Path) -> None:
    """Use new processes, because the deadlock can only happen on a process's first calls."""
    program = (
        "import threading; from pathlib import Path\n"
        "from model.artifact.files import Artifact; from service.engine.backends.base import BackendChoice\n"
        "from service.engine.backends.openvino import OpenVinoBackend, RequestPool\n"
        "calls = []; infer = RequestPool.infer\n"
        "def record(pool, inputs): calls.append(threading.current_thread().name); return infer(pool, inputs)\n"
        "RequestPool.infer = record\n"
        "choice = BackendChoice('openvino', 'float32', 'fast', 2, 1, 512, 'test')\n"
        f"OpenVinoBackend(Artifact.open(Path({str(tiny_artifact)!r})), choice).warm_up()\n"
        "assert calls[0] == 'MainThread', calls[:3]; assert len(set(calls)) > 1"
    )
    for _ in range(2):
        completed = run_python("-c", program)
        assert (completed.returncode, completed.stderr) == (0, "")


def test_openvino_sends_no_telemetry_and_forks_no_process() -> None:
    program = (
        "import os; from service.engine.backends.openvino import import_openvino\n"
        "os.register_at_fork(before=lambda: os._exit(3))\n"
        "import_openvino().Core(); import sys; assert not sys.modules.get('openvino_telemetry')"
    )
    completed = run_python("-c", program)
    assert (completed.returncode, completed.stderr) == (0, "")


async def test_short_texts_share_batches(harness: ServiceHarness, model: LoadedModel) -> None:
    response = await encode(harness.engine, *(f"short text number {n}" for n in range(32)))
    assert harness.batches_run <= 2 * -(-response.token_count // model.backend.max_batch_tokens) + model.backend.workers


async def test_padding_is_small_for_real_sentences(harness: ServiceHarness) -> None:
    await encode(harness.engine, *sample_sentences(256))
    assert harness.sample("attendant_batch_padding_ratio_sum", lane="fast") / harness.batches_run <= 0.06


async def test_token_vectors_are_views_of_one_array(opened: LoadedModel) -> None:
    results: list[Any] = [vectors.hidden for vectors in opened.backend.run(make_tasks(opened.tokenizer, *SENTENCES))]
    assert len({id(values.base if values.base is not None else values) for values in results}) == 1


async def test_engine_reports_provider_and_precision(opened: LoadedModel) -> None:
    async with open_harness(opened) as harness:
        response = await encode(harness.engine, *SENTENCES, outputs=("pooled", "tokens"))
        assert response.precision == harness.engine.info.precision == opened.backend.choice.precision
        assert harness.engine.info.provider == opened.backend.choice.provider
