"""bfloat16 at the depth of base-size models, where rounding errors accumulate over 12 to 24 layers.

The error of random weights says nothing about trained ones, so the reference is the error of torch in bfloat16.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from model.artifact import TOKENIZER, Artifact
from model.export import Variants
from model.manifest import Precision
from model.tokenizer import Tokenizer, TokenizerInput
from service.engine.backends.base import BackendChoice
from service.engine.backends.cpu import detect_cpu
from service.engine.backends.select import open_backend
from tests.e2e.test_family_backends import TEXTS, Floats, cosines, export_quietly, hidden_states
from tests.model.family_cases import FAMILY_CASES, FamilyCase
from tests.model.tiny_tokenizers import BUILDERS

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
WIDTH, HEADS = 96, 6
DEVIATION = 0.1
"""Outputs of linear layers are then about as large as their inputs, as in trained models: 0.1 * sqrt(96) = 1."""
LAYERS = {
    "mpnet": 12,
    "modernbert": 24,
    "nomic_bert": 12,
    "gte": 12,
    "jina_embeddings_v3": 24,
    "eurobert": 12,
    "qwen3": 24,
    "gemma3_text": 24,
}
"""The depth of the published models, rounded to 12 or 24."""


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


@pytest.mark.slow
@pytest.mark.skipif(not detect_cpu().bfloat16, reason="This CPU has no bfloat16")
@pytest.mark.parametrize("family", LAYERS)
def test_bfloat16_is_as_accurate_as_torch_at_the_depth_of_published_models(family: str, tmp_path: Path) -> None:
    case, published = deepen(FAMILY_CASES[family], LAYERS[family]), tmp_path / "published"
    case.publish(published, BUILDERS[case.tokenizer]().to_str().encode())
    export_quietly(published, tmp_path / "artifact", Variants(explain=False))
    artifact = Artifact.open(tmp_path / "artifact")
    tokenizer = Tokenizer(artifact.read(TOKENIZER))
    tokenized = [tokens.input_ids for tokens in tokenizer.encode([TokenizerInput(text) for text in TEXTS])]
    backends = [
        open_backend(artifact, BackendChoice("openvino", name, "fast", 2, 1, 512, "test")) for name in PRECISIONS
    ]
    exact, packed = (hidden_states(tokenizer, backend, TEXTS) for backend in backends)
    alone = [hidden_states(tokenizer, backends[1], (text,))[0] for text in TEXTS]
    model = transformers.AutoModel.from_pretrained(published, attn_implementation="eager").eval()
    expected, half = [], []
    with torch.inference_mode():
        for ids in tokenized:
            expected.append(model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy())
            with torch.autocast("cpu", torch.bfloat16):
                half.append(model(input_ids=torch.tensor([ids])).last_hidden_state[0].float().numpy())
    for actual, hidden in zip(exact, expected, strict=True):
        np.testing.assert_allclose(actual, hidden, atol=1e-4 * max(1, np.abs(hidden).max()), rtol=0)
    error, torch_error = (largest_error(states, expected) for states in (packed, half))
    print(f"{family}, {LAYERS[family]} layers: 1 - cosine {error:.1e}, torch {torch_error:.1e}")
    assert error <= 3 * torch_error + 1e-4
    assert largest_error(alone, packed) <= 3 * torch_error + 1e-4


def largest_error(actual: list[Floats], expected: list[Floats]) -> float:
    """Return the largest 1 - cosine between the mean vectors of texts."""
    means = [[hidden.mean(axis=0) for hidden in states] for states in (actual, expected)]
    return max(float(1 - cosines(a, b)) for a, b in zip(*means, strict=True))
