"""Model prompts: embeddings match sentence-transformers, and tokens and words exclude the prompt."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from model.export.export import export
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.conftest import Publish
from tests.model.family_cases import HIDDEN_SIZE
from tests.service.conftest import ServiceHarness, open_harness

PROMPTS = {"query": "find: ", "document": "text: "}
TEXTS = ["the river bank", "money", "He cashed a check at the bank."]


@pytest.fixture(scope="module")
def published_model(publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with prompts, which its pooling excludes, and a default prompt. test_similarity.py has the others."""
    bare = shutil.copytree(publish("bert"), tmp_path_factory.mktemp("bare") / "bert")
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(bare / "tokenizer.json"), **names
    )
    tokenizer.save_pretrained(bare)
    torch.manual_seed(7)
    pooling = Pooling(HIDDEN_SIZE, "mean", include_prompt=False)
    modules = [Transformer(str(bare), max_seq_length=31), pooling, Normalize()]
    directory = tmp_path_factory.mktemp("published") / "tiny-prompted"
    oracle = SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name="document", device="cpu")
    oracle.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="module")
def oracle(published_model: Path) -> SentenceTransformer:
    return SentenceTransformer(str(published_model), device="cpu")


@pytest.fixture(scope="module")
def prompted(published_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    artifact = tmp_path_factory.mktemp("artifact") / "tiny-prompted"
    export(str(published_model), artifact, revision=None, name="tiny-prompted", progress=lambda step: None)
    return LoadedModel.load(Settings(model_dir=artifact, precision="float32"))


@pytest.fixture
async def harness(prompted: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(prompted) as opened:
        yield opened


@pytest.mark.parametrize(
    ("options", "prompt", "name"),
    [
        ({}, "text: ", "document"),
        ({"prompt_name": "query"}, "find: ", "query"),
        ({"prompt": "what is "}, "what is ", None),
        ({"prompt": ""}, None, None),
    ],
    ids=["default", "named", "custom", "none"],
)
async def test_embeddings_equal_sentence_transformers(
    harness: ServiceHarness, oracle: SentenceTransformer, options: dict[str, str], prompt: str | None, name: str | None
) -> None:
    expected = oracle.encode(TEXTS, prompt=prompt or "", show_progress_bar=False)
    for layers in ([-1], None):
        body = {"inputs": TEXTS, **options} | ({} if layers is None else {"layers": layers})
        response = (await harness.post("/v1/encode", body)).raise_for_status().json()
        assert (response["prompt"], response["prompt_name"]) == (prompt, name)
        vectors = np.array([result["pooled"] for result in response["results"]])
        np.testing.assert_allclose(vectors, expected, atol=2e-5)


async def test_input_type_of_openai_selects_the_prompt(harness: ServiceHarness, oracle: SentenceTransformer) -> None:
    for input_type, name in (("query", "query"), ("document", "document"), ("passage", "document")):
        body = {"model": "tiny-prompted", "input": TEXTS, "input_type": input_type}
        data = (await harness.post("/v1/embeddings", body)).raise_for_status().json()["data"]
        expected = oracle.encode(TEXTS, prompt_name=name, show_progress_bar=False)
        np.testing.assert_allclose([item["embedding"] for item in data], expected, atol=2e-5)


async def test_tokens_words_and_spans_match_the_text(harness: ServiceHarness) -> None:
    text = "the river bank"
    item = {"text": text, "spans": [[4, 9]]}
    outputs = ["pooled", "tokens", "words", "spans", "static"]
    body = {"inputs": [item], "outputs": outputs, "prompt_name": "query"}
    (result,) = (await harness.post("/v1/encode", body)).raise_for_status().json()["results"]
    (plain,) = (await harness.post("/v1/encode", body | {"prompt_name": None, "prompt": ""})).json()["results"]
    assert result["token_count"] > plain["token_count"]
    assert result["tokens"] == plain["tokens"]
    assert result["words"] == plain["words"]
    assert result["static_vectors"] == plain["static_vectors"]
    for name in ("token_vectors", "word_vectors", "span_vectors"):
        assert np.shape(result[name]) == np.shape(plain[name])
        assert np.abs(np.array(result[name]) - np.array(plain[name])).max() > 1e-3, name


@pytest.mark.parametrize("side", ["right", "left"])
async def test_truncation_keeps_the_prompt(harness: ServiceHarness, side: str) -> None:
    body = {"inputs": "bank " * 60, "outputs": ["tokens"], "prompt_name": "query", "truncation": side}
    (result,) = (await harness.post("/v1/encode", body)).raise_for_status().json()["results"]
    assert (result["token_count"], result["truncated"]) == (31, True)
    prompt_tokens = result["token_count"] - len(result["tokens"])
    assert prompt_tokens > 0


async def test_prompt_without_room_for_text_is_an_error(harness: ServiceHarness) -> None:
    body = {"inputs": "bank", "prompt": "bank " * 60, "truncation": "right"}
    error = (await harness.post("/v1/encode", body)).json()["error"]
    assert (error["reason"], error["field"], error["maximum"]) == ("TOO_LONG", "prompt", 28)
