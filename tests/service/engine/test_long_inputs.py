"""Inputs of 8,192 tokens, end to end, with a tiny BERT of as many learned positions."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from attendant_client.types import EncodeRequest

from model.artifact.tokenizer import TokenizerInput
from model.export.export import export
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from tests.model.tiny_tokenizers import build_wordpiece
from tests.running import run
from tests.service.conftest import ServiceHarness, encode_request, open_harness

pytestmark = pytest.mark.slow

TOKENS = 8192
TEXT = " ".join(["bank", "river", "money", "the"] * 3000)
TIMEOUT_MS: dict[str, Any] = {"max_timeout_ms": 600_000}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, root = build_wordpiece(), tmp_path_factory.mktemp("long")
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        max_position_embeddings=TOKENS,
    )
    transformers.BertModel(config).save_pretrained(root / "bert")
    (root / "bert" / "tokenizer.json").write_text(tokenizer.to_str())
    export(str(root / "bert"), root / "artifact", revision=None, name=None, progress=lambda step: None)
    return root / "artifact"


@pytest.fixture(scope="module")
def long_model(artifact: Path) -> LoadedModel:
    return LoadedModel.load(Settings(model_dir=artifact))


@pytest.fixture
async def harness(long_model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(long_model, **TIMEOUT_MS) as opened:
        yield opened


async def test_long_text_has_the_same_embedding_on_every_backend(harness: ServiceHarness, artifact: Path) -> None:
    body = {"inputs": TEXT, "truncation": "right"}
    response = (await harness.post("/v1/encode", body)).json()
    assert response["usage"]["tokens"] == TOKENS
    other = LoadedModel.load(Settings(model_dir=artifact, provider="cpu"))
    async with open_harness(other, **TIMEOUT_MS) as reference:
        expected = (await reference.post("/v1/encode", body)).json()
    vectors = [np.array(result["results"][0]["pooled"]) for result in (response, expected)]
    assert np.dot(*vectors) / np.prod([np.linalg.norm(vector) for vector in vectors]) > 0.9999


async def test_long_and_short_texts_of_one_request_do_not_mix(harness: ServiceHarness) -> None:
    texts = ["the bank", TEXT[:6000], "a river", TEXT[:20_000], "money"]
    together = (await harness.post("/v1/encode", {"inputs": texts})).json()["results"]
    for text, result in zip(texts, together, strict=True):
        alone = (await harness.post("/v1/encode", {"inputs": text})).json()["results"][0]
        np.testing.assert_allclose(result["pooled"], alone["pooled"], rtol=0, atol=2e-5)


async def test_body_limit_of_long_models_is_greater(harness: ServiceHarness, long_model: LoadedModel) -> None:
    body = {"inputs": [TEXT] * 60, "truncation": "right"}  # 3.6 MiB
    (info,) = (await harness.client.get("/v1/models")).json()["data"]
    assert info["limits"]["max_request_bytes"] == 16 * 2**20
    async with open_harness(long_model, max_request_bytes=2**21, **TIMEOUT_MS) as small:
        assert (await small.post("/v1/encode", body)).status_code == 413
        (info,) = (await small.client.get("/v1/models")).json()["data"]
        assert info["limits"]["max_request_bytes"] == 2**21
    assert (await harness.post("/v1/tokenize", body | {"truncation": None})).status_code != 413


async def test_attention_maps_of_long_texts_are_rejected(harness: ServiceHarness) -> None:
    response = await harness.post("/v1/attend", {"inputs": TEXT, "truncation": "right", "top_k": 1})
    error = response.json()["error"]
    assert (response.status_code, error["reason"]) == (413, "REQUEST_TOO_LARGE")
    assert error["actual"] > error["maximum"] == 2**30
    assert harness.sample("attendant_batch_size_count", lane="explain") == 0


async def longest_step(engine: Engine, request: EncodeRequest) -> float:
    """Return the longest CPU time of one iteration of the event loop during a request, in seconds."""
    task = asyncio.ensure_future(run(engine, request))
    longest, before = 0.0, time.thread_time()
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest


async def test_tokenization_of_a_long_text_does_not_block_the_event_loop(
    harness: ServiceHarness, long_model: LoadedModel
) -> None:
    request = encode_request(TEXT, truncation="right")
    await run(harness.engine, request)
    started = time.thread_time()
    long_model.tokenizer.encode([TokenizerInput(TEXT)])
    tokenization = time.thread_time() - started
    # The garbage collector may run in any step; tokenization on the event loop would be in each of the three runs.
    assert min([await longest_step(harness.engine, request) for _ in range(3)]) < tokenization / 8
