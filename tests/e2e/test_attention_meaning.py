"""Validity of maps and comparisons for the default model: occlusion, word senses, and documented examples.

These tests depend on the weights of one model. The formulas are tested in tests/service/engine.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attendant_client.types import (
    Array,
    AttendRequest,
    AttendResult,
    CompareRequest,
    Contributor,
    EncodeRequest,
    Input,
    Occurrence,
)
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizerInput
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from tests.e2e.word_senses import SENSES, SENTENCES
from tests.rank_stats import area_under_curve, interval_of_mean, spearman
from tests.running import run
from tests.service.conftest import open_harness

Floats = NDArray[Any]

CHECK = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
STATION = "the train left the station on time"
MASK = 103
LAYERS = 6
METHODS: dict[str, dict[str, Any]] = {
    "projection rollout": {"kind": "projection", "layer_reduce": "rollout"},
    "mean of the layers": {"kind": "probs", "head_reduce": "mean", "layer_reduce": "mean"},
    "attention rollout": {"kind": "probs", "layer_reduce": "rollout"},
}


@pytest.fixture(scope="module")
def model(default_artifact: Any) -> LoadedModel:
    """Return the default model in float32 on every lane."""
    return LoadedModel.load(Settings(model_dir=default_artifact, precision="float32"))


def values(array: Array | None) -> Floats:
    assert array is not None
    return array.astype(np.float64)


async def attend(engine: Engine, *texts: str, **fields: Any) -> list[AttendResult]:
    inputs = tuple(Input(text) for text in texts)
    return (await run(engine, AttendRequest(inputs, **fields), wire="binary")).results


async def last_hidden_states(engine: Engine, variants: list[list[int]]) -> Floats:
    """Return the last hidden states of equally long token id sequences, (N, T, D)."""
    inputs = tuple(Input(token_ids=tuple(ids)) for ids in variants)
    request = EncodeRequest(inputs, outputs=("tokens",), layers=(0, -1), layer_reduce="stack")
    return np.stack([values(result.token_vectors)[1] for result in (await run(engine, request)).results])


async def occlusion(engine: Engine, ids: list[int]) -> Floats:
    """Return how far each token i moves (cosine distance) if token j is replaced with [MASK], (T, T)."""
    variants = [ids, *([*ids[:index], MASK, *ids[index + 1 :]] for index in range(len(ids)))]
    hidden = await last_hidden_states(engine, variants)
    unit = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
    distances: Floats = 1 - np.einsum("jtd,td->tj", unit[1:], unit[0])
    return distances[1:-1]


@pytest.mark.slow
async def test_projection_rollout_correlates_with_occlusion(model: LoadedModel) -> None:
    """The mean Spearman correlation over 100 sentences must be at least 0.65, and significantly above the mean over
    layers.
    """
    correlations: dict[str, list[float]] = {name: [] for name in METHODS}
    assert len(set(SENTENCES)) == 100
    async with open_harness(model) as harness:
        maps = {name: await attend(harness.engine, *SENTENCES, **fields) for name, fields in METHODS.items()}
        for number, sentence in enumerate(SENTENCES):
            (tokens,) = model.tokenizer.encode([TokenizerInput(sentence)])
            distances = await occlusion(harness.engine, tokens.input_ids[1:-1])
            count = len(distances)
            others = [np.delete(np.arange(count), row) for row in range(count)]
            for name, results in maps.items():
                weights = values(results[number].maps[0].matrix)[1:-1, 1:-1]
                by_token = [spearman(weights[row, rest], distances[row, rest]) for row, rest in enumerate(others)]
                correlations[name].append(float(np.mean(by_token)))
    means = {name: round(float(np.mean(sample)), 3) for name, sample in correlations.items()}
    difference = np.array(correlations["projection rollout"]) - correlations["mean of the layers"]
    low, high = interval_of_mean(difference)
    print(f"mean Spearman with occlusion: {means}; lead {difference.mean():.3f}, 95% interval {low:.3f} to {high:.3f}")
    assert means["projection rollout"] >= 0.65
    assert low > 0


@dataclass
class Similarities:
    """Similarities between two uses of a word, with the same sense and with different senses."""

    same: list[float]
    different: list[float]

    def add(self, matrix: Floats, sense: NDArray[np.intp]) -> None:
        first, second = np.triu_indices(len(sense), 1)
        same_sense = sense[first] == sense[second]
        self.same += matrix[first, second][same_sense].tolist()
        self.different += matrix[first, second][~same_sense].tolist()

    @property
    def area(self) -> float:
        return area_under_curve(np.array(self.same), np.array(self.different))


async def test_uses_of_word_in_same_sense_are_more_similar(model: LoadedModel) -> None:
    """Static embeddings cannot separate the senses; some layer must reach an area under the curve of 0.75."""
    sense = np.repeat([0, 1], 4)
    static, plain, centered = (
        Similarities([], []),
        *([Similarities([], []) for _ in range(LAYERS + 1)] for _ in range(2)),
    )
    async with open_harness(model) as harness:
        for word, senses in SENSES.items():
            texts = [text for group in senses for text in group]
            assert len(set(texts)) == 8
            occurrences = tuple(Occurrence(text, span=whole_word(text, word)) for text in texts)
            response = await run(harness.engine, CompareRequest(occurrences, top_contributors=0))
            assert {occurrence.text for occurrence in response.occurrences} == {word}
            static.add(values(response.static), sense)
            for similarity in response.layers:
                plain[similarity.layer].add(values(similarity.cosine), sense)
                centered[similarity.layer].add(values(similarity.centered), sense)
    areas = [[round(similarities.area, 3) for similarities in layers] for layers in (plain, centered)]
    print(f"area under the curve, static {static.area}, layers 0 to 6 {areas[0]}, centered {areas[1]}")
    assert (len(static.same), len(static.different)) == (120, 160)
    assert static.area == 0.5
    assert max(areas[0]) >= 0.75
    assert max(areas[1]) >= 0.75


def whole_word(text: str, word: str) -> tuple[int, int]:
    start = f" {text}".index(f" {word}")
    assert text[start + len(word)] in " .,", text
    return start, start + len(word)


async def find_contributors(engine: Engine, text: str, word: str) -> tuple[Contributor, ...]:
    """Return the contributors to one occurrence of a word, as a default request gets them."""
    occurrences = Occurrence(text, span=whole_word(text, word)), Occurrence(CHECK, word_index=6)
    return tuple((await run(engine, CompareRequest(occurrences))).occurrences[0].contributors)


async def test_contributors_of_documented_words(model: LoadedModel) -> None:
    """The examples in the documentation."""
    async with open_harness(model) as harness:
        check = await find_contributors(harness.engine, CHECK, "bank")
        river = await find_contributors(harness.engine, RIVER, "bank")
        station = await find_contributors(harness.engine, STATION, "station")
    for name, sources in (("bank", check), ("bank", river), ("station", station)):
        print(f"{name}: {', '.join(f'{source.text} {source.share:.2f}' for source in sources)}")
        assert len(sources) == 5
    assert {source.text for source in check[:2]} == {"check", "cashed"}
    assert river[0].text == "river"
    assert station[0].text == "train"
