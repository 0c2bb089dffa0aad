"""Comparing occurrences with the real model: contributors, layers, and the estimated response size."""

from typing import Any

import numpy as np
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import CompareRequest, CompareResponse, Occurrence
from attendant_client.wire import to_message

from model.artifact.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.operations.compare import comparison_bytes
from service.operations.inputs import Call
from tests.running import run
from tests.service.conftest import ServiceHarness, encode
from tests.service.engine.explain.compare_cases import (
    CHEQUE,
    RIVER,
    TWICE,
    make_tasks,
    plain_cosine,
)

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
