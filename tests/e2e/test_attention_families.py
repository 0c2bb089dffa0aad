"""Attention maps of every model family, compared with transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attendant_client.types import Array, AttendRequest, AttendResult, EncodeRequest, Input
from numpy.typing import NDArray

from model.artifact.manifest import LayersRecord, StructureRecord
from model.artifact.tokenizer import TokenizerInput
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.export.export import export
from model.source.hub import locate
from service.config import Settings
from service.engine.model_info import layer_outputs_of
from service.engine.model_loader import LoadedModel
from service.errors import UnsupportedByModel
from tests.model.conftest import Publish
from tests.model.family_cases import load_oracle
from tests.running import run
from tests.service.conftest import open_harness
from tests.shared_models import load_anew

pytestmark = pytest.mark.slow

Floats = NDArray[Any]

LAYERS = (
    "bert", "causal-bert", "mpnet", "modernbert", "modernbert, biases", "t5", "deberta-v2", "deberta-v2, separate",
    "nomic_bert, dynamic", "jina_bert", "jina_bert_code", "eurobert", "qwen3, windows", "gemma3_text",
)  # fmt: skip
"""A family for each kind of layer: tests/model/test_families.py compares the attention of all, before the export."""
TOLERANCE = 1e-5
EUROBERT_TOLERANCE = 2e-5
"""Float32 rounding on an AMD EPYC with AVX512 gives 1.2e-5 for this family."""
TINY_TEXTS = (
    TokenizerInput("The miller counts his boats."),
    TokenizerInput("Rain."),
    TokenizerInput("Ein Hund läuft über 42 Brücken, déjà vu!"),
    TokenizerInput("Who broke the lamp?", "The wind broke it."),
)
SENTENCES = (
    "He cashed a check at the bank.",
    "They sat on the bank of the river.",
    "The train left the station on time.",
    "Stop!",
    "My grandmother's recipe asks for three eggs, two lemons and more patience than I have.",
    "Why would anybody paint a submarine yellow?",
    "The committee postponed its decision until the auditors had re-examined last year's invoices.",
    "Above the clouds, the pilot finally saw the sunrise.",
    "Unfortunately the manufacturer discontinued those unpronounceable antihistamines in 1987.",
    "It was raining; nobody had brought an umbrella, so we waited under the arcade and told each other stories until "
    "the last tram came round the corner with its lights on.",
)


@dataclass
class ModelWithOracle:
    """A loaded model, and the same weights as published and in transformers."""

    model: LoadedModel
    published: Path
    oracle: Any

    def expected(self, source: TokenizerInput) -> tuple[Floats, Floats]:
        """Return transformers' attention (L, H, T, T) and hidden states (L+1, T, D) for the same token ids."""
        (tokens,) = self.model.tokenizer.encode([source])
        inputs = {"input_ids": torch.tensor([tokens.input_ids]), "attention_mask": torch.ones(1, len(tokens))}
        if self.model.artifact.manifest.architecture.type_vocab_size > 1:
            inputs["token_type_ids"] = torch.tensor([tokens.token_type_ids])
        with torch.inference_mode():
            output = self.oracle(**inputs, output_attentions=True, output_hidden_states=True)
        return torch.cat(output.attentions).numpy(), torch.cat(output.hidden_states).numpy()


def load_with_oracle(published: Path, artifact: Path) -> ModelWithOracle:
    """Load an artifact in float32 on every lane, so that all layers have the same precision."""
    oracle = load_oracle(published)
    return ModelWithOracle(load_anew(Settings(model_dir=artifact, precision="float32")), published, oracle)


@pytest.fixture(scope="module", params=LAYERS)
def family(
    request: pytest.FixtureRequest, publish: Publish, tmp_path_factory: pytest.TempPathFactory
) -> ModelWithOracle:
    """Return a tiny model of each of `LAYERS`, published, exported and loaded."""
    out = tmp_path_factory.mktemp("family") / request.param
    export(str(publish(request.param)), out, revision=None, name=None, progress=lambda step: None)
    return load_with_oracle(publish(request.param), out)


@pytest.fixture(scope="module")
def default(default_artifact: Path) -> ModelWithOracle:
    return load_with_oracle(locate("default").directory, default_artifact)


async def attend(model: LoadedModel, *sources: TokenizerInput, **fields: Any) -> list[AttendResult]:
    async with open_harness(model) as harness:
        inputs = tuple(Input(source.text, source.pair) for source in sources)
        return (await run(harness.engine, AttendRequest(inputs, **fields), wire="binary")).results


