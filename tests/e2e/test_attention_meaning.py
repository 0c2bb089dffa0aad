"""Whether maps and comparisons say something true of the default model: occlusion, senses, and the documents' words.

These are statements about one model's weights; that the formulas are right is shown in tests/service/engine.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.tokenizer import Source
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Array, EncodeRequest, Input
from service.engine.schema.explain import AttendRequest, AttendResult, CompareRequest, Occurrence
from service.engine.schema.explain import Source as Drawn
from tests.e2e.senses import SENSES, SENTENCES
from tests.ranking import area_under_curve, interval_of_mean, spearman
from tests.service.conftest import open_house

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
STATION = "the train left the station on time"
MASK = 103
LAYERS = 6
VIEWS: dict[str, dict[str, Any]] = {
    "projection rolled out": {"kind": "projection", "layer_reduce": "rollout"},
    "mean of the layers": {"kind": "probs", "head_reduce": "mean", "layer_reduce": "mean"},
    "attention rolled out": {"kind": "probs", "layer_reduce": "rollout"},
}


@pytest.fixture(scope="module")
def model(default_artifact: Any) -> LoadedModel:
    """In float32 on every lane."""
    return LoadedModel.load(Settings(model_dir=default_artifact, precision="float32"))


def values(array: Array | None) -> Floats:
    assert array is not None
    return array.values.astype(np.float64)


async def attend(engine: Engine, *texts: str, **fields: Any) -> list[AttendResult]:
    inputs = tuple(Input(Source(text)) for text in texts)
    return (await engine.attend(AttendRequest(inputs, wire="binary", **fields))).results


async def last_layer(engine: Engine, variants: list[list[int]]) -> Floats:
    """`(N, T, D)`, in the precision of the maps."""
    inputs = tuple(Input(Source(token_ids=tuple(ids))) for ids in variants)
    request = EncodeRequest(inputs, outputs=("tokens",), layers=(0, -1), layer_reduce="stack")
    return np.stack([values(result.token_vectors)[1] for result in (await engine.encode(request)).results])


async def occlusion(engine: Engine, ids: list[int]) -> Floats:
    """How far `[MASK]` in place of each token j moves each token's last vector i, as cosine distance `(T, T)`."""
    variants = [ids, *([*ids[:at], MASK, *ids[at + 1 :]] for at in range(len(ids)))]
    found = await last_layer(engine, variants)
    unit = found / np.linalg.norm(found, axis=-1, keepdims=True)
    moved: Floats = 1 - np.einsum("jtd,td->tj", unit[1:], unit[0])
    return moved[1:-1]


@pytest.mark.slow
async def test_projection_rolled_out_ranks_what_masking_a_word_does(model: LoadedModel) -> None:
    """Over a hundred sentences: mean Spearman at least 0.65, and above the plain mean of the layers beyond doubt."""
    agreement: dict[str, list[float]] = {name: [] for name in VIEWS}
    assert len(set(SENTENCES)) == 100
    async with open_house(model) as house:
        maps = {name: await attend(house.engine, *SENTENCES, **fields) for name, fields in VIEWS.items()}
        for number, sentence in enumerate(SENTENCES):
            (tokens,) = model.tokenizer.encode([Source(sentence)])
            moved = await occlusion(house.engine, tokens.ids[1:-1])
            count = len(moved)
            others = [np.delete(np.arange(count), row) for row in range(count)]
            for name, found in maps.items():
                weights = values(found[number].maps[0].matrix)[1:-1, 1:-1]
                each = [spearman(weights[row, rest], moved[row, rest]) for row, rest in enumerate(others)]
                agreement[name].append(float(np.mean(each)))
    means = {name: round(float(np.mean(each)), 3) for name, each in agreement.items()}
    lead = np.array(agreement["projection rolled out"]) - agreement["mean of the layers"]
    low, high = interval_of_mean(lead)
    print(f"mean Spearman with occlusion: {means}; lead {lead.mean():.3f}, 95 % {low:.3f} to {high:.3f}")
    assert means["projection rolled out"] >= 0.65
    assert low > 0


async def test_norms_give_special_tokens_less_than_half_of_what_raw_weights_do(model: LoadedModel) -> None:
    """The share that other tokens take from them, in every layer."""
    async with open_house(model) as house:
        raw, norm = [
            await attend(house.engine, *SENTENCES[::3], kind=kind, head_reduce=reduce, special="drop")
            for kind, reduce in (("probs", "mean"), ("norm", "sum"))
        ]
    for layer in range(LAYERS):
        shares = []
        for results in (raw, norm):
            rows = [result.maps[layer] for result in results]
            excluded = np.concatenate([values(found.excluded_mass) for found in rows])
            kept = np.concatenate([values(found.matrix).sum(axis=1) for found in rows])
            shares.append(float((excluded / (excluded + kept)).mean()))
        print(f"layer {layer + 1}: special tokens take {shares[0]:.2f} of raw weights, {shares[1]:.2f} of norms")
        assert shares[0] >= 2 * shares[1]


