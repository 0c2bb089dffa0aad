"""The engine with the real model: usage, truncation, deadlines, cancellation, admission, and failing texts."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from attendant_client.types import AttendRequest, CompareRequest, EncodeResponse, Input, Occurrence, TokenizeRequest

from model.artifact.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.engine.lane import MIN_STALL_S
from service.engine.model_loader import LoadedModel
from service.engine.scheduling import INLINE_COST
from service.errors import (
    DeadlineExceeded,
    Empty,
    InvalidArgument,
    NonFiniteOutput,
    QueueFull,
    RequestTooLarge,
    ResponseTooLarge,
    TooLong,
    Unavailable,
)
from tests.running import run
from tests.service.conftest import (
    GOLDEN,
    POISON,
    ServiceHarness,
    cosine,
    encode,
    encode_request,
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


# The engine with the real model: deadlines, cancellation, admission and rejected requests.


async def test_deadline_in_the_past_is_rejected_before_inference(harness: ServiceHarness) -> None:
    with pytest.raises(DeadlineExceeded, match="before the request was queued"):
        await encode(harness.engine, GOLDEN, deadline=time.monotonic())
    assert harness.batches_run == 0


class GatedBackend:
    """Makes a backend's batches wait until a gate opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
        self.gate, self._entered = threading.Event(), threading.Semaphore(0)
        run = backend.run

        def wait_and_run(tasks: Any, fitted: Any = None) -> Any:
            self._entered.release()
            assert self.gate.wait(20)
            return run(tasks, fitted)

        monkeypatch.setattr(backend, "run", wait_and_run)

    async def wait_for_batches(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._entered.acquire, True, 20)


