"""Fill-mask through the REST API, compared with the pipeline of transformers, and with the head on earlier layers."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from model.artifact.files import TOKENIZER, Artifact, describe_file
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.operations.fill_mask import MAX_FILLED
from tests.model.model_files import copy_artifact, rewrite_manifest
from tests.retrievers import MASKED_LMS, SPLADE, export_retriever, publish_retriever
from tests.service.conftest import ServiceHarness, open_harness
from tests.serving import load_retriever

TEXTS = ["the {} by the river", "{} grows in a bank account", "a {} and a {}", "she counts the money {}"]


KINDS = [SPLADE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MASKED_LMS)]


@pytest.fixture(params=KINDS)
async def masked(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, ServiceHarness]]:
    async with open_harness(load_retriever(request.param)) as opened:
        yield request.param, opened


@pytest.fixture
async def bert() -> AsyncIterator[ServiceHarness]:
    async with open_harness(load_retriever(SPLADE)) as opened:
        yield opened


async def fill(harness: ServiceHarness, **body: Any) -> list[Any]:
    response = await harness.post("/v1/fill-mask", body)
    assert response.status_code == 200, response.text
    results: list[Any] = response.json()["results"]
    return results


async def test_predictions_equal_the_pipeline(masked: tuple[str, ServiceHarness]) -> None:
    kind, harness = masked
    directory = str(publish_retriever(kind))
    oracle: Any = transformers.pipeline("fill-mask", model=directory, tokenizer=directory, top_k=7)
    mask = (await harness.client.get("/v1/model")).json()["mask_token"]
    texts = [text.format(mask, mask) for text in TEXTS]
    for text, result in zip(texts, await fill(harness, inputs=texts, top_k=7), strict=True):
        expected = oracle(text)
        assert len(result["positions"]) == text.count(mask)
        for position, words in zip(result["positions"], expected if text.count(mask) > 1 else [expected], strict=True):
            assert text[position["start"] : position["end"]] == mask
            ((layer),) = position["layers"]
            assert [word["id"] for word in layer["predictions"]] == [word["token"] for word in words]
            for word, other in zip(layer["predictions"], words, strict=True):
                assert word["probability"] == pytest.approx(other["score"], abs=1e-5)
                assert word["token"] == oracle.tokenizer.convert_ids_to_tokens(word["id"])


def without_spaces(sequence: str) -> str:
    """Return a sequence without spaces, special tokens and the prefix ##, which the pipeline adds or removes."""
    return re.sub(r"\[[A-Z]+\]| |##", "", sequence)


@pytest.mark.parametrize("text", TEXTS)
async def test_words_in_the_format_of_the_pipeline(bert: ServiceHarness, text: str) -> None:
    directory = str(publish_retriever(SPLADE))
    oracle: Any = transformers.pipeline("fill-mask", model=directory, tokenizer=directory, top_k=60)
    text = text.format("[MASK]", "[MASK]")
    expected: Any = oracle(text)
    path = f"/models/{bert.engine.name}/pipeline/fill-mask"
    found = (await bert.post(path, {"inputs": text, "parameters": {"top_k": 60}})).json()
    single = text.count("[MASK]") == 1
    for words, others in zip([found] if single else found, [expected] if single else expected, strict=True):
        for word, other in zip(words, others, strict=True):
            assert word["score"] == pytest.approx(other["score"], abs=1e-5)
            assert (word["token"], word["token_str"]) == (other["token"], other["token_str"])
            if single:  # with several masks, the pipeline's sequence contains special tokens
                assert without_spaces(word["sequence"]) == without_spaces(other["sequence"])


