"""Agreement with occlusion: how well each method ranks a text's words by their effect on a score.

docs/maps.md has the figures of 200 pairs, which depend on the default model's weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attendant_client.types import AttendRequest, EncodeRequest, Input, SimilarityPair, SimilarityRequest
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizerInput
from model.checkpoint import load_checkpoint
from model.export.sample_texts import sample_sentences
from model.source.hub import locate
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.operations.units import token_words, words_of
from tests.e2e import word_rankings
from tests.rank_stats import interval_of_mean, spearman
from tests.running import run
from tests.service.conftest import open_harness

pytestmark = pytest.mark.slow

Floats = NDArray[Any]

PAIRS, PER_REQUEST = 80, 40
SENTENCES = 800
MIN_WORDS, MAX_WORDS = 6, 30
NEAR_DUPLICATE = 0.95
MAPS: dict[str, dict[str, Any]] = {
    "projection rollout": {"kind": "projection", "layer_reduce": "rollout"},
    "norm rollout": {"kind": "norm", "head_reduce": "sum", "layer_reduce": "rollout"},
    "mean of probs": {"kind": "probs", "head_reduce": "mean", "layer_reduce": "mean"},
}


@pytest.fixture(scope="module")
def model(default_artifact: Any) -> LoadedModel:
    """Return the default model in float32 on every lane."""
    return LoadedModel.load(Settings(model_dir=default_artifact, precision="float32"))


@dataclass(frozen=True)
class Text:
    """A text with each token's word, its last hidden states (T, D), and its attention maps (T, T) by name."""

    text: str
    ids: list[int]
    owners: NDArray[np.intp]
    hidden: Floats
    maps: dict[str, Floats]
    word_lengths: Floats

    @property
    def embedding(self) -> Floats:
        mean = self.hidden.mean(axis=0)
        unit: Floats = mean / np.linalg.norm(mean)
        return unit


def word_of_each_token(model: LoadedModel, text: str) -> tuple[list[int], NDArray[np.intp], Floats]:
    """Return the token ids, each token's word, and each word's length in characters."""
    (tokens,) = model.tokenizer.encode([TokenizerInput(text)])
    words = words_of(tokens)
    owners = np.array([-1 if word is None else word for word in token_words(tokens, words)])
    return tokens.input_ids, owners, np.array([word.end - word.start for word in words], dtype=np.float64)


async def read_texts(model: LoadedModel, engine: Engine, texts: list[str]) -> list[Text]:
    inputs = tuple(Input(text) for text in texts)
    encoded = (await run(engine, EncodeRequest(inputs, outputs=("tokens",)))).results
    maps = {
        name: (await run(engine, AttendRequest(inputs, **fields), wire="binary")).results
        for name, fields in MAPS.items()
    }
    read = []
    for index, (text, result) in enumerate(zip(texts, encoded, strict=True)):
        ids, owners, lengths = word_of_each_token(model, text)
        assert result.token_vectors is not None
        matrices = {name: results[index].maps[0].matrix for name, results in maps.items()}
        values = {name: np.asarray(matrix) for name, matrix in matrices.items() if matrix is not None}
        read.append(Text(text, ids, owners, result.token_vectors, values, lengths))
    return read


async def choose_pairs(model: LoadedModel, engine: Engine) -> list[tuple[str, str]]:
    """Return sentences with their nearest neighbors, without near-duplicates, each sentence once."""
    texts = [
        text
        for text in sample_sentences(SENTENCES)
        if MIN_WORDS <= len(words_of(model.tokenizer.encode([TokenizerInput(text)])[0])) <= MAX_WORDS
    ]
    vectors = []
    for start in range(0, len(texts), 200):
        inputs = tuple(Input(text) for text in texts[start : start + 200])
        results = (await run(engine, EncodeRequest(inputs))).results
        vectors += [result.pooled for result in results if result.pooled is not None]
    similarity = np.stack(vectors) @ np.stack(vectors).T
    similarity[similarity > NEAR_DUPLICATE] = -1
    pairs: list[tuple[str, str]] = []
    for index in range(len(texts)):
        nearest = int(similarity[index].argmax())
        if len(pairs) < PAIRS and similarity[index, nearest] > 0:
            pairs.append((texts[index], texts[nearest]))
            similarity[[index, nearest]] = similarity[:, [index, nearest]] = -1
    assert len(pairs) == PAIRS
    return pairs