@dataclass
class Pairs:
    """Similarities of two uses of one word, in one sense and in two."""

    same: list[float]
    other: list[float]

    def add(self, matrix: Floats, sense: NDArray[np.intp]) -> None:
        first, second = np.triu_indices(len(sense), 1)
        alike = sense[first] == sense[second]
        self.same += matrix[first, second][alike].tolist()
        self.other += matrix[first, second][~alike].tolist()

    @property
    def area(self) -> float:
        return area_under_curve(np.array(self.same), np.array(self.other))


async def test_uses_of_a_word_in_one_sense_are_more_alike(model: LoadedModel) -> None:
    """Ten words in two senses: by the table alone no difference at all, in some layer an area of at least 0.75."""
    sense = np.repeat([0, 1], 4)
    static, plain, centered = Pairs([], []), *([Pairs([], []) for _ in range(LAYERS + 1)] for _ in range(2))
    async with open_house(model) as house:
        for word, senses in SENSES.items():
            texts = [text for group in senses for text in group]
            assert len(set(texts)) == 8
            occurrences = tuple(Occurrence(text, span=whole_word(text, word)) for text in texts)
            found = await house.engine.compare(CompareRequest(occurrences, draws_on=0))
            assert {each.text for each in found.occurrences} == {word}
            static.add(values(found.static), sense)
            for each in found.layers:
                plain[each.layer].add(values(each.cosine), sense)
                centered[each.layer].add(values(each.centered), sense)
    areas = [[round(pairs.area, 3) for pairs in layers] for layers in (plain, centered)]
    print(f"area under the curve, static {static.area}, layers 0 to 6 {areas[0]}, centred {areas[1]}")
    assert (len(static.same), len(static.other)) == (120, 160)
    assert static.area == 0.5
    assert max(areas[0]) >= 0.75
    assert max(areas[1]) >= 0.75


def whole_word(text: str, word: str) -> tuple[int, int]:
    start = f" {text}".index(f" {word}")
    assert text[start + len(word)] in " .,", text
    return start, start + len(word)


async def drawn(engine: Engine, text: str, word: str) -> tuple[Drawn, ...]:
    """What one use of a word draws on, by the default request."""
    occurrences = Occurrence(text, span=whole_word(text, word)), Occurrence(CHEQUE, word=6)
    return tuple((await engine.compare(CompareRequest(occurrences))).occurrences[0].draws_on)


async def test_contributors_of_documented_words(model: LoadedModel) -> None:
    """The bank that cashes draws on the check, the other one on the river, the station on the train."""
    async with open_house(model) as house:
        cheque = await drawn(house.engine, CHEQUE, "bank")
        river = await drawn(house.engine, RIVER, "bank")
        station = await drawn(house.engine, STATION, "station")
    for name, sources in (("bank", cheque), ("bank", river), ("station", station)):
        print(f"{name} draws on {', '.join(f'{source.text} {source.share:.2f}' for source in sources)}")
        assert len(sources) == 5
    assert {source.text for source in cheque[:2]} == {"check", "cashed"}
    assert river[0].text == "river"
    assert station[0].text == "train"


@pytest.mark.parametrize("head_reduce", ["none", "mean"])
async def test_seven_words_have_seven_rows(model: LoadedModel, head_reduce: str) -> None:
    """Renormalised they sum to 1; dropped, to 1 less what is excluded, which is a good part."""
    async with open_house(model) as house:
        fields = {"unit": "word", "head_reduce": head_reduce}
        (renormalized,) = await attend(house.engine, STATION, special="renormalize", **fields)
        (dropped,) = await attend(house.engine, STATION, special="drop", **fields)
    assert [unit.text for unit in renormalized.units] == STATION.split()
    assert len(renormalized.maps) == len(dropped.maps) == (LAYERS * 12 if head_reduce == "none" else LAYERS)
    for whole, part in zip(renormalized.maps, dropped.maps, strict=True):
        matrix, kept = values(whole.matrix), values(part.matrix)
        assert matrix.shape == kept.shape == (7, 7)
        named = np.isin(np.arange(7), whole.no_mass_rows)
        np.testing.assert_allclose(matrix.sum(axis=1), ~named, atol=1e-5)
        np.testing.assert_allclose(kept.sum(axis=1), 1 - values(part.excluded_mass), atol=1e-5)
        np.testing.assert_allclose(matrix * kept.sum(axis=1, keepdims=True), kept, atol=1e-5)
        if head_reduce == "mean":
            assert not named.any()
            assert 0.2 < values(part.excluded_mass).mean() < 0.8