async def test_targets_equal_the_pipeline(bert: ServiceHarness) -> None:
    directory = str(publish_retriever(SPLADE))
    oracle: Any = transformers.pipeline("fill-mask", model=directory, tokenizer=directory)
    text, targets = TEXTS[0].format("[MASK]"), ["river", "bank", "##s"]
    (result,) = await fill(bert, inputs=text, targets=targets)
    found = result["positions"][0]["layers"][0]["predictions"]
    expected = oracle(text, targets=targets, top_k=3)
    assert [word["id"] for word in found] == [word["token"] for word in expected]
    assert [word["probability"] for word in found] == pytest.approx([word["score"] for word in expected], abs=1e-6)
    (fewer,) = await fill(bert, inputs=text, targets=targets, top_k=1)
    assert fewer["positions"][0]["layers"][0]["predictions"] == found[:1]


async def test_target_without_a_row_in_the_projection_is_rejected(tmp_path: Path) -> None:
    """A special token that no text contains may lie beyond the table."""
    root = copy_artifact(export_retriever(SPLADE), tmp_path)
    size = Artifact.open(root).manifest.architecture.vocab_size
    definition = json.loads((root / TOKENIZER).read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    definition["added_tokens"].append({"id": size, "content": "[IMG]", "special": True, **flags})
    (root / TOKENIZER).write_text(json.dumps(definition))
    record = describe_file(root / TOKENIZER).model_dump()
    rewrite_manifest(root, lambda manifest: manifest["files"].update({TOKENIZER: record}))
    async with open_harness(LoadedModel.load(Settings(model_dir=root, precision="float32"))) as harness:
        body = {"inputs": TEXTS[0].format("[MASK]"), "targets": ["river", "[IMG]"]}
        response = await harness.post("/v1/fill-mask", body)
    assert response.status_code == 422, response.text
    assert response.json()["error"]["field"] == "targets[1]"


@pytest.mark.parametrize("kind", [SPLADE, pytest.param("modernbert", marks=pytest.mark.slow)])
async def test_layers_equal_the_head_on_their_hidden_states(kind: str) -> None:
    """A pre-norm encoder has a final norm, which its hidden states of earlier layers have not passed."""
    directory = publish_retriever(kind)
    oracle = transformers.AutoModelForMaskedLM.from_pretrained(directory, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = TEXTS[0].format(tokenizer.mask_token)
    ids = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = oracle.base_model(**ids, output_hidden_states=True).hidden_states
        last = len(hidden) - 1
        if kind == SPLADE:
            logits = [oracle.cls(layer) for layer in hidden]
        else:
            normed = [*(oracle.model.final_norm(layer) for layer in hidden[:last]), hidden[last]]
            logits = [oracle.decoder(oracle.head(layer)) for layer in normed]
    async with open_harness(load_retriever(kind)) as harness:
        for position in (0, 1, 2):
            (result,) = await fill(harness, inputs=text, position=position, layers="all", top_k=100)
            ((filled),) = result["positions"]
            assert [layer["layer"] for layer in filled["layers"]] == list(range(last + 1))
            for layer, rows in zip(filled["layers"], logits, strict=True):
                expected = torch.softmax(rows[0, position], dim=-1).numpy()
                found = np.array([word["probability"] for word in layer["predictions"]])
                np.testing.assert_allclose(found, np.sort(expected)[::-1][:100], rtol=0, atol=1e-5)
                np.testing.assert_allclose(found, expected[[word["id"] for word in layer["predictions"]]], atol=1e-5)
        (alone,) = await fill(harness, inputs=text, position=2, top_k=100)
        values = [word["probability"] for word in alone["positions"][0]["layers"][0]["predictions"]]
        np.testing.assert_allclose(values, found, rtol=0, atol=1e-5)  # the fast lane agrees with the explain lane


async def test_only_fill_mask_reads_the_mask_token_in_text(bert: ServiceHarness) -> None:
    text = TEXTS[0].format("[MASK]")
    (encoded,) = (await bert.post("/v1/tokenize", {"inputs": text})).json()["results"]
    assert [token["text"] for token in encoded["tokens"]].count("[MASK]") == 0
    ids = [token["id"] for token in encoded["tokens"] if not token["special"]]
    error = (await bert.post("/v1/fill-mask", {"inputs": [{"token_ids": ids}]})).json()["error"]
    assert (error["reason"], error["field"]) == ("MASK_MISSING", "inputs[0]")
    (mask_id,) = {token["id"] for token in await vocabulary(bert) if token["text"] == "[MASK]"}
    (result,) = await fill(bert, inputs=[{"token_ids": [*ids[:2], mask_id]}])
    assert [position["position"] for position in result["positions"]] == [3]


async def vocabulary(harness: ServiceHarness) -> list[dict[str, Any]]:
    size = (await harness.client.get("/v1/model")).json()["vocab_size"]
    body = {"inputs": [{"token_ids": list(range(size))}]}
    tokens: list[dict[str, Any]] = (await harness.post("/v1/tokenize", body)).json()["results"][0]["tokens"]
    return tokens


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"inputs": ["no mask"]}, "inputs[0]", "MASK_MISSING"),
        ({"inputs": ["bank " * 80 + "[MASK]"], "truncation": "right"}, "inputs[0]", "MASK_MISSING"),
        ({"position": -1}, "position", "OUT_OF_RANGE"),
        ({"position": 40}, "position", "OUT_OF_RANGE"),
        ({"position": 400}, "position", "OUT_OF_RANGE"),
        ({"top_k": 0}, "top_k", "OUT_OF_RANGE"),
        ({"top_k": 101}, "top_k", "OUT_OF_RANGE"),
        ({"layers": [9]}, "layers[0]", "OUT_OF_RANGE"),
        ({"targets": []}, "targets", "EMPTY"),
        ({"targets": [""]}, "targets[0]", "EMPTY"),
        ({"targets": ["bank", "river bank"]}, "targets[1]", "TOO_LONG"),
        ({"targets": ["bank", "Bank"]}, "targets[1]", "DUPLICATE"),
        ({"targets": ["bank"] * 101}, "targets", "TOO_MANY"),
        ({"inputs": [{"text": "a [MASK]", "spans": [[0, 1]]}]}, "inputs[0].spans", "UNKNOWN_FIELD"),
    ],
)
async def test_invalid_requests(bert: ServiceHarness, changes: dict[str, Any], field: str, reason: str) -> None:
    body = {"inputs": [TEXTS[0].format("[MASK]")], **changes}
    error = (await bert.post("/v1/fill-mask", body)).json()["error"]
    assert (error["field"], error["reason"]) == (field, reason)
    assert "{" not in error["message"]  # a placeholder without a name