def stack_maps(result: AttendResult, model: LoadedModel) -> Floats:
    """Return a result's maps, (L, H, T, T)."""
    manifest, count = model.artifact.manifest, len(result.rows)
    order = [
        (layer, head)
        for layer in range(1, manifest.architecture.num_hidden_layers + 1)
        for head in range(manifest.architecture.num_attention_heads)
    ]
    assert [(attention.layer, attention.head) for attention in result.maps] == order
    maps = [values(attention.matrix) for attention in result.maps]
    return np.stack(maps).reshape(
        manifest.architecture.num_hidden_layers, manifest.architecture.num_attention_heads, count, count
    )


def values(array: Array | None) -> Floats:
    assert array is not None
    return array


async def compare_maps(target: ModelWithOracle, sources: tuple[TokenizerInput, ...], name: str) -> None:
    """Compare probs with transformers, and the softmax of scores with probs."""
    probs = [stack_maps(result, target.model) for result in await attend(target.model, *sources)]
    expected = [target.expected(source)[0] for source in sources]
    assert [maps.shape for maps in probs] == [maps.shape for maps in expected]
    differences = [np.abs(left - right).max() for left, right in zip(probs, expected, strict=True)]
    print(f"{name}: probs to transformers {max(differences):.1e}")
    assert max(differences) <= (EUROBERT_TOLERANCE if name == "eurobert" else TOLERANCE)
    if "scores" not in target.model.artifact.manifest.attention_kinds:
        with pytest.raises(UnsupportedByModel, match=r'^kind: "scores" is not supported for this model, because '):
            await attend(target.model, *sources, kind="scores")
        return
    scores = await attend(target.model, *sources, kind="scores")
    powers = [np.exp(stack_maps(result, target.model).astype(np.float64)) for result in scores]
    softmax = [maps / maps.sum(axis=-1, keepdims=True) for maps in powers]
    differences = [np.abs(left - right).max() for left, right in zip(softmax, probs, strict=True)]
    print(f"{name}: softmax of scores to probs {max(differences):.1e}")
    assert max(differences) <= TOLERANCE


async def test_maps_equal_transformers_for_every_kind_of_layer(family: ModelWithOracle) -> None:
    """Covers every layer and head, several scripts, and a pair."""
    await compare_maps(family, TINY_TEXTS, family.model.artifact.manifest.architecture.family)


async def test_maps_of_default_model_equal_transformers(default: ModelWithOracle) -> None:
    """Covers every layer and head, for sentences and a pair."""
    sources = *map(TokenizerInput, SENTENCES), TokenizerInput(SENTENCES[0], SENTENCES[4])
    await compare_maps(default, sources, "default")


async def test_layers_equal_transformers_for_every_kind_of_layer(family: ModelWithOracle) -> None:
    """The tolerance is 1e-5 of the largest value. Maps are computed from these hidden states."""
    layers = tuple(range(family.model.artifact.manifest.architecture.num_hidden_layers + 1))
    async with open_harness(family.model) as harness:
        inputs = tuple(Input(source.text, source.pair) for source in TINY_TEXTS)
        request = EncodeRequest(inputs, outputs=("tokens",), layers=layers, layer_reduce="stack")
        results = (await run(harness.engine, request)).results
    for source, result in zip(TINY_TEXTS, results, strict=True):
        expected = family.expected(source)[1]
        tolerance = 1e-5 * max(5, np.abs(expected).max())
        np.testing.assert_allclose(values(result.token_vectors), expected, atol=tolerance, rtol=0)


async def test_map_rows_sum_to_1_for_every_kind_of_layer(family: ModelWithOracle) -> None:
    """Checks projection with its bias share, and rollout over words with its excluded mass.

    The former fails if a weight or epsilon in the artifact is wrong, the latter if tokens are outside of all words.
    """
    for result in await attend(family.model, *TINY_TEXTS, kind="projection"):
        assert len(result.maps) == family.model.artifact.manifest.architecture.num_hidden_layers
        for attention in result.maps:
            assert np.abs(values(attention.matrix).sum(axis=1) + values(attention.bias_share) - 1).max() <= TOLERANCE
    for kind in ("probs", "norm", "block_norm", "projection"):
        results = await attend(
            family.model, *TINY_TEXTS, kind=kind, layer_reduce="rollout", unit="word", special_tokens="drop"
        )
        for result in results:
            (rollout,) = result.maps
            assert np.abs(values(rollout.matrix).sum(axis=1) + values(rollout.excluded_mass) - 1).max() <= TOLERANCE


