"""Comparing occurrences: against the definitions, and with the real model."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import CompareRequest, CompareResponse, Occurrence
from attendant_client.wire import to_message
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact.files import MappedTensor
from model.artifact.manifest import Manifest, TensorRecord
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.tasks import ModelParts
from service.errors import InvalidArgument
from service.operations.compare import (
    CompareTask,
    OccurrenceTokens,
    OccurrenceVectors,
    compare_occurrences,
    comparison_bytes,
    cosines,
    find_occurrence,
    static_similarity,
)
from service.operations.inputs import Call
from service.operations.maps import AttentionMapSpec, token_maps
from service.operations.units import word_units
from tests.random_encoders import random_encoder, torch_layers
from tests.running import run
from tests.service.conftest import ServiceHarness, encode

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
TWICE = "The bank by the river bank was shut."
LAYERS, WIDTH = 3, 32
LAYERS_OF_ENCODER = torch_layers(random_encoder(layers=LAYERS, hidden_size=WIDTH))


def tokenize(tokenizer: Tokenizer, text: str) -> TokenizedInput:
    return tokenizer.encode([TokenizerInput(text)])[0]


def make_tasks(tokenizer: Tokenizer, occurrences: list[Occurrence], top_contributors: int = 0) -> list[CompareTask]:
    """Return one task per distinct text."""
    tasks = []
    for text in dict.fromkeys(occurrence.text for occurrence in occurrences):
        tokens = tokenize(tokenizer, text)
        ranges = {
            index: find_occurrence(occurrence, tokens, f"occurrences[{index}]")
            for index, occurrence in enumerate(occurrences)
            if occurrence.text == text
        }
        units = word_units(tokens, tokenizer.token_texts(tokens))
        tasks.append(CompareTask(tokens, units, ranges, top_contributors))
    return tasks


def run_task(task: CompareTask, hidden: Floats) -> OccurrenceVectors:
    """Return the result of a task with the weights of a random encoder."""
    return task.compute(hidden, ModelParts(LAYERS_OF_ENCODER))


def plain_cosine(left: Floats, right: Floats) -> float:
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))


# Comparing occurrences: vectors and similarities against their definitions, order, and rejected occurrences.
SHORT = "The bank lends."


def random_hidden(tokens: TokenizedInput) -> Floats:
    shape = LAYERS + 1, len(tokens), WIDTH
    hidden: Floats = np.random.default_rng(len(tokens)).standard_normal(shape).astype(np.float32)
    return hidden


def test_zero_vector_has_cosine_0_with_other_vectors() -> None:
    assert cosines(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[1, 0], [0, 1]]


def table(model: LoadedModel) -> MappedTensor:
    assert model.static is not None
    return model.static


def test_static_similarity_of_equal_ids_is_exactly_1(
    tokenizer: Tokenizer, manifest: Manifest, model: LoadedModel
) -> None:
    """One of the words has several tokens, and one is capitalized."""
    words = ["bank", "Bank", "banks", "embankment", "embankment", "unfathomable"]
    ids = [tokenize(tokenizer, word).input_ids[1:-1] for word in words]
    assert max(map(len, ids)) > 2
    similarity = static_similarity(ids, table(model))
    assert similarity.dtype == np.float32
    same = np.array([[left == right for right in ids] for left in ids])
    assert same.sum() == 6 + 2 + 2
    assert (similarity[same] == 1).all()
    assert similarity[~same].max() < 0.99
    means = [table(model)[word_ids].mean(axis=0) for word_ids in ids]
    np.testing.assert_allclose(similarity[0, 2], plain_cosine(means[0], means[2]), atol=1e-6)
    assert manifest.architecture.vocab_size == table(model).shape[0]


def test_static_similarity_of_equal_ids_is_1_for_zero_embeddings(tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(np.array([[0.0, 0.0], [1.0, 2.0]], np.float32).tobytes())
    with (tmp_path / "table").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    zeros = MappedTensor(TensorRecord(file="table", offset=0, shape=(2, 2), dtype="float32"), mapping)
    assert static_similarity([[0], [0], [1]], zeros).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_occurrence_vector_is_the_mean_of_its_tokens_per_layer(tokenizer: Tokenizer) -> None:
    occurrences = [Occurrence(CHEQUE, word_index=1), Occurrence(CHEQUE, span=(12, 24)), Occurrence(CHEQUE, span=(4, 5))]
    (task,) = make_tasks(tokenizer, occurrences)
    hidden = random_hidden(task.tokens)
    result = run_task(task, hidden)
    for vector, rows in zip(result.vectors, ([2, 3], [5, 6, 7], [2]), strict=True):
        np.testing.assert_allclose(vector, hidden[:, rows].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(result.token_sum, hidden.sum(axis=1), atol=1e-5)
    assert result.contributors == [[], [], []]


def test_similarities_match_their_definition_with_and_without_centering(
    tokenizer: Tokenizer, model: LoadedModel
) -> None:
    """Centering subtracts the mean over all tokens of the distinct texts."""
    occurrences = [Occurrence(SHORT, word_index=1), Occurrence(CHEQUE, word_index=6), Occurrence(SHORT, word_index=0)]
    tasks = make_tasks(tokenizer, occurrences)
    states = [random_hidden(task.tokens) + 2 for task in tasks]
    results = [run_task(task, hidden) for task, hidden in zip(tasks, states, strict=True)]
    layers = [2, 0]
    _, _, similarities = compare_occurrences(tasks, results, layers, table(model))
    assert [similarity.layer for similarity in similarities] == layers
    short, cheque = states
    assert len(short[0]) != len(cheque[0])
    for similarity in similarities:
        layer = similarity.layer
        vectors = np.stack([short[layer, 2], cheque[layer, 8], short[layer, 1]]).astype(np.float64)
        mean = np.concatenate([short[layer], cheque[layer]]).mean(axis=0, dtype=np.float64)
        plain, centered = (
            np.array([[plain_cosine(left - offset, right - offset) for right in vectors] for left in vectors])
            for offset in (0 * mean, mean)
        )
        np.testing.assert_allclose(similarity.cosine, plain, atol=1e-6)
        np.testing.assert_allclose(similarity.centered, centered, atol=1e-6)
        assert np.abs(plain - centered).max() > 0.3, "centering has no effect"


@given(st.permutations(range(5)))
def test_results_follow_the_order_of_occurrences(tokenizer: Tokenizer, model: LoadedModel, order: list[int]) -> None:
    """Permutes occurrences, some of which share a text."""
    ordered = [
        Occurrence(CHEQUE, word_index=6),
        Occurrence(TWICE, word_index=1),
        Occurrence(RIVER, word_index=4),
        Occurrence(TWICE, word_index=5),
        Occurrence(CHEQUE, span=(12, 17)),
    ]

    def run(occurrences: list[Occurrence]) -> tuple[list[tuple[str, int, int]], Floats, Floats]:
        tasks = make_tasks(tokenizer, occurrences)
        vectors = [run_task(task, random_hidden(task.tokens)) for task in tasks]
        results, static, similarities = compare_occurrences(tasks, vectors, [LAYERS], table(model))
        places = [(result.text, result.start, result.end) for result in results]
        return places, static, similarities[0].cosine

    original, permuted = run(ordered), run([ordered[index] for index in order])
    assert permuted[0] == [original[0][index] for index in order]
    for before, after in zip(original[1:], permuted[1:], strict=True):
        np.testing.assert_allclose(np.asarray(before)[np.ix_(order, order)], after, atol=1e-6)


@pytest.mark.parametrize(
    ("occurrence", "expected"),
    [
        (Occurrence(CHEQUE, word_index=1), OccurrenceTokens("cashed", 3, 9, 2, 4)),
        (Occurrence(CHEQUE, word_index=7), OccurrenceTokens(".", 29, 30, 9, 10)),
        (Occurrence(CHEQUE, span=(3, 9)), OccurrenceTokens("cashed", 3, 9, 2, 4)),
        (Occurrence(CHEQUE, span=(8, 13)), OccurrenceTokens("d a c", 8, 13, 3, 6)),
        (Occurrence(CHEQUE, span=(0, 30)), OccurrenceTokens(CHEQUE, 0, 30, 1, 10)),
    ],
    ids=["word of two tokens", "last word", "range", "parts of tokens", "entire text"],
)
def test_occurrence_covers_all_overlapping_tokens(
    tokenizer: Tokenizer, occurrence: Occurrence, expected: OccurrenceTokens
) -> None:
    assert find_occurrence(occurrence, tokenize(tokenizer, CHEQUE), "occurrences[0]") == expected


@pytest.mark.parametrize(
    ("occurrence", "reason", "message"),
    [
        (
            Occurrence(CHEQUE, word_index=8),
            "OUT_OF_RANGE",
            "occurrences[3].word_index: out of range (8). Use 0 to 7.",
        ),
        (
            Occurrence(CHEQUE, word_index=-1),
            "OUT_OF_RANGE",
            "occurrences[3].word_index: out of range (-1).",
        ),
        (Occurrence(CHEQUE, span=(2, 3)), "SPAN_EMPTY", "occurrences[3].span: contains no token."),
        (Occurrence("bank \x01", word_index=1), "SPAN_EMPTY", "occurrences[3].word_index: contains no token."),
    ],
    ids=["after the last word", "negative", "whitespace", "word without tokens"],
)
def test_occurrence_without_tokens_is_rejected(
    tokenizer: Tokenizer, occurrence: Occurrence, reason: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        find_occurrence(occurrence, tokenize(tokenizer, occurrence.text), "occurrences[3]")
    assert raised.value.reason == reason
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    "occurrence",
    [Occurrence(CHEQUE, word_index=6), Occurrence(CHEQUE, word_index=1), Occurrence(CHEQUE, span=(4, 6)),
     Occurrence(CHEQUE, span=(12, 24))],
    ids=["word", "word of two tokens", "part of a word", "three words"],
)  # fmt: skip
def test_contributors_are_all_other_words_by_rollout_share(tokenizer: Tokenizer, occurrence: Occurrence) -> None:
    """Shares come from the projection rollout without special tokens and the occurrence itself, and sum to 1."""
    (task,) = make_tasks(tokenizer, [occurrence], top_contributors=100)
    hidden = random_hidden(task.tokens)
    (contributors,) = run_task(task, hidden).contributors
    (own,) = task.occurrences.values()
    spec = AttentionMapSpec("projection", (LAYERS,), (0, 1, 2, 3), "none", "rollout")
    (rollout,) = token_maps(hidden, LAYERS_OF_ENCODER, spec)
    units = task.units
    mass = units.membership @ rollout.values[0, own.first : own.last].mean(axis=0)
    own_units = {index for index, row in enumerate(units.membership) if row[own.first : own.last].any()}
    expected = {
        (unit.text, unit.start): mass[index]
        for index, unit in enumerate(units.units)
        if index not in own_units and not unit.special
    }
    shares = [contributor.share for contributor in contributors]
    assert {(contributor.text, contributor.start) for contributor in contributors} == set(expected)
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-6)
    total = sum(expected.values())
    for contributor in contributors:
        assert contributor.share == pytest.approx(expected[contributor.text, contributor.start] / total, abs=1e-6)
        assert CHEQUE[contributor.start : contributor.end] == contributor.text


def test_top_contributors_limits_the_list_but_not_the_shares(tokenizer: Tokenizer) -> None:
    (task,), (limited,) = (
        make_tasks(tokenizer, [Occurrence(CHEQUE, word_index=6)], top_contributors=count) for count in (100, 3)
    )
    hidden = random_hidden(task.tokens)
    assert run_task(limited, hidden).contributors[0] == run_task(task, hidden).contributors[0][:3]


def test_single_word_has_no_contributors(tokenizer: Tokenizer) -> None:
    (task,) = make_tasks(tokenizer, [Occurrence("bank", word_index=0)], top_contributors=5)
    assert run_task(task, random_hidden(task.tokens)).contributors == [[]]


# Comparing occurrences with the real model: contributors, layers, and the estimated response size.

ACCENTS = "Das \u201eÜber-Ich\u201c grüßt \x07 漢字 \U0001f600."


async def compare_with(engine: Engine, *occurrences: Occurrence, **fields: Any) -> CompareResponse:
    return await run(engine, CompareRequest(occurrences, **fields))


async def test_two_occurrences_in_one_text_contribute_to_each_other(engine: Engine) -> None:
    occurrences = Occurrence(TWICE, word_index=5), Occurrence(TWICE, word_index=1)
    response = await compare_with(engine, *occurrences, top_contributors=20)
    assert [(result.text, result.start) for result in response.occurrences] == [("bank", 22), ("bank", 4)]
    assert response.static.tolist() == [[1, 1], [1, 1]]
    assert 0 < response.layers[-1].cosine[0, 1] < 0.999
    for own, other, result in ((22, 4, response.occurrences[0]), (4, 22, response.occurrences[1])):
        starts = [contributor.start for contributor in result.contributors]
        assert own not in starts
        assert other in starts
        assert len(starts) == 8


async def test_layers_select_layers_without_changing_values(engine: Engine) -> None:
    """A negative layer counts from the end."""
    pair = Occurrence(CHEQUE, word_index=6), Occurrence(RIVER, word_index=4)
    full, selected = await compare_with(engine, *pair), await compare_with(engine, *pair, layers=(-1, 2))
    assert [similarity.layer for similarity in selected.layers] == [6, 2]
    for similarity in selected.layers:
        np.testing.assert_array_equal(similarity.cosine, full.layers[similarity.layer].cosine)
        np.testing.assert_array_equal(similarity.centered, full.layers[similarity.layer].centered)


async def test_compare_and_encode_use_the_same_word_vectors(engine: Engine) -> None:
    occurrences = Occurrence(CHEQUE, word_index=1), Occurrence(RIVER, word_index=4)
    response = await compare_with(engine, *occurrences, layers=(3,))
    encoded = await encode(engine, CHEQUE, RIVER, layers=(3,), outputs=("words",))
    vectors = [result.word_vectors for result in encoded.results if result.word_vectors is not None]
    expected = plain_cosine(vectors[0][1].astype(np.float64), vectors[1][4].astype(np.float64))
    assert response.layers[0].cosine[0, 1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("top_contributors", [0, 5, 100])
@pytest.mark.parametrize("layers", ["all", [-1]])
async def test_response_is_at_most_as_large_as_the_estimate(
    harness: ServiceHarness, tokenizer: Tokenizer, layers: Any, top_contributors: int
) -> None:
    """Covers the JSON body and the gRPC message."""
    occurrences = [Occurrence(CHEQUE, word_index=6), Occurrence(TWICE, word_index=1), Occurrence(ACCENTS, word_index=2)]
    occurrences += [Occurrence(TWICE, word_index=index) for index in range(8)]
    body = {
        "occurrences": [{"text": item.text, "word_index": item.word_index} for item in occurrences],
        "layers": layers,
        "top_contributors": top_contributors,
    }
    response = await harness.post("/v1/compare", body)
    assert response.status_code == 200, response.text
    request = CompareRequest(
        tuple(occurrences), layers="all" if layers == "all" else tuple(layers), top_contributors=top_contributors
    )
    tasks, count = make_tasks(tokenizer, occurrences), 7 if layers == "all" else 1
    assert len(response.content) <= comparison_bytes(tasks, count, request, Call())
    message = to_message(await run(harness.engine, request), pb.CompareResponse())
    assert message.ByteSize() <= comparison_bytes(tasks, count, request, Call(wire="binary"))