async def test_positions_times_layers_are_limited(bert: ServiceHarness) -> None:
    text = "[MASK] " * 60
    layers = (await bert.client.get("/v1/model")).json()["num_hidden_layers"] + 1
    inputs = [text] * (MAX_FILLED // (60 * layers) + 1)
    error = (await bert.post("/v1/fill-mask", {"inputs": inputs, "layers": "all"})).json()["error"]
    assert (error["reason"], error["actual"]) == ("TOO_MANY", 60 * layers * len(inputs))
    assert error["maximum"] == MAX_FILLED
    await fill(bert, inputs=inputs[1:], layers="all")


async def test_logits_are_limited(bert: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (await bert.client.get("/v1/model")).json()["vocab_size"]
    monkeypatch.setattr("service.operations.fill_mask.MAX_LOGITS", 3 * size + 1)
    error = (await bert.post("/v1/fill-mask", {"inputs": "[MASK] " * 4})).json()["error"]
    assert (error["reason"], error["actual"], error["maximum"]) == ("TOO_MANY", 4, 3)
    await fill(bert, inputs="[MASK] " * 3)


async def test_a_model_without_the_head_names_what_it_supports(harness: ServiceHarness) -> None:
    error = (await harness.post("/v1/fill-mask", {"inputs": "a [MASK]"})).json()["error"]
    assert (error["reason"], error["actual"]) == ("UNSUPPORTED_BY_MODEL", "fill_mask")
    assert (await harness.client.get("/v1/model")).json()["mask_token"] is None