async def explain(engine: Engine, pairs: list[tuple[str, str]], effect: Any) -> list[SimilarityPair]:
    queries, documents = zip(*pairs, strict=True)
    request = SimilarityRequest(queries, documents, pairs="zip", explain=True, unit="word", effect=effect)
    results = (await run(engine, request)).pairs
    assert results is not None
    return results


def score_words(text: Text, other: Text, gradients: word_rankings.IntegratedGradients) -> dict[str, Floats]:
    """Return the word scores for the methods that need no additional request."""
    vector = other.embedding
    per_token = {
        "gradient x token vector": word_rankings.gradient_times_vector(text.hidden, vector),
        "integrated gradients": gradients(text.ids, vector),
        **{
            f"contributions by {name}": word_rankings.carried_to_input(text.hidden, vector, attention)
            for name, attention in text.maps.items()
        },
    }
    scores = {name: word_rankings.to_words(values, text.owners) for name, values in per_token.items()}
    return scores | {"word length": text.word_lengths}


async def test_leave_one_out_ranks_words_best_without_inference(model: LoadedModel) -> None:
    """Uses the mean Spearman correlation over the pairs with 95% intervals, averaged over both texts of a pair."""
    gradients = word_rankings.IntegratedGradients(load_checkpoint(locate("default").directory).encoder)
    correlations: dict[str, list[float]] = {}
    async with open_harness(model) as harness:
        engine = harness.engine
        pairs = await choose_pairs(model, engine)
        for start in range(0, PAIRS, PER_REQUEST):
            chosen = pairs[start : start + PER_REQUEST]
            occluded = await explain(engine, chosen, "occlusion")
            left_out = await explain(engine, chosen, "leave_one_out")
            queries, documents = [await read_texts(model, engine, [pair[side] for pair in chosen]) for side in (0, 1)]
            for index, pair in enumerate(left_out):
                assert pair.matrix is not None
                sides = (
                    (queries[index], documents[index], occluded[index].query_effects, pair.query_effects, 1),
                    (documents[index], queries[index], occluded[index].document_effects, pair.document_effects, 0),
                )
                by_side: dict[str, list[float]] = {}
                for text, other, expected, effects, axis in sides:
                    assert expected is not None
                    assert effects is not None
                    scores = score_words(text, other, gradients)
                    scores["leave-one-out"] = effects
                    scores["sums of contributions"] = pair.matrix.sum(axis=axis)
                    for name, values in scores.items():
                        by_side.setdefault(name, []).append(spearman(values, expected))
                for name, both in by_side.items():
                    correlations.setdefault(name, []).append(float(np.mean(both)))
    means = report(correlations)
    for name, sample in correlations.items():
        if name != "leave-one-out":
            assert interval_of_mean(np.subtract(correlations["leave-one-out"], sample))[0] > 0, name
    assert means["leave-one-out"] > 0.5
    assert means["sums of contributions"] > means["contributions by mean of probs"]


def report(correlations: dict[str, list[float]]) -> dict[str, float]:
    """Print each method's mean with its 95% interval; return the means."""
    means = {name: float(np.mean(sample)) for name, sample in correlations.items()}
    for name, mean in sorted(means.items(), key=lambda item: -item[1]):
        low, high = interval_of_mean(np.array(correlations[name]))
        print(f"{name:36} {mean:.2f} [{low:.2f}, {high:.2f}]")
    return means
