"""Accuracy at the depth of base-size models: rounding errors accumulate over 12 to 24 layers.

In bfloat16, the error of random weights says nothing about trained ones, so it is compared with the error of torch.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from model.artifact.files import TOKENIZER, Artifact
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.export.export import Variants
from service.engine.backends.base import BackendChoice
from service.engine.backends.select import open_backend
from tests.e2e.test_family_backends import PROVIDERS, TEXTS, Floats, cosines, export_quietly, hidden_states
from tests.model.family_cases import FAMILY_CASES, FamilyCase, load_oracle
from tests.model.tiny_tokenizers import BUILDERS

WIDTH, HEADS = 96, 6
DEVIATION = 0.1
"""Outputs of linear layers are then about as large as their inputs, as in trained models: 0.1 * sqrt(96) = 1."""
LAYERS = {
    "mpnet": 12,
    "modernbert": 24,
    "gte": 12,
    "qwen3": 24,
    "gemma3_text": 24,
}
"""The depth of the published models, rounded to 12 or 24, for each kind of positions, order of norms, and mask."""


@dataclass(frozen=True)
class Deep:
    """An artifact, the last hidden states (T, D) of `TEXTS` in transformers, and their error in torch in bfloat16."""

    artifact: Artifact
    tokenizer: Tokenizer
    expected: list[Floats]
    torch_error: float


def deepen(case: FamilyCase, layers: int) -> FamilyCase:
    """Return a case of this depth, in which every third layer is global."""
    options = dict(case.options)
    options |= {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 160}
    options |= {"num_hidden_layers": layers}
    wider = {"num_key_value_heads": 2, "head_dim": WIDTH // HEADS, "global_attn_every_n_layers": 3}
    options |= {name: value for name, value in wider.items() if name in options}
    if "layer_types" in options:
        options["layer_types"] = ["full_attention", "sliding_attention", "sliding_attention"] * (layers // 3)
    return replace(case, options=options, deviation=DEVIATION)


@pytest.fixture(scope="module", params=[pytest.param(family, marks=pytest.mark.slow) for family in LAYERS])
def deep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Deep:
    directory, family = tmp_path_factory.mktemp("deep"), request.param
    case, published = deepen(FAMILY_CASES[family], LAYERS[family]), directory / "published"
    case.publish(published, BUILDERS[case.tokenizer]().to_str().encode())
    export_quietly(published, directory / "artifact", Variants(explain=False))
    artifact = Artifact.open(directory / "artifact")
    tokenizer = Tokenizer(artifact.read(TOKENIZER))
    model = load_oracle(published)
    expected, rounded = [], []
    with torch.inference_mode():
        for tokens in tokenizer.encode([TokenizerInput(text) for text in TEXTS]):
            ids = torch.tensor([tokens.input_ids])
            expected.append(model(input_ids=ids).last_hidden_state[0].numpy())
            with torch.autocast("cpu", torch.bfloat16):
                rounded.append(model(input_ids=ids).last_hidden_state[0].float().numpy())
    return Deep(artifact, tokenizer, expected, largest_error(rounded, expected))


@pytest.mark.parametrize("backend", [name for name, (_, precision) in PROVIDERS.items() if precision != "int8"])
def test_backends_are_accurate_at_the_depth_of_published_models(deep: Deep, backend: str) -> None:
    provider, precision = PROVIDERS[backend]
    opened = open_backend(deep.artifact, BackendChoice(provider, precision, "fast", 2, 1, 512, "test"))
    packed = hidden_states(deep.tokenizer, opened, TEXTS)
    alone = [hidden_states(deep.tokenizer, opened, (text,))[0] for text in TEXTS]
    if precision == "float32":
        for actual, hidden in zip([*packed, *alone], [*deep.expected] * 2, strict=True):
            np.testing.assert_allclose(actual, hidden, atol=1e-4 * max(1, np.abs(hidden).max()), rtol=0)
        return
    limit = 3 * deep.torch_error + 1e-4
    error = largest_error(packed, deep.expected)
    print(f"1 - cosine {error:.1e}, torch {deep.torch_error:.1e}")
    assert error <= limit
    assert largest_error(alone, packed) <= limit


def largest_error(actual: list[Floats], expected: list[Floats]) -> float:
    """Return the largest 1 - cosine between the mean vectors of texts."""
    means = [[hidden.mean(axis=0) for hidden in states] for states in (actual, expected)]
    return max(float(1 - cosines(a, b)) for a, b in zip(*means, strict=True))
