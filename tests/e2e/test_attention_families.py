"""Maps of every family, from published weights to the engine's answer, against the attentions of transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from model.checkpoint import FAMILIES
from model.export import export
from model.source import locate
from model.tokenizer import Source
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Array, EncodeRequest, Input
from service.engine.schema.explain import AttendRequest, AttendResult
from tests.service.conftest import open_house

pytestmark = pytest.mark.slow

Floats = NDArray[Any]
Publish = Callable[[str], Path]

BAR = 1e-5
TINY_TEXTS = (
    Source("The miller counts his boats."),
    Source("Rain."),
    Source("Ein Hund läuft über 42 Brücken, déjà vu!"),
    Source("Who broke the lamp?", "The wind broke it."),
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
class Known:
    """A served model and what transformers makes of the same weights."""

    model: LoadedModel
    oracle: Any

    def expected(self, source: Source) -> tuple[Floats, Floats]:
        """The oracle's attentions `(L, H, T, T)` and hidden states `(L+1, T, D)` of our tokens."""
        (tokens,) = self.model.tokenizer.encode([source])
        given = {"input_ids": torch.tensor([tokens.ids]), "attention_mask": torch.ones(1, len(tokens))}
        if self.model.artifact.manifest.type_vocab_size > 1:
            given["token_type_ids"] = torch.tensor([tokens.types])
        with torch.inference_mode():
            found = self.oracle(**given, output_attentions=True, output_hidden_states=True)
        return torch.cat(found.attentions).numpy(), torch.cat(found.hidden_states).numpy()


def known(published: Path, artifact: Path) -> Known:
    """In float32 on every lane, so that no layer is compared in another precision."""
    oracle = transformers.AutoModel.from_pretrained(published, attn_implementation="eager").eval()
    return Known(LoadedModel.load(Settings(model_dir=artifact, precision="float32")), oracle)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Published tiny, exported, opened."""
    out = tmp_path_factory.mktemp("family") / request.param
    export(str(publish(request.param)), out, revision=None, name=None, progress=lambda step: None)
    return known(publish(request.param), out)


@pytest.fixture(scope="module")
def default(default_artifact: Path) -> Known:
    return known(locate("default").directory, default_artifact)


async def attend(model: LoadedModel, *sources: Source, **fields: Any) -> list[AttendResult]:
    async with open_house(model) as house:
        inputs = tuple(Input(source) for source in sources)
        return (await house.engine.attend(AttendRequest(inputs, wire="binary", **fields))).results


def layered(result: AttendResult, model: LoadedModel) -> Floats:
    """`(L, H, T, T)`; the maps come layer by layer, head by head."""
    manifest, count = model.artifact.manifest, len(result.rows)
    order = [
        (layer, head)
        for layer in range(1, manifest.num_hidden_layers + 1)
        for head in range(manifest.num_attention_heads)
    ]
    assert [(each.layer, each.head) for each in result.maps] == order
    maps = [values(each.matrix) for each in result.maps]
    return np.stack(maps).reshape(manifest.num_hidden_layers, manifest.num_attention_heads, count, count)


def values(array: Array | None) -> Floats:
    assert array is not None
    return array.values


async def compare_maps(found: Known, sources: tuple[Source, ...], name: str) -> None:
    """probs are the oracle's, and the softmax of the scores is probs."""
    probs = await attend(found.model, *sources)
    scores = await attend(found.model, *sources, kind="scores")
    worst = apart = 0.0
    for source, ours, before in zip(sources, probs, scores, strict=True):
        maps, powers = layered(ours, found.model), np.exp(layered(before, found.model).astype(np.float64))
        expected, _ = found.expected(source)
        assert maps.shape == expected.shape
        worst = max(worst, float(np.abs(maps - expected).max()))
        apart = max(apart, float(np.abs(powers / powers.sum(axis=-1, keepdims=True) - maps).max()))
    print(f"{name}: probs to transformers {worst:.1e}, softmax of scores to probs {apart:.1e}")
    assert worst <= BAR
    assert apart <= BAR


async def test_maps_of_a_family_equal_transformers(family: Known) -> None:
    """Every layer and head, of short and longer texts, of any script, and of a pair with its types."""
    await compare_maps(family, TINY_TEXTS, family.model.artifact.manifest.model_type)


async def test_maps_of_the_default_model_equal_transformers(default: Known) -> None:
    """Every layer and head, over real sentences and a pair."""
    sources = *map(Source, SENTENCES), Source(SENTENCES[0], SENTENCES[4])
    await compare_maps(default, sources, "default")


async def test_layers_of_a_family_equal_transformers(family: Known) -> None:
    """What maps are recomputed from, within 5e-5."""
    layers = tuple(range(family.model.artifact.manifest.num_hidden_layers + 1))
    async with open_house(family.model) as house:
        inputs = tuple(Input(source) for source in TINY_TEXTS)
        request = EncodeRequest(inputs, outputs=("tokens",), layers=layers, layer_reduce="stack")
        found = (await house.engine.encode(request)).results
    for source, result in zip(TINY_TEXTS, found, strict=True):
        np.testing.assert_allclose(values(result.token_vectors), family.expected(source)[1], atol=5e-5, rtol=0)


async def test_shares_of_a_family_sum_to_1(family: Known) -> None:
    """Of every text alone: projection and bias share to 1; words, dropped and rolled out, to 1 with what is excluded.

    A wrong weight or epsilon in the artifact would break the first, and tokens that belong to no word the second.
    """
    for result in await attend(family.model, *TINY_TEXTS, kind="projection"):
        assert len(result.maps) == family.model.artifact.manifest.num_hidden_layers
        for each in result.maps:
            assert np.abs(values(each.matrix).sum(axis=1) + values(each.bias_share) - 1).max() <= BAR
    for kind in ("probs", "norm", "block_norm", "projection"):
        found = await attend(family.model, *TINY_TEXTS, kind=kind, layer_reduce="rollout", unit="word", special="drop")
        for result in found:
            (rolled,) = result.maps
            assert np.abs(values(rolled.matrix).sum(axis=1) + values(rolled.excluded_mass) - 1).max() <= BAR


async def test_maps_do_not_depend_on_batch_composition(default: Known) -> None:
    """Alone, or with nine others in one request: within 1e-5, and no row or column is of another text."""
    together = await attend(default.model, *map(Source, SENTENCES))
    for index in (0, 3, 9):
        (alone,) = await attend(default.model, Source(SENTENCES[index]))
        assert alone.units == together[index].units
        apart = np.abs(layered(alone, default.model) - layered(together[index], default.model)).max()
        assert apart <= BAR
