"""Causal attention on every CPU backend, compared with transformers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from attendant_client.types import Occurrence
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizerInput
from service.config import ConfigError, Settings
from service.engine.model_loader import LoadedModel
from service.engine.tasks import EncodeTask
from tests.service.conftest import cosine, open_harness
from tests.service.engine.backends.test_packed_backends import SENTENCES
from tests.service.engine.explain.test_compare import TWICE, compare_with

pytestmark = pytest.mark.slow  # exports the default model's weights as a causal model

MIN_COSINE = {"float32": 0.999999, "bfloat16": 0.999, "int8": 0.99}
"""Minimum cosine between a token vector and transformers in float32."""
MODES = ("auto", "openvino-float32", "cpu-float32", "openvino-int8")

Floats = NDArray[Any]


@pytest.fixture(scope="module", params=MODES)
def opened(request: pytest.FixtureRequest, causal_artifact: Path, causal_model: LoadedModel) -> LoadedModel:
    """The causal model in this machine's default mode, in float32 with both runtimes, and in int8."""
    if request.param == "auto":
        return causal_model
    provider, precision = request.param.split("-")
    try:
        return LoadedModel.load(Settings(model_dir=causal_artifact, provider=provider, precision=precision))
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def oracle(causal_artifact: Path) -> Callable[[list[int]], Floats]:
    """Return a function from token ids to transformers' last hidden states (T, D)."""
    source = causal_artifact.parent / "causal-minilm"
    bert = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()

    def run(input_ids: list[int]) -> Floats:
        with torch.inference_mode():
            hidden: Floats = bert(torch.tensor([input_ids])).last_hidden_state[0].numpy()
        return hidden

    return run


def make_tasks(model: LoadedModel, *sentences: str) -> list[EncodeTask]:
    encoded = model.tokenizer.encode([TokenizerInput(text) for text in sentences])
    return [EncodeTask(tokens, "mean", True) for tokens in encoded]


def run_hidden(model: LoadedModel, tasks: list[EncodeTask]) -> list[Floats]:
    results = [vectors.hidden for vectors in model.backend.run(tasks)]
    return [hidden[0] for hidden in results if hidden is not None]


def test_packed_batches_equal_transformers(opened: LoadedModel, oracle: Callable[[list[int]], Floats]) -> None:
    for seed in range(3):
        tasks = make_tasks(opened, *random.Random(seed).sample(SENTENCES, len(SENTENCES)))
        for task, hidden in zip(tasks, run_hidden(opened, tasks), strict=True):
            expected = oracle(task.tokens.input_ids)
            cosines = [cosine(left, right) for left, right in zip(hidden, expected, strict=True)]
            assert min(cosines) >= MIN_COSINE[opened.backend.choice.precision]


def test_embedding_does_not_depend_on_batch_composition(opened: LoadedModel) -> None:
    alone = {text: opened.backend.run(make_tasks(opened, text))[0].pooled for text in SENTENCES}
    same = 0.999999 if opened.backend.choice.precision == "float32" else 0.9999
    for seed in range(3):
        together = random.Random(seed).sample(SENTENCES, len(SENTENCES))
        for text, vectors in zip(together, opened.backend.run(make_tasks(opened, *together)), strict=True):
            assert cosine(vectors.pooled, alone[text]) >= same


def test_vectors_depend_on_earlier_tokens_only(opened: LoadedModel) -> None:
    """Two texts with the same beginning share a batch."""
    tasks = make_tasks(opened, "the bank of the river", "the bank of America")
    one, other = run_hidden(opened, tasks)
    assert tasks[0].tokens.input_ids[:4] == tasks[1].tokens.input_ids[:4]
    assert min(cosine(left, right) for left, right in zip(one[:4], other[:4], strict=True)) >= 0.9999
    assert cosine(one[-1], other[-1]) < 0.99
    money, river = run_hidden(opened, make_tasks(opened, "money bank", "river bank"))
    assert np.abs(money[0] - river[0]).max() <= 0.05  # [CLS]
    assert cosine(money[2], river[2]) < 0.95  # "bank"


async def test_later_words_are_not_contributors_in_causal_models(causal_model: LoadedModel) -> None:
    """The first word must have no contributors, although the request asks for 20."""
    async with open_harness(causal_model) as harness:
        occurrences = Occurrence(TWICE, word_index=5), Occurrence(TWICE, word_index=1), Occurrence(TWICE, word_index=0)
        response = await compare_with(harness.engine, *occurrences, top_contributors=20)
    for start, result in zip((22, 4, 0), response.occurrences, strict=True):
        starts = [contributor.start for contributor in result.contributors]
        assert sorted(starts) == [index for index in (0, 4, 9, 12, 16) if index < start]
        total = sum(contributor.share for contributor in result.contributors)
        assert total == pytest.approx(1.0 if starts else 0.0, abs=1e-5)
