"""The engine with the real model: deadlines, cancellation, admission and rejected requests."""

import asyncio
import threading
import time
from typing import Any

import pytest
from attendant_client.types import AttendRequest, CompareRequest, EncodeResponse, Input, Occurrence, TokenizeRequest

from service.engine.model_loader import LoadedModel
from service.errors import (
    DeadlineExceeded,
    Empty,
    InvalidArgument,
    QueueFull,
    RequestTooLarge,
    TooLong,
    Unavailable,
)
from tests.running import run
from tests.service.conftest import (
    GOLDEN,
    ServiceHarness,
    encode,
    encode_request,
    gather,
    open_harness,
)

LONG = "word " * 300


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