async def test_deadline_in_the_queue_drops_the_request(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request ahead of it finishes. The expired request never runs."""
    async with open_harness(model) as harness:
        gated = GatedBackend(monkeypatch, model.backend)
        count = model.backend.choice.streams + 1  # one batch each, and the last one stays in the queue
        before = asyncio.ensure_future(encode(harness.engine, *[LONG] * count, truncation="right"))
        await gated.wait_for_batches(model.backend.choice.streams)
        with pytest.raises(DeadlineExceeded, match="before the response was ready"):
            await encode(harness.engine, GOLDEN, deadline=time.monotonic() + 0.5)
        gated.gate.set()
        assert (await before).truncated_inputs == count
        await harness.engine.drain()
        assert harness.sample("attendant_tokens_total") == count * 256


async def test_deadline_covers_preparation(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode and tokenize requests must fail at their deadline even during tokenization."""
    async with open_harness(model) as harness:
        gate, tokenizer = threading.Event(), model.tokenizer
        encode_batch = tokenizer.encode

        def slow(*arguments: Any, **options: Any) -> Any:
            assert gate.wait(20)
            return encode_batch(*arguments, **options)

        monkeypatch.setattr(tokenizer, "encode", slow)
        large = "word " * 3000
        for call in (
            encode(harness.engine, large, truncation="right", deadline=time.monotonic() + 0.001),
            run(harness.engine, TokenizeRequest((Input(large),)), deadline=time.monotonic() + 0.001),
        ):
            with pytest.raises(DeadlineExceeded):
                await call
        gate.set()
        await harness.engine.drain()
        assert harness.batches_run == 0


async def test_cancelled_requests_are_removed_from_the_queue(model: LoadedModel) -> None:
    async with open_harness(model, max_queue_ms=60_000) as harness:
        calls = [asyncio.ensure_future(encode(harness.engine, *[LONG] * 16, truncation="right")) for _ in range(4)]
        await asyncio.wait(calls, timeout=0)
        for call in calls:
            call.cancel()
        assert [type(result) for result in await gather(*calls)] == [asyncio.CancelledError] * 4
        await harness.engine.drain()
        assert harness.sample("attendant_queue_size", lane="fast") == 0
        assert harness.sample("attendant_queue_utilization", lane="fast") == 0


@pytest.mark.parametrize("text", ["\u0001", "\u200d\u200b", "\x00\x7f"])
async def test_text_without_content_after_tokenization_is_rejected(harness: ServiceHarness, text: str) -> None:
    with pytest.raises(Empty, match=r"inputs\[1\]: no content after tokenization"):
        await encode(harness.engine, GOLDEN, text)
    assert harness.batches_run == 0


async def test_full_queue_rejects_requests_and_recovers(model: LoadedModel) -> None:
    """Accepted requests must still be answered."""
    async with open_harness(model, max_queue_tokens=2000) as harness:
        results = await gather(*(encode(harness.engine, "word " * 200) for _ in range(60)))
        rejected = [error for error in results if isinstance(error, QueueFull)]
        assert 0 < len(rejected) < 60
        assert all(not isinstance(result, Exception) for result in results if result not in rejected)
        await encode(harness.engine, GOLDEN)
        assert harness.sample("attendant_queue_utilization", lane="fast") == 0


async def test_rejected_requests_release_their_reservation(harness: ServiceHarness) -> None:
    """The checks fail after admission."""
    for text, fields in ((LONG, {}), ("\u0001", {}), ("a", {"outputs": ("spans",)})):
        with pytest.raises(InvalidArgument):
            await encode(harness.engine, text, **fields)
    assert harness.sample("attendant_queue_utilization", lane="fast") == 0


async def test_closed_engine_rejects_requests(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        await harness.engine.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await run(harness.engine, encode_request(GOLDEN))


def attend_request(*texts: str, **fields: Any) -> AttendRequest:
    return AttendRequest(tuple(Input(text) for text in texts), **fields)


async def test_explain_lane_handles_deadlines_and_cancellation(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast lane must stay available."""
    async with open_harness(model) as harness:
        gated = GatedBackend(monkeypatch, model.explain)
        long = attend_request(*[LONG] * 2, truncation="right", head_reduce="mean", dtype="float16")
        calls = [asyncio.ensure_future(run(harness.engine, long)) for _ in range(3)]
        await gated.wait_for_batches(1)
        with pytest.raises(DeadlineExceeded, match="too large for the deadline"):
            await run(harness.engine, attend_request(GOLDEN), deadline=time.monotonic() + 0.001)
        with pytest.raises(DeadlineExceeded, match="before the response was ready"):
            await run(harness.engine, attend_request(GOLDEN), deadline=time.monotonic() + 3)
        assert (await encode(harness.engine, GOLDEN)).token_count == 5
        calls[1].cancel()
        gated.gate.set()
        first, second, third = await gather(*calls)
        assert isinstance(second, asyncio.CancelledError)
        assert [result.truncated for response in (first, third) for result in response.results] == [True] * 4
        await harness.engine.drain()
        assert harness.sample("attendant_queue_utilization", lane="explain") == 0


async def test_full_explain_queue_rejects_attend_and_compare_only(model: LoadedModel) -> None:
    """The error has a retry delay."""
    async with open_harness(model, max_explain_queue_tokens=1) as harness:
        assert harness.engine.explain_lane is not None
        with harness.engine.explain_lane.reserve([1]):
            for call in (
                run(harness.engine, attend_request(GOLDEN)),
                run(
                    harness.engine,
                    CompareRequest((Occurrence(GOLDEN, word_index=1), Occurrence(LONG[:80], word_index=1))),
                ),
            ):
                with pytest.raises(QueueFull) as raised:
                    await call
                assert raised.value.retry_after_s is not None
            assert (await encode(harness.engine, GOLDEN)).token_count == 5


async def test_failed_explain_lane_rejects_its_own_requests_only(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(model) as harness:
        monkeypatch.setattr(model.explain, "run", lambda *arguments: 1 / 0)
        monkeypatch.setattr(model.explain, "probe", lambda: 1 / 0)
        with pytest.raises(Unavailable, match="backend failed"):
            await run(harness.engine, attend_request(GOLDEN))
        assert (await encode(harness.engine, GOLDEN)).token_count == 5
        assert harness.lifecycle.healthy
        assert harness.sample("attendant_lane_up", lane="explain") == 0
        assert harness.sample("attendant_lane_up", lane="fast") == 1
        response = await harness.post("/v1/attend", {"inputs": GOLDEN})
        assert (response.status_code, response.json()["error"]["reason"]) == (503, "BACKEND_FAILED")
        assert (await harness.client.get("/livez")).status_code == 200


async def test_stalled_batch_makes_the_process_unhealthy(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_harness(model) as harness:
        gated = GatedBackend(monkeypatch, model.backend)
        call = asyncio.ensure_future(encode(harness.engine, GOLDEN))
        await gated.wait_for_batches(1)
        harness.lifecycle.watch(9.0)
        assert harness.lifecycle.healthy
        harness.lifecycle.watch(2.0)
        assert not harness.lifecycle.healthy
        gated.gate.set()
        await call


@pytest.mark.parametrize("prompt", ["word " * 3276, "a" * 16_380, " " * 16_380])
async def test_long_prompt_for_many_inputs_does_not_lock_out_other_requests(
    harness: ServiceHarness, prompt: str
) -> None:
    """The request is only 18 KB of JSON, but a prompt used to count once per input."""
    attack = asyncio.ensure_future(encode(harness.engine, *["a"] * 256, prompt=prompt))
    await asyncio.sleep(0)
    others = await gather(*(encode(harness.engine, GOLDEN) for _ in range(55)))
    assert [type(result) for result in others] == [EncodeResponse] * 55
    (error,) = await gather(attack)
    assert isinstance(error, (TooLong, RequestTooLarge))
    assert error.field == "prompt"


async def test_request_over_the_token_limit_of_the_queue_does_not_lock_out_other_requests(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 inputs of 240 tokens have almost twice as many tokens as the queue may hold."""
    async with open_harness(model, max_queue_tokens=2**15) as harness:
        gated = GatedBackend(monkeypatch, model.backend)
        large = asyncio.ensure_future(encode(harness.engine, *["word " * 238] * 256, max_inputs=256))
        await gated.wait_for_batches(1)
        sentence = {"inputs": GOLDEN}
        waiting = [asyncio.ensure_future(harness.post("/v1/encode", sentence)) for _ in range(50)]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done
        large.cancel()
        gated.gate.set()
        assert {response.status_code for response in await gather(*waiting)} == {200}
        await gather(large)


async def test_tokenize_does_not_depend_on_the_queue(model: LoadedModel) -> None:
    limit = model.backend.max_batch_tokens
    async with open_harness(model, max_queue_tokens=limit) as harness:
        with harness.engine.fast_lane.reserve([limit]):
            with pytest.raises(QueueFull):
                await encode(harness.engine, GOLDEN)
            assert (await harness.post("/v1/tokenize", {"inputs": GOLDEN})).status_code == 200
            assert (await harness.post("/decode", {"ids": [[101]]})).status_code == 200


@pytest.mark.parametrize("max_queue_tokens", [1000, 7000])
async def test_concurrent_tokenization_is_limited(model: LoadedModel, max_queue_tokens: int) -> None:
    """One request of 3,750 estimated tokens is always admitted, two are not."""
    async with open_harness(model, max_queue_tokens=max_queue_tokens) as harness:
        request = TokenizeRequest((Input("word " * 3000),))
        results = await gather(*(run(harness.engine, request) for _ in range(2)))
        assert isinstance(results[1], QueueFull)
        assert not isinstance(results[0], Exception)
        assert not isinstance((await gather(run(harness.engine, request)))[0], Exception)
