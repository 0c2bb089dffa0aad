"""Every layer of the served model against transformers, and what becomes of several."""

from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from model.source import locate

TEXT = "He cashed a check at the bank."
SHAPES = {"concat": (11, 3 * 384), "mean": (11, 384), "stack": (3, 11, 384)}

Layers = list[NDArray[np.float32]]


@pytest.fixture(scope="module")
def expected() -> Layers:
    """The hidden states of transformers with the same weights, embeddings first."""
    oracle = SentenceTransformer(str(locate("default").directory), device="cpu")
    encoder: Any = oracle[0].auto_model
    with torch.inference_mode():
        found = encoder(**oracle.tokenizer([TEXT], return_tensors="pt"), output_hidden_states=True)
    return [hidden[0].numpy() for hidden in found.hidden_states]


def encode(rest: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = rest.post("/v1/encode", json={"inputs": TEXT, **fields}).raise_for_status().json()
    result: dict[str, Any] = reply["results"][0]
    return result


@pytest.mark.parametrize("layer", range(7))
def test_layer_equals_transformers(rest: httpx.Client, expected: Layers, layer: int) -> None:
    """Within 5e-5, from the embeddings to the last block (which runs on the fast lane, in its own precision)."""
    ours = np.array(encode(rest, layers=[layer], outputs=["tokens"])["token_vectors"])
    fast_in_bf16 = layer == 6 and rest.get("/v1/model").json()["precision"] == "bfloat16"
    assert np.abs(ours - expected[layer]).max() <= (0.1 if fast_in_bf16 else 5e-5)


@pytest.mark.parametrize("reduce", SHAPES)
def test_several_layers(rest: httpx.Client, expected: Layers, reduce: str) -> None:
    """End to end, their mean, or on an axis of their own, in the order asked for."""
    ours = np.array(encode(rest, layers=[4, 0, -2], layer_reduce=reduce, outputs=["tokens"])["token_vectors"])
    chosen = np.stack([expected[4], expected[0], expected[5]])
    wanted = {"concat": np.concatenate(list(chosen), axis=-1), "mean": chosen.mean(axis=0), "stack": chosen}[reduce]
    assert ours.shape == SHAPES[reduce]
    np.testing.assert_allclose(ours, wanted, atol=5e-5)


@pytest.mark.parametrize("reduce", SHAPES)
def test_pooled_and_word_vectors_of_several_layers(rest: httpx.Client, expected: Layers, reduce: str) -> None:
    """Pooled in each layer first, then put together; normalised as a whole, or layer by layer when stacked."""
    found = encode(rest, layers=[1, 2], layer_reduce=reduce, outputs=["pooled", "words"])
    means = np.stack([expected[1].mean(axis=0), expected[2].mean(axis=0)])
    whole = {"concat": means.ravel(), "mean": means.mean(axis=0), "stack": means}[reduce]
    wanted = whole / np.linalg.norm(whole, axis=-1, keepdims=True)
    np.testing.assert_allclose(np.array(found["pooled"]), wanted, atol=5e-5)
    bank = np.stack([expected[1][8], expected[2][8]])
    words = np.array(found["word_vectors"])
    ours = words[:, 6] if reduce == "stack" else words[6]
    np.testing.assert_allclose(
        ours, {"concat": bank.ravel(), "mean": bank.mean(axis=0), "stack": bank}[reduce], atol=5e-5
    )


def test_layer_0_is_before_any_context(rest: httpx.Client) -> None:
    """The same word at the same place has the same vector in any text; from layer 1 on it has not."""
    texts = ["money bank grows", "river bank flows"]
    for layer, same in ((0, True), (1, False)):
        reply = rest.post("/v1/encode", json={"inputs": texts, "layers": [layer], "outputs": ["words"]}).json()
        first, second = (np.array(result["word_vectors"][1]) for result in reply["results"])
        assert np.allclose(first, second, atol=1e-6) is same
