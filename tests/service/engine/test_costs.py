"""Estimated request cost: small requests are prepared on the event loop, others in a thread."""

import threading
from typing import Any

import pytest
from attendant_client.types import CompareRequest, EncodeRequest, Input, Occurrence

from model.artifact.manifest import Manifest
from service.engine.scheduling import INLINE_COST
from service.operations.compare import compare_cost
from service.operations.encode import build_results, encode_cost
from service.operations.inputs import count_characters, describe_cost
from tests.service.conftest import GOLDEN, ServiceHarness, encode, encode_request

ALL_OUTPUTS = ("pooled", "tokens", "words", "static")
ALL_LAYERS = tuple(range(7))
SENTENCE = "He sat down on the bank of the river and watched the water flow by, as he had done every summer."


def cost(request: EncodeRequest, manifest: Manifest, prompt_length: int) -> int:
    return encode_cost(request, manifest, prompt_length, count_characters(request.inputs))


@pytest.mark.parametrize(
    "request_",
    [
        encode_request(GOLDEN),
        encode_request(*[SENTENCE] * 12),
        encode_request(GOLDEN, outputs=("tokens", "words"), layers=(-1,)),
        encode_request("word " * 40, outputs=("words",)),
    ],
)
def test_small_requests_are_prepared_on_the_event_loop(request_: EncodeRequest, manifest: Manifest) -> None:
    assert cost(request_, manifest, 0) <= INLINE_COST


@pytest.mark.parametrize(
    ("texts", "fields", "prompt_length"),
    [
        (["a"] * 2048, {}, 0),
        (["a"] * 256, {"outputs": ALL_OUTPUTS}, 0),
        (["a"] * 16, {"outputs": ALL_OUTPUTS, "layers": ALL_LAYERS}, 0),
        (["word " * 250], {"outputs": ("tokens", "words"), "layers": ALL_LAYERS, "layer_reduce": "mean"}, 0),
        (["word " * 2000], {}, 0),
        (["a"] * 64, {}, 200),
        ([Input("word " * 250, spans=((0, 4),) * 1024)], {"outputs": ("spans",)}, 0),
    ],
)
def test_requests_over_one_millisecond_are_prepared_in_a_thread(
    manifest: Manifest, texts: list[Any], fields: dict[str, Any], prompt_length: int
) -> None:
    request = encode_request(*texts, **({"layers": (-1,)} | fields))
    assert cost(request, manifest, prompt_length) > INLINE_COST


def test_cost_of_listing_tokens_and_of_comparing_words_counts_items() -> None:
    inputs = encode_request(*["a"] * 64).inputs
    assert describe_cost(inputs) > INLINE_COST > describe_cost(inputs[:4])
    occurrences = tuple(Occurrence(GOLDEN, word_index=1) for _ in range(64))
    assert compare_cost(CompareRequest(occurrences), list(inputs[:1]), 7) > INLINE_COST
    assert compare_cost(CompareRequest(occurrences[:4]), list(inputs[:1]), 7) < INLINE_COST


async def test_results_of_many_inputs_are_built_in_a_thread(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, build = [], build_results

    def record_thread(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return build(*arguments)

    monkeypatch.setattr("service.operations.encode.build_results", record_thread)
    await encode(harness.engine, "a")
    await encode(harness.engine, *["a"] * 256)
    assert [thread is threading.current_thread() for thread in threads] == [True, False]
