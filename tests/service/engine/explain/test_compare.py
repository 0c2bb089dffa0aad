"""One word in several texts: cosines against their definition, the order of occurrences, and what a word draws on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact import Manifest
from model.tokenizer import Source, Tokenizer, Tokens
from service.engine.encode.pooling import mean_ranges, pool_batch
from service.engine.engine import Engine
from service.engine.explain.compare import (
    CompareTask,
    OccurrenceTokens,
    compare,
    comparison_bytes,
    cosines,
    find_occurrence,
    static_similarity,
)
from service.engine.explain.maps import token_maps
from service.engine.explain.units import word_units
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Input
from service.engine.schema.explain import AttentionMapSpec, CompareRequest, CompareResponse, Occurrence
from service.errors import InvalidArgument
from service.rpc.explain import compare_response
from tests.random_encoders import blocks_of, random_encoder
from tests.service.conftest import House, encode

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
ACCENTS = "Das \u201eÜber-Ich\u201c grüßt \x07 漢字 \U0001f600."
SHORT = "The bank lends."
TWICE = "The bank by the river bank was shut."
LAYERS, WIDTH = 3, 32


def tokens_of(tokenizer: Tokenizer, text: str) -> Tokens:
    return tokenizer.encode([Source(text)])[0]


def random_hidden(tokens: Tokens) -> Floats:
    shape = LAYERS + 1, len(tokens), WIDTH
    hidden: Floats = np.random.default_rng(len(tokens)).standard_normal(shape).astype(np.float32)
    return hidden


def works_of(tokenizer: Tokenizer, occurrences: list[Occurrence], draws_on: int = 0) -> list[CompareTask]:
    """As the engine makes them, for a random encoder."""
    blocks = blocks_of(random_encoder(layers=LAYERS, width=WIDTH))
    works = []
    for text in dict.fromkeys(each.text for each in occurrences):
        tokens = tokens_of(tokenizer, text)
        places = {
            number: find_occurrence(each, tokens, f"occurrences[{number}]")
            for number, each in enumerate(occurrences)
            if each.text == text
        }
        works.append(CompareTask(tokens, word_units(tokens, tokenizer.surfaces(tokens)), places, draws_on, blocks))
    return works


def plain_cosine(left: Floats, right: Floats) -> float:
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 1000))
def test_cosines_are_inner_products_over_lengths(count: int, width: int, seed: int) -> None:
    """Symmetric, between -1 and 1, exactly 1 on the diagonal."""
    vectors = np.random.default_rng(seed).standard_normal((count, width))
    found = cosines(vectors)
    expected = [[plain_cosine(one, other) for other in vectors] for one in vectors]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found, found.T, atol=1e-15)
    assert (np.diag(found) == 1).all()
    assert np.abs(found).max() <= 1


def test_a_vector_of_zeros_has_no_direction() -> None:
    """0 with everything but itself, and no NaN."""
    assert cosines(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[1, 0], [0, 1]]


def test_the_same_ids_are_exactly_alike(tokenizer: Tokenizer, manifest: Manifest, model: LoadedModel) -> None:
    """Not nearly 1, whatever the word has for pieces or capitals; other ids are not 1."""
    words = ["bank", "Bank", "banks", "embankment", "embankment", "unfathomable"]
    ids = [tokens_of(tokenizer, word).ids[1:-1] for word in words]
    assert max(map(len, ids)) > 2
    found = static_similarity(ids, model.static).values
    assert found.dtype == np.float32
    same = np.array([[one == other for other in ids] for one in ids])
    assert same.sum() == 6 + 2 + 2
    assert (found[same] == 1).all()
    assert found[~same].max() < 0.99
    means = [np.array(model.static)[each].mean(axis=0) for each in ids]
    np.testing.assert_allclose(found[0, 2], plain_cosine(means[0], means[2]), atol=1e-6)
    assert manifest.vocab_size == len(model.static)


def test_the_same_ids_are_alike_even_where_the_table_has_nothing() -> None:
    """A row of zeros has no direction, and is still the same word as itself."""
    table = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    assert static_similarity([[0], [0], [1]], table).values.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_an_occurrence_is_the_mean_of_its_tokens(tokenizer: Tokenizer) -> None:
    """In every layer; a word by its number, or any range of characters."""
    occurrences = [Occurrence(CHEQUE, word=1), Occurrence(CHEQUE, span=(12, 24)), Occurrence(CHEQUE, span=(4, 5))]
    (work,) = works_of(tokenizer, occurrences)
    hidden = random_hidden(work.tokens)
    seen = work(hidden)
    for vector, rows in zip(seen.vectors, ([2, 3], [5, 6, 7], [2]), strict=True):
        np.testing.assert_allclose(vector, hidden[:, rows].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(seen.token_sum, hidden.sum(axis=1), atol=1e-5)
    assert seen.draws_on == [[], [], []]


def test_similarities_are_those_of_the_vectors_plain_and_centred(tokenizer: Tokenizer, model: LoadedModel) -> None:
    """Centred by the mean over all tokens of the texts, each text once however often it is named or long it is."""
    occurrences = [Occurrence(SHORT, word=1), Occurrence(CHEQUE, word=6), Occurrence(SHORT, word=0)]
    works = works_of(tokenizer, occurrences)
    states = [random_hidden(work.tokens) + 2 for work in works]
    seen = [work(hidden) for work, hidden in zip(works, states, strict=True)]
    layers = [2, 0]
    _, _, found = compare(works, seen, layers, model.static)
    assert [each.layer for each in found] == layers
    short, cheque = states
    assert len(short[0]) != len(cheque[0])
    for each in found:
        vectors = np.stack([short[each.layer, 2], cheque[each.layer, 8], short[each.layer, 1]]).astype(np.float64)
        mean = np.concatenate([short[each.layer], cheque[each.layer]]).mean(axis=0, dtype=np.float64)
        expected = [
            [[plain_cosine(one - by, other - by) for other in vectors] for one in vectors] for by in (0 * mean, mean)
        ]
        np.testing.assert_allclose(each.cosine.values, expected[0], atol=1e-6)
        np.testing.assert_allclose(each.centered.values, expected[1], atol=1e-6)
        assert np.abs(np.array(expected[0]) - expected[1]).max() > 0.3, "centring changes nothing here"


@given(st.permutations(range(5)))
def test_occurrences_come_back_in_the_order_asked_for(
    tokenizer: Tokenizer, model: LoadedModel, order: list[int]
) -> None:
    """However texts repeat and interleave; the matrices follow."""
    each = [
        Occurrence(CHEQUE, word=6),
        Occurrence(TWICE, word=1),
        Occurrence(RIVER, word=4),
        Occurrence(TWICE, word=5),
        Occurrence(CHEQUE, span=(12, 17)),
    ]

    def answer(occurrences: list[Occurrence]) -> tuple[list[tuple[str, int, int]], Floats, Floats]:
        works = works_of(tokenizer, occurrences)
        seen = [work(random_hidden(work.tokens)) for work in works]
        found, static, similarities = compare(works, seen, [LAYERS], model.static)
        return [(one.text, one.start, one.end) for one in found], static.values, similarities[0].cosine.values

    straight, shuffled = answer(each), answer([each[index] for index in order])
    assert shuffled[0] == [straight[0][index] for index in order]
    for one, other in zip(straight[1:], shuffled[1:], strict=True):
        np.testing.assert_allclose(np.asarray(one)[np.ix_(order, order)], other, atol=1e-6)


@pytest.mark.parametrize(
    ("occurrence", "place"),
    [
        (Occurrence(CHEQUE, word=1), OccurrenceTokens("cashed", 3, 9, 2, 4)),
        (Occurrence(CHEQUE, word=7), OccurrenceTokens(".", 29, 30, 9, 10)),
        (Occurrence(CHEQUE, span=(3, 9)), OccurrenceTokens("cashed", 3, 9, 2, 4)),
        (Occurrence(CHEQUE, span=(8, 13)), OccurrenceTokens("d a c", 8, 13, 3, 6)),
        (Occurrence(CHEQUE, span=(0, 30)), OccurrenceTokens(CHEQUE, 0, 30, 1, 10)),
    ],
    ids=["a word of pieces", "the last word", "a range", "parts of tokens", "all of it"],
)
def test_an_occurrence_lies_on_tokens(tokenizer: Tokenizer, occurrence: Occurrence, place: OccurrenceTokens) -> None:
    """All that it overlaps."""
    assert find_occurrence(occurrence, tokens_of(tokenizer, CHEQUE), "occurrences[0]") == place


@pytest.mark.parametrize(
    ("occurrence", "reason", "message"),
    [
        (Occurrence(CHEQUE, word=8), "word_out_of_range", "occurrences[3].word must be 0..7, the index"),
        (Occurrence(CHEQUE, word=-1), "word_out_of_range", "occurrences[3].word must be 0..7"),
        (Occurrence(CHEQUE, span=(2, 3)), "span_empty", "occurrences[3] covers no token"),
        (Occurrence("bank \x01", word=1), "span_empty", "occurrences[3] covers no token"),
    ],
    ids=["beyond the last", "negative", "a blank", "a word that the tokenizer drops"],
)
def test_an_occurrence_that_is_nowhere_is_refused(
    tokenizer: Tokenizer, occurrence: Occurrence, reason: str, message: str
) -> None:
    """By its number."""
    with pytest.raises(InvalidArgument) as refused:
        find_occurrence(occurrence, tokens_of(tokenizer, occurrence.text), "occurrences[3]")
    assert refused.value.reason == reason
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    "occurrence",
    [Occurrence(CHEQUE, word=6), Occurrence(CHEQUE, word=1), Occurrence(CHEQUE, span=(4, 6)),
     Occurrence(CHEQUE, span=(12, 24))],
    ids=["a word", "a word of pieces", "part of a word", "three words"],
)  # fmt: skip
def test_a_word_draws_on_all_others_and_not_on_itself(tokenizer: Tokenizer, occurrence: Occurrence) -> None:
    """Shares of the projection rolled out, over what is neither itself nor special; largest first; they sum to 1."""
    (work,) = works_of(tokenizer, [occurrence], draws_on=100)
    hidden = random_hidden(work.tokens)
    (sources,) = work(hidden).draws_on
    (place,) = work.places.values()
    plan = AttentionMapSpec("projection", (LAYERS,), (0, 1, 2, 3), "none", "rollout")
    (rolled,) = token_maps(hidden, work.blocks, plan)
    units = work.units
    taken = units.members @ rolled.values[0, place.first : place.last].mean(axis=0)
    own = {index for index, row in enumerate(units.members) if row[place.first : place.last].any()}
    left = {
        (unit.text, unit.start): taken[index]
        for index, unit in enumerate(units.units)
        if index not in own and not unit.special
    }
    assert {(each.text, each.start) for each in sources} == set(left)
    assert [each.share for each in sources] == sorted((each.share for each in sources), reverse=True)
    assert sum(each.share for each in sources) == pytest.approx(1, abs=1e-6)
    for each in sources:
        assert each.share == pytest.approx(left[each.text, each.start] / sum(left.values()), abs=1e-6)
        assert CHEQUE[each.start : each.end] == each.text


def test_a_few_sources_are_the_largest_with_the_same_shares(tokenizer: Tokenizer) -> None:
    """How many are named changes no share."""
    (work,), (few,) = (works_of(tokenizer, [Occurrence(CHEQUE, word=6)], draws_on=count) for count in (100, 3))
    hidden = random_hidden(work.tokens)
    assert few(hidden).draws_on[0] == work(hidden).draws_on[0][:3]


def test_a_word_alone_draws_on_nothing(tokenizer: Tokenizer) -> None:
    """There is no other."""
    (work,) = works_of(tokenizer, [Occurrence("bank", word=0)], draws_on=5)
    assert work(random_hidden(work.tokens)).draws_on == [[]]


async def ask(engine: Engine, *occurrences: Occurrence, **fields: Any) -> CompareResponse:
    return await engine.compare(CompareRequest(occurrences, **fields))


async def test_a_word_twice_in_one_text(engine: Engine) -> None:
    """One text, two places: each has its own vector, and each draws on the other, being another word."""
    found = await ask(engine, Occurrence(TWICE, word=5), Occurrence(TWICE, word=1), draws_on=20)
    assert [(each.text, each.start) for each in found.occurrences] == [("bank", 22), ("bank", 4)]
    assert found.static.values.tolist() == [[1, 1], [1, 1]]
    assert 0 < found.layers[-1].cosine.values[0, 1] < 0.999
    for own, other, each in ((22, 4, found.occurrences[0]), (4, 22, found.occurrences[1])):
        starts = [source.start for source in each.draws_on]
        assert own not in starts
        assert other in starts
        assert len(starts) == 8


async def test_the_same_occurrence_twice_is_alike_in_every_layer(engine: Engine) -> None:
    """Layers 0..L, in order, to float32."""
    found = await ask(engine, Occurrence(CHEQUE, word=6), Occurrence(CHEQUE, span=(25, 29)))
    assert [each.layer for each in found.layers] == list(range(7))
    for each in found.layers:
        np.testing.assert_allclose(each.cosine.values, 1, atol=1e-6)
        np.testing.assert_allclose(each.centered.values, 1, atol=1e-6)
    assert found.occurrences[0] == found.occurrences[1]


async def test_layers_are_those_asked_for(engine: Engine) -> None:
    """Negative ones from the end; the numbers are the same as among all."""
    pair = Occurrence(CHEQUE, word=6), Occurrence(RIVER, word=4)
    every, some = await ask(engine, *pair), await ask(engine, *pair, layers=(-1, 2))
    assert [each.layer for each in some.layers] == [6, 2]
    for each in some.layers:
        np.testing.assert_array_equal(each.cosine.values, every.layers[each.layer].cosine.values)
        np.testing.assert_array_equal(each.centered.values, every.layers[each.layer].centered.values)


async def test_compared_vectors_are_those_that_encode_gives(engine: Engine) -> None:
    """The same word vectors, through the other request."""
    found = await ask(engine, Occurrence(CHEQUE, word=1), Occurrence(RIVER, word=4), layers=(3,))
    encoded = await encode(engine, CHEQUE, RIVER, layers=(3,), outputs=("words",))
    vectors = [result.word_vectors.values for result in encoded.results if result.word_vectors is not None]
    expected = plain_cosine(vectors[0][1].astype(np.float64), vectors[1][4].astype(np.float64))
    assert found.layers[0].cosine.values[0, 1] == pytest.approx(expected, abs=1e-5)


async def test_a_span_over_everything_is_the_mean_of_the_text(engine: Engine, tokenizer: Tokenizer) -> None:
    """Pooling by spans and pooling of a whole text are one rule, special tokens aside: the span has none."""
    whole = Input(Source(CHEQUE), spans=((0, len(CHEQUE)),))
    found = (await encode(engine, whole, layers=(3,), outputs=("spans", "tokens"))).results[0]
    assert found.span_vectors is not None
    assert found.token_vectors is not None
    tokens = found.token_vectors.values
    np.testing.assert_array_equal(found.span_vectors.values[0], mean_ranges(tokens, np.array([[1, 10]]))[0])
    np.testing.assert_allclose(found.span_vectors.values[0], pool_batch(tokens[1:-1], [0], [9], "mean")[0], atol=1e-6)
    np.testing.assert_allclose(
        mean_ranges(tokens, np.array([[0, 11]])), pool_batch(tokens, [0], [11], "mean"), atol=1e-6
    )
    assert len(tokens_of(tokenizer, CHEQUE)) == 11


async def test_each_token_is_most_like_itself(engine: Engine) -> None:
    """MaxSim of a text with itself is its number of tokens, and the best match of each is the token itself."""
    found = (await encode(engine, CHEQUE, layers=(3,), outputs=("tokens",))).results[0]
    assert found.token_vectors is not None
    similar = cosines(found.token_vectors.values.astype(np.float64))
    assert similar.argmax(axis=1).tolist() == list(range(11))
    assert similar.max(axis=1).sum() == pytest.approx(11, abs=1e-9)


@pytest.mark.parametrize("draws_on", [0, 5, 100])
@pytest.mark.parametrize("layers", ["all", [-1]])
async def test_no_answer_is_larger_than_was_said(
    house: House, tokenizer: Tokenizer, layers: Any, draws_on: int
) -> None:
    """As JSON through the door, and as gRPC serialises it."""
    asked = [Occurrence(CHEQUE, word=6), Occurrence(TWICE, word=1), Occurrence(ACCENTS, word=2)]
    asked += [Occurrence(TWICE, word=number) for number in range(8)]
    body = [{"text": each.text, "word": each.word} for each in asked]
    reply = await house.post("/v1/compare", {"occurrences": body, "layers": layers, "draws_on": draws_on})
    assert reply.status_code == 200, reply.text
    request = CompareRequest(tuple(asked), layers=None if layers == "all" else tuple(layers), draws_on=draws_on)
    works, count = works_of(tokenizer, asked), 7 if layers == "all" else 1
    assert len(reply.content) <= comparison_bytes(works, count, request)
    message = compare_response(await house.engine.compare(request))
    assert message.ByteSize() <= comparison_bytes(works, count, replace(request, wire="binary"))
