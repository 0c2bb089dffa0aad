"""The engine with the real model: usage, truncation, and texts and tokenizers that fail."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from attendant_client.types import AttendRequest, CompareRequest, Input, Occurrence, TokenizeRequest

from model.artifact.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.engine.lane import MIN_STALL_S
from service.engine.model_loader import LoadedModel
from service.engine.scheduling import INLINE_COST
from service.errors import (
    Empty,
    NonFiniteOutput,
    ResponseTooLarge,
    TooLong,
)
from tests.running import run
from tests.service.conftest import (
    GOLDEN,
    POISON,
    ServiceHarness,
    cosine,
    encode,
    gather,
    open_harness,
)

LONG = "word " * 300


def pooled(response: Any, index: int = 0) -> Any:
    return response.results[index].pooled


async def test_usage_and_metrics_count_tokens_with_special_tokens(harness: ServiceHarness) -> None:
    response = await encode(harness.engine, GOLDEN, "bank", LONG, truncation="right")
    assert [result.token_count for result in response.results] == [5, 3, 256]
    assert (response.token_count, response.truncated_inputs) == (264, 1)
    assert harness.sample("attendant_tokens_total") == 264
    assert harness.sample("attendant_truncated_inputs_total") == 1
    assert harness.sample("attendant_request_inputs_sum") == 3
    assert harness.sample("attendant_request_tokens_sum") == 264


async def test_long_text_is_rejected_without_truncation(engine: Engine) -> None:
    with pytest.raises(TooLong) as raised:
        await encode(engine, GOLDEN, LONG)
    assert (
        raised.value.message == "inputs[1]: too long (302 tokens, limit 256). "
        'Shorten it or set truncation to "right" or chunks.by to "sentence".'
    )


async def test_truncation_removes_the_named_side(engine: Engine) -> None:
    text = "alpha " + LONG + "omega"
    for side, kept in (("right", "alpha"), ("left", "omega")):
        result = (await encode(engine, text, outputs=("tokens", "words"), truncation=side)).results[0]
        assert result.tokens is not None
        assert result.words is not None
        assert (result.truncated, result.token_count, len(result.tokens)) == (True, 256, 256)
        assert kept in {word.text for word in result.words}
        assert len({"alpha", "omega"} & {word.text for word in result.words}) == 1


async def test_pair_is_one_input_with_two_segments(engine: Engine) -> None:
    response = await encode(engine, Input("money bank", "grows"), GOLDEN, outputs=("pooled", "tokens"))
    tokens = response.results[0].tokens
    assert tokens is not None
    assert [token.segment for token in tokens] == [0, 0, 0, 0, 1, 1]
    assert response.results[0].token_count == response.results[1].token_count + 1
    assert cosine(pooled(response), pooled(response, 1)) < 0.999


async def tokenize(engine: Engine, *texts: str) -> Any:
    return await run(engine, TokenizeRequest(tuple(Input(text) for text in texts or (GOLDEN,))))


async def test_tokenize_runs_no_inference_and_does_not_truncate(harness: ServiceHarness) -> None:
    response = await tokenize(harness.engine, LONG, GOLDEN)
    assert [result.token_count for result in response.results] == [302, 5]
    assert [word.text for word in response.results[1].words] == ["money", "bank", "grows"]
    assert [token.text for token in response.results[1].tokens] == ["[CLS]", "money", "bank", "grows", "[SEP]"]
    assert harness.batches_run == 0


async def test_tokenize_applies_the_limits_of_encode(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=2000, max_queue_tokens=100) as harness:
        with pytest.raises(ResponseTooLarge, match="limit 2000"):
            await tokenize(harness.engine, LONG)
        with pytest.raises(Empty, match=r"inputs\[1\]: empty or blank"):
            await tokenize(harness.engine, GOLDEN, "")
        assert (await tokenize(harness.engine, GOLDEN)).results[0].token_count == 5
        assert harness.sample("attendant_queue_utilization", lane="fast") == 0


async def test_poisoned_text_fails_alone(poisoned_model: LoadedModel) -> None:
    """The other 31 requests in the same batches must get their embeddings."""
    async with open_harness(poisoned_model) as harness:
        texts = [f"a {POISON} runs" if n == 13 else f"boat number {n}" for n in range(32)]
        results = await gather(*(encode(harness.engine, text) for text in texts))
        assert isinstance(results.pop(13), NonFiniteOutput)
        assert all(np.isfinite(pooled(response)).all() for response in results)
        assert harness.sample("attendant_nonfinite_outputs_total", lane="fast") == 1


async def test_maps_of_a_poisoned_text_fail(poisoned_model: LoadedModel) -> None:
    """The failure must be counted, and the next text must succeed."""
    async with open_harness(poisoned_model) as harness:
        with pytest.raises(NonFiniteOutput):
            await run(harness.engine, AttendRequest((Input(f"a {POISON} runs"),)))
        assert harness.sample("attendant_nonfinite_outputs_total", lane="explain") == 1
        assert len((await run(harness.engine, AttendRequest((Input("harmless"),)))).results[0].maps) == 72


async def test_attend_updates_the_metrics(harness: ServiceHarness) -> None:
    await run(harness.engine, AttendRequest((Input(GOLDEN),) * 2))
    assert harness.sample("attendant_request_tokens_sum") == harness.sample("attendant_tokens_total") == 10
    for stage, count in (("tokenize", 1), ("queue", 1), ("inference", 2), ("postprocess", 1)):
        assert harness.sample("attendant_stage_duration_seconds_count", stage=stage, lane="explain") == count


async def test_compare_runs_each_distinct_text_once(harness: ServiceHarness) -> None:
    text = "The bank by the river bank."
    response = await run(
        harness.engine,
        CompareRequest(
            (Occurrence(text, word_index=1), Occurrence("A bank.", word_index=1), Occurrence(text, word_index=5))
        ),
    )
    assert harness.sample("attendant_batch_size_count", lane="explain") == 2
    assert [occurrence.start for occurrence in response.occurrences] == [4, 2, 22]


def with_pattern(definition: bytes, pattern: str) -> bytes:
    """Return a tokenizer.json that first applies a regular expression to the text."""
    document = orjson.loads(definition)
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
    document["normalizer"] = {"type": "Sequence", "normalizers": [replace, document["normalizer"]]}
    return orjson.dumps(document)


@pytest.mark.parametrize("others", [0, 40])
async def test_panic_of_the_tokenizer_is_an_internal_error(harness: ServiceHarness, others: int) -> None:
    """It is no Exception. The export refuses such patterns; here one runs out of steps, on the loop or in a thread."""
    definition = (Path(harness.settings.model_dir) / "tokenizer.json").read_bytes()
    harness.engine.tokenizer = Tokenizer(with_pattern(definition, "(a+)+$"))
    response = await harness.post("/v1/encode", {"inputs": ["bank " * 100] * others + ["a" * 60 + "!"]})
    assert response.status_code == 500
    assert response.json()["error"]["request_id"] == response.headers["x-request-id"]
    assert harness.sample("attendant_requests_total", endpoint="/v1/encode", code="500") == 1
    assert (await harness.post("/v1/encode", {"inputs": "bank"})).status_code == 200


async def test_watchdog_covers_preparation(harness: ServiceHarness) -> None:
    """A call of the tokenizer cannot be interrupted."""
    engine, started, leave = harness.engine, threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        leave.wait(20)

    running = asyncio.ensure_future(engine.run(INLINE_COST + 1, time.monotonic() + 60, work))
    await asyncio.to_thread(started.wait, 20)
    assert engine.healthy
    engine.watch(MIN_STALL_S + 1)
    assert not engine.healthy
    assert harness.sample("attendant_stalled_batches", lane="fast") == 1
    leave.set()
    await running
    assert engine.healthy