async def test_steps_recombine_for_every_kind_of_layer(family: ModelWithOracle) -> None:
    """Each step follows from the ones before it, and the last one is the next hidden state of transformers."""
    encoder = load_checkpoint(family.published).encoder
    layers = family.model.artifact.manifest.layers
    assert isinstance(layers, LayersRecord)
    assert layers.structure is not None
    outputs = layer_outputs_of(family.model.artifact.manifest)
    results = await attend(family.model, *TINY_TEXTS, outputs=tuple(outputs))
    maps = await attend(family.model, *TINY_TEXTS)
    for source, result, mapped in zip(TINY_TEXTS, results, maps, strict=True):
        hidden = family.expected(source)[1]
        probs = stack_maps(mapped, family.model)
        assert result.layer_outputs is not None
        for index, steps in enumerate(result.layer_outputs):
            step: dict[str, Floats] = {name: values(getattr(steps, name)) for name in outputs}
            check_steps(step, encoder.blocks[index], layers.structure, hidden[index], probs[index])
            if "position" in step:
                check_positions(step["position"], encoder, index)
            check_distance_terms(step, encoder, family.oracle, index)
            last = index + 1 == len(encoder.blocks)
            check_close(apply(encoder.norm, step["output"]) if last else step["output"], hidden[index + 1])


def check_positions(actual: Floats, encoder: Encoder, index: int) -> None:
    """Check the rows of the table of positions, or the angles by which the layer rotates."""
    table, ids = encoder.embeddings.position_embeddings, torch.arange(len(actual))
    if table is not None:
        np.testing.assert_array_equal(actual, apply(table, ids.numpy()))
        return
    rotary = encoder.positions.find_rotary(encoder.config.layers[index])
    assert rotary is not None
    for angles, expected in zip((np.cos(actual), np.sin(actual)), rotary(ids[None]), strict=True):
        np.testing.assert_allclose(angles, expected[0, 0].numpy(), atol=1e-6, rtol=0)


def check_distance_terms(step: dict[str, Floats], encoder: Encoder, oracle: Any, index: int) -> None:
    """Compare each term of disentangled attention with transformers, which adds those in `pos_att_type`."""
    terms = {name: step[name] for name in ("content_to_position", "position_to_content") if name in step}
    assert bool(terms) == (encoder.config.disentangled is not None)
    if not terms:
        return
    attention = oracle.encoder.layer[index].attention.self
    names = {"c2p": "content_to_position", "p2c": "position_to_content"}
    used = attention.pos_att_type
    assert {names[name] for name in used} == {*terms}
    arguments = torch.from_numpy(step["queries"]), torch.from_numpy(step["keys"]), None
    embeddings = oracle.encoder.get_rel_embedding()
    try:
        for name in used:
            attention.pos_att_type = [name]
            with torch.inference_mode():
                expected = attention.disentangled_attention_bias(*arguments, embeddings, 1 + len(used))
            check_close(step[names[name]], expected.numpy())
    finally:
        attention.pos_att_type = used
    check_close(sum(terms.values(), np.zeros(1)), step["bias"])


def check_close(actual: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * max(5, np.abs(expected).max()))


def apply(module: Any, x: Floats) -> Floats:
    with torch.inference_mode():
        result: Floats = module(torch.from_numpy(x)).numpy()
    return result


def check_steps(step: dict[str, Floats], block: Any, form: StructureRecord, hidden: Floats, probs: Floats) -> None:
    """Check the steps of one layer, with its block in torch, its form, and the hidden states that it reads."""
    check_close(step["input"], hidden)
    assert step["queries"].shape[-1] == form.head_size
    assert ("relative" in form.positions) == ("bias" in step)
    bias = step.get("bias", 0.0)
    check_close(step["queries"] @ step["keys"].swapaxes(1, 2) * form.attention_scale + bias, step["scores"])
    check_close(step["weights"], probs)
    check_close(step["weights"] @ step["values"], step["heads"])
    allowed = np.where(step["weights"] > 0, step["scores"], -np.inf)
    powers = np.exp(allowed - allowed.max(axis=-1, keepdims=True))
    check_close(powers / powers.sum(axis=-1, keepdims=True), step["weights"])
    joined = step["heads"].swapaxes(0, 1).reshape(len(step["input"]), -1)
    attended = apply(block.attention.output, joined)
    post, sandwich = form.block in ("post", "double_post"), form.block == "sandwich"
    check_close(apply(block.attention_output_norm, attended) if sandwich else attended, step["projected"])
    added, fed = step["input"] + step["projected"], step["residual"] + step["feed_forward"]
    residual = apply(block.attention_norm, added) if post else added
    if form.block == "double_post":
        residual = apply(block.residual_norm, step["input"] + residual)
    check_close(residual, step["residual"])
    check_close(apply(block.feed_forward_norm, fed) if post else fed, step["output"])


async def test_maps_do_not_depend_on_batch_composition(default: ModelWithOracle) -> None:
    """Compares texts alone and together with nine other sentences, within 1e-5."""
    batched = await attend(default.model, *map(TokenizerInput, SENTENCES))
    for index in (0, 3, 9):
        (alone,) = await attend(default.model, TokenizerInput(SENTENCES[index]))
        assert alone.units == batched[index].units
        difference = np.abs(stack_maps(alone, default.model) - stack_maps(batched[index], default.model)).max()
        assert difference <= TOLERANCE
