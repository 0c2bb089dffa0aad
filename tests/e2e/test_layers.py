"""Hidden states of every layer, compared with transformers, and how they are combined."""

from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from model.source.hub import locate

TEXT = "He cashed a check at the bank."
SHAPES = {"concat": (11, 3 * 384), "mean": (11, 384), "stack": (3, 11, 384)}

Layers = list[NDArray[np.float32]]


@pytest.fixture(scope="module")
def expected() -> Layers:
    """Return transformers' hidden states for the same weights, embeddings first."""
    oracle = SentenceTransformer(str(locate("default").directory), device="cpu")
    encoder: Any = oracle[0].auto_model
    with torch.inference_mode():
        output = encoder(**oracle.tokenizer([TEXT], return_tensors="pt"), output_hidden_states=True)
    return [hidden[0].numpy() for hidden in output.hidden_states]


def encode(rest: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = rest.post("/v1/encode", json={"inputs": TEXT, **fields}).raise_for_status().json()
    result: dict[str, Any] = response["results"][0]
    return result


@pytest.mark.parametrize("layer", range(7))
def test_layer_equals_transformers(rest: httpx.Client, expected: Layers, layer: int) -> None:
    """The tolerance is 5e-5, except for the last layer, which runs on the fast lane in its own precision."""
    vectors = np.array(encode(rest, layers=[layer], outputs=["tokens"])["token_vectors"])
    is_bfloat16 = layer == 6 and rest.get("/v1/model").json()["precision"] == "bfloat16"
    assert np.abs(vectors - expected[layer]).max() <= (0.1 if is_bfloat16 else 5e-5)


@pytest.mark.parametrize("reduce", SHAPES)
def test_pooled_and_word_vectors_of_several_layers(rest: httpx.Client, expected: Layers, reduce: str) -> None:
    """Each layer is pooled before combining. Normalization comes last, per layer with stack."""
    result = encode(rest, layers=[1, 2], layer_reduce=reduce, outputs=["pooled", "words"])
    means = np.stack([expected[1].mean(axis=0), expected[2].mean(axis=0)])
    combined = {"concat": means.ravel(), "mean": means.mean(axis=0), "stack": means}[reduce]
    normalized = combined / np.linalg.norm(combined, axis=-1, keepdims=True)
    np.testing.assert_allclose(np.array(result["pooled"]), normalized, atol=5e-5)
    bank = np.stack([expected[1][8], expected[2][8]])
    words = np.array(result["word_vectors"])
    vector = words[:, 6] if reduce == "stack" else words[6]
    np.testing.assert_allclose(
        vector, {"concat": bank.ravel(), "mean": bank.mean(axis=0), "stack": bank}[reduce], atol=5e-5
    )
