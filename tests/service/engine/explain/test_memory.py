"""The estimated memory of explanations, and their rejection before inference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Architecture
from service.engine.model_loader import LoadedModel
from service.operations.maps import explain_bytes, max_explained_tokens
from tests.service.conftest import open_harness

TEXT = "The bank raised its interest rates, and the river bank was flooded after the rain."


def base(architecture: Architecture) -> Architecture:
    return architecture.model_copy(update={"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12})


@pytest.fixture(scope="module")
def architecture(model: LoadedModel) -> Architecture:
    return model.artifact.manifest.architecture


def test_estimate_counts_hidden_states_and_maps(architecture: Architecture) -> None:
    """Hidden states of 13 layers, and three tensors of 12 heads."""
    encoder = base(architecture)
    assert explain_bytes(encoder, 8192, maps=False) == 13 * 8192 * 768 * 4
    assert explain_bytes(encoder, 8192, maps=True) == 13 * 8192 * 768 * 4 + 3 * 12 * 8192 * 8192 * 4
    assert explain_bytes(encoder, 512, maps=True) < 2**26


@given(limit=st.integers(0, 2**40), maps=st.booleans())
def test_longest_input_is_the_last_one_that_fits(architecture: Architecture, limit: int, maps: bool) -> None:
    tokens = max_explained_tokens(base(architecture), limit, maps=maps)
    assert explain_bytes(base(architecture), tokens, maps=maps) <= limit
    assert explain_bytes(base(architecture), tokens + 1, maps=maps) > limit


@pytest.mark.parametrize(
    ("path", "fields", "maps", "field"),
    [
        ("attend", {"inputs": ["short", TEXT]}, True, "inputs[1]"),
        ("encode", {"inputs": ["short", TEXT], "layers": [0, 3]}, False, "inputs[1]"),
        (
            "compare",
            {"occurrences": [{"text": "a bank", "word_index": 1}, {"text": TEXT, "word_index": 1}]},
            True,
            "occurrences",
        ),
    ],
)
async def test_explanation_over_the_limit_is_rejected_before_inference(
    model: LoadedModel, architecture: Architecture, path: str, fields: dict[str, object], maps: bool, field: str
) -> None:
    tokens = 19
    needed = explain_bytes(architecture, tokens, maps=maps)
    async with open_harness(model, max_explain_bytes=needed - 1) as harness:
        response = await harness.post(f"/v1/{path}", fields)
        error = response.json()["error"]
        assert (response.status_code, error["reason"], error["field"]) == (413, "REQUEST_TOO_LARGE", field)
        assert (error["actual"], error["maximum"]) == (needed, needed - 1)
        assert "Send a shorter text" in error["message"]
        assert f"(at most {tokens - 1} tokens)" in error["message"]
        assert harness.sample("attendant_batch_size_count", lane="explain") == 0
    async with open_harness(model, max_explain_bytes=needed) as harness:
        assert (await harness.post(f"/v1/{path}", fields)).status_code == 200


async def test_last_layer_has_no_such_limit(model: LoadedModel) -> None:
    async with open_harness(model, max_explain_bytes=1) as harness:
        assert (await harness.post("/v1/encode", {"inputs": TEXT})).status_code == 200
