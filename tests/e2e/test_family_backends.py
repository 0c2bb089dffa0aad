"""Every architecture on every backend and in every precision of this CPU, compared with transformers."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attendant_client.types import EncodeRequest, Input, Provider
from numpy.typing import NDArray

from model.artifact.manifest import Precision
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.export.export import Variants, export
from model.export.graphs import ParityError
from service.config import ConfigError, Settings
from service.engine.backends.base import Backend
from service.engine.backends.cpu import detect_cpu
from service.engine.tasks import EncodeTask, TextVectors
from tests.model.conftest import Publish
from tests.model.family_cases import FAMILY_CASES, load_oracle
from tests.running import run
from tests.service.conftest import open_harness
from tests.shared_models import load_anew

Floats = NDArray[Any]

CPU = detect_cpu()
PROVIDERS: dict[str, tuple[Provider, Precision]] = {"ONNX Runtime": ("cpu", "float32")}
if importlib.util.find_spec("openvino") is not None:
    PROVIDERS["OpenVINO"] = ("openvino", "float32")
    PROVIDERS |= {"OpenVINO bfloat16": ("openvino", "bfloat16")} if CPU.bfloat16 else {}
    PROVIDERS |= {"OpenVINO int8": ("openvino", "int8")} if CPU.vnni else {}
TEXTS = (
    "The miller counts his boats.",
    "Rain.",
    "Ein Hund läuft über 42 Brücken, déjà vu!",
    "Кошка спит на окне.",
    "Η γάτα κοιμάται.",
    "القطة نائمة",
    "החתול ישן",
    "बिल्ली सो रही है",
    "แมวนอนหลับ",
    "猫在睡觉。",
    "ねこがねている",
    "고양이가 잔다",
    "კატას სძინავს",
    "பூனை தூங்குகிறது",
    "\U0001f469\u200d\U0001f467 and \U0001f1e9\U0001f1ea",
)
"""Twelve scripts and emoji; most characters are unknown or bytes to the tiny tokenizers."""


@dataclass(frozen=True)
class Family:
    """An artifact, and the last hidden states (T, D) of `TEXTS` in transformers."""

    artifact: Path
    expected: list[Floats]


KINDS = (*(kind for kind in FAMILY_CASES if "," not in kind), "qwen3, windows")
"""Without the variants of an architecture that differ in names and positions: their graphs have the same operators."""


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def family(request: pytest.FixtureRequest, publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Family:
    out = tmp_path_factory.mktemp("family") / "artifact"
    published = publish(request.param)
    try:
        export_quietly(published, out, Variants(("int8",) if CPU.vnni else (), explain=False))
    except ParityError as error:
        assert "Export without --variant int8" in str(error)  # noqa: PT017
        export_quietly(published, out, Variants(explain=False))
    model = load_anew(Settings(model_dir=out, precision="float32"))
    types = model.artifact.manifest.architecture.type_vocab_size > 1
    expected, oracle = [], load_oracle(published)
    for tokens in model.tokenizer.encode([TokenizerInput(text) for text in TEXTS]):
        inputs = {"input_ids": torch.tensor([tokens.input_ids]), "attention_mask": torch.ones(1, len(tokens))}
        inputs |= {"token_type_ids": torch.tensor([tokens.token_type_ids])} if types else {}
        with torch.inference_mode():
            expected.append(oracle(**inputs).last_hidden_state[0].numpy())
    return Family(out, expected)


def export_quietly(published: Path, out: Path, variants: Variants) -> None:
    export(str(published), out, revision=None, name=None, progress=lambda step: None, variants=variants)


def hidden_states(
    tokenizer: Tokenizer, backend: Backend[EncodeTask, TextVectors], texts: tuple[str, ...]
) -> list[Floats]:
    """Return the last hidden states of texts in packed batches, each as large as the backend allows."""
    batches: list[list[EncodeTask]] = [[]]
    for tokens in tokenizer.encode([TokenizerInput(text) for text in texts], offsets=False):
        if sum(len(task.tokens) for task in batches[-1]) + len(tokens) > backend.max_batch_tokens:
            batches.append([])
        batches[-1].append(EncodeTask(tokens, None, hidden=True))
    results = [vectors.hidden for batch in batches for vectors in backend.run(batch)]
    return [hidden[0] for hidden in results if hidden is not None]


def cosines(a: Floats, b: Floats) -> Floats:
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    values: Floats = (a * b).sum(axis=-1) / lengths
    return values


@pytest.mark.parametrize("backend", PROVIDERS)
async def test_every_backend_equals_transformers_packed_and_alone(family: Family, backend: str) -> None:
    """Random weights of this scale magnify rounding errors, but no backend is refused at the start because of them."""
    provider, precision = PROVIDERS[backend]
    try:
        model = load_anew(Settings(model_dir=family.artifact, provider=provider, precision=precision))
    except ConfigError as refused:
        assert precision == "int8"
        assert 'has no "int8" graph' in str(refused)  # noqa: PT017
        return
    limit = {"float32": 0.999999, "bfloat16": 0.99, "int8": 0.95}[precision]
    together = hidden_states(model.tokenizer, model.backend, TEXTS)
    for text, expected, packed in zip(TEXTS, family.expected, together, strict=True):
        (alone,) = hidden_states(model.tokenizer, model.backend, (text,))
        if precision == "float32":
            tolerance = 1e-4 * max(1, np.abs(expected).max())
            np.testing.assert_allclose(packed, expected, atol=tolerance, rtol=0)
            np.testing.assert_allclose(alone, expected, atol=tolerance, rtol=0)
        means = [vectors.mean(axis=0) for vectors in (expected, packed, alone)]
        assert cosines(means[0], means[1]) >= limit
        assert cosines(means[1], means[2]) >= limit
    async with open_harness(model) as harness:
        request = EncodeRequest(tuple(Input(text) for text in TEXTS))
        response = await run(harness.engine, request)
    assert (response.precision, len(response.results)) == (precision, len(TEXTS))
