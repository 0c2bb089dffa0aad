"""The engine: admission, truncation, deadlines, names and usage, with the real model."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from model.tokenizer import Source
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Input, TokenizeRequest
from service.engine.schema.explain import AttendRequest, CompareRequest, Occurrence
from service.errors import (
    DeadlineExceeded,
    EmptyInput,
    InputTooLong,
    InvalidArgument,
    NonFiniteOutput,
    NotFound,
    QueueFull,
    ResponseTooLarge,
    Unavailable,
)
from tests.service.conftest import (
    GOLDEN,
    POISON,
    House,
    cosine,
    encode,
    encode_request,
    gather,
    least_cosine,
    open_house,
)

LONG = "word " * 300


def pooled(found: Any, index: int = 0) -> Any:
    return found.results[index].pooled.values


async def test_usage_counts_what_the_model_read(house: House) -> None:
    """Tokens with the special ones; the metrics agree."""
    found = await encode(house.engine, GOLDEN, "bank", LONG, truncation="right")
    assert [result.token_count for result in found.results] == [5, 3, 256]
    assert (found.token_count, found.truncated_inputs) == (264, 1)
    assert house.sample("attendant_tokens_total") == 264
    assert house.sample("attendant_truncated_inputs_total") == 1
    assert house.sample("attendant_request_inputs_sum") == 3
    assert house.sample("attendant_request_tokens_sum") == 264


async def test_a_long_text_is_refused_by_default(engine: Engine) -> None:
    """With its count, the limit and what to do."""
    with pytest.raises(InputTooLong) as refused:
        await encode(engine, GOLDEN, LONG)
    assert (
        refused.value.message == 'inputs[1]: too long (302 tokens, limit 256). Shorten it or set truncation to "right".'
    )


async def test_truncation_keeps_the_asked_side(engine: Engine) -> None:
    """Right cuts the end, left the beginning; both say that they cut."""
    text = "alpha " + LONG + "omega"
    for side, kept in (("right", "alpha"), ("left", "omega")):
        result = (await encode(engine, text, outputs=("tokens", "words"), truncation=side)).results[0]
        assert result.tokens is not None
        assert result.words is not None
        assert (result.truncated, result.token_count, len(result.tokens)) == (True, 256, 256)
        assert kept in {word.text for word in result.words}
        assert len({"alpha", "omega"} & {word.text for word in result.words}) == 1


async def test_truncation_that_is_not_needed_changes_nothing(engine: Engine) -> None:
    """Bit for bit, alone in a row."""
    plain, cut = await encode(engine, GOLDEN), await encode(engine, GOLDEN, truncation="right")
    np.testing.assert_array_equal(pooled(plain), pooled(cut))
    assert not cut.results[0].truncated


async def test_token_ids_equal_the_text(engine: Engine, model: LoadedModel) -> None:
    """Without special tokens, which are added."""
    (tokens,) = model.tokenizer.encode([Source(GOLDEN)])
    by_ids = await encode(engine, Input(Source(token_ids=tuple(tokens.ids[1:-1]))))
    np.testing.assert_array_equal(pooled(by_ids), pooled(await encode(engine, GOLDEN)))


async def test_a_pair_is_one_input(engine: Engine) -> None:
    """It has two segments and a vector of its own."""
    found = await encode(engine, Input(Source("money bank", "grows")), GOLDEN, outputs=("pooled", "tokens"))
    tokens = found.results[0].tokens
    assert tokens is not None
    assert [token.segment for token in tokens] == [0, 0, 0, 0, 1, 1]
    assert found.results[0].token_count == found.results[1].token_count + 1
    assert cosine(pooled(found), pooled(found, 1)) < 0.999


async def test_answers_do_not_depend_on_company(engine: Engine, model: LoadedModel) -> None:
    """64 requests at once, of one to three texts, equal the texts alone."""
    texts = [f"boat number {n} " + "drifts " * (n % 17) for n in range(64)]
    alone = [pooled(await encode(engine, text)) for text in texts]
    found = await asyncio.gather(*(encode(engine, *texts[n : n + 1 + n % 3]) for n in range(64)))
    for number, response in enumerate(found):
        for offset in range(len(response.results)):
            assert cosine(pooled(response, offset), alone[number + offset]) >= least_cosine(model)


async def test_names_of_the_model(model: LoadedModel) -> None:
    """Its own and its aliases; every other is not found, and not repeated."""
    async with open_house(model, model_aliases="mini, other") as house:
        for name in (None, "mini", "other", "all-MiniLM-L6-v2"):
            assert (await encode(house.engine, GOLDEN, model=name)).model == "all-MiniLM-L6-v2"
        for request in (encode(house.engine, GOLDEN, model="gpt-9"), tokenize(house.engine, model="gpt-9")):
            with pytest.raises(NotFound, match=r'^model: not found. This server serves "all-MiniLM-L6-v2".$'):
                await request


async def tokenize(engine: Engine, *texts: str, model: str | None = None) -> Any:
    return await engine.tokenize(TokenizeRequest(tuple(Input(Source(text)) for text in texts or (GOLDEN,)), model))


async def test_tokenizing_runs_nothing_and_cuts_nothing(house: House) -> None:
    """Tokens and words of a text longer than the model takes."""
    found = await tokenize(house.engine, LONG, GOLDEN)
    assert [result.token_count for result in found.results] == [302, 5]
    assert [word.text for word in found.results[1].words] == ["money", "bank", "grows"]
    assert [token.text for token in found.results[1].tokens] == ["[CLS]", "money", "bank", "grows", "[SEP]"]
    assert house.batches_run == 0


async def test_tokenizing_has_the_same_limits(model: LoadedModel) -> None:
    """The size of the answer, the length of the queue, and what an input may be."""
    async with open_house(model, max_response_bytes=2000, max_queue_tokens=100) as house:
        with pytest.raises(ResponseTooLarge, match="limit 2000"):
            await tokenize(house.engine, LONG)
        with pytest.raises(EmptyInput, match=r"inputs\[1\] is empty"):
            await tokenize(house.engine, GOLDEN, "")
        assert (await tokenize(house.engine, GOLDEN)).results[0].token_count == 5
        assert house.sample("attendant_queue_utilization", lane="fast") == 0


async def test_a_deadline_in_the_past_is_refused_before_anything(house: House) -> None:
    """Nothing is queued and nothing runs."""
    with pytest.raises(DeadlineExceeded, match="before the request arrived"):
        await encode(house.engine, GOLDEN, deadline=time.monotonic())
    assert house.batches_run == 0


class Held:
    """A backend whose batches wait at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
        self.gate, self._entered = threading.Event(), threading.Semaphore(0)
        run = backend.run

        def wait_and_run(tasks: Any) -> Any:
            self._entered.release()
            assert self.gate.wait(20)
            return run(tasks)

        monkeypatch.setattr(backend, "run", wait_and_run)

    async def wait_for_batches(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._entered.acquire, True, 20)


async def test_deadline_in_the_queue_drops_the_request(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work before it goes on; the late request never runs."""
    async with open_house(model) as house:
        held = Held(monkeypatch, model.backend)
        before = asyncio.ensure_future(encode(house.engine, *[LONG] * 5, truncation="right"))
        await held.wait_for_batches(model.backend.choice.streams)
        with pytest.raises(DeadlineExceeded, match="before the response was ready"):
            await encode(house.engine, GOLDEN, deadline=time.monotonic() + 0.5)
        held.gate.set()
        assert (await before).truncated_inputs == 5
        await house.engine.drain()
        assert house.sample("attendant_tokens_total") == 5 * 256


async def test_deadline_covers_preparation(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request that is still being tokenized gets its error at its deadline, Tokenize included."""
    async with open_house(model) as house:
        gate, tokenizer = threading.Event(), house.engine._tokenizer
        encode_batch = tokenizer.encode

        def slow(*arguments: Any, **options: Any) -> Any:
            assert gate.wait(20)
            return encode_batch(*arguments, **options)

        monkeypatch.setattr(tokenizer, "encode", slow)
        large = "word " * 3000
        for call in (
            encode(house.engine, large, truncation="right", deadline=time.monotonic() + 0.001),
            house.engine.tokenize(TokenizeRequest((Input(Source(large)),), deadline=time.monotonic() + 0.001)),
        ):
            with pytest.raises(DeadlineExceeded):
                await call
        gate.set()
        await house.engine.drain()
        assert house.batches_run == 0


async def test_a_cancelled_caller_leaves_nothing_behind(house: House) -> None:
    """Its texts are dropped and the queue is empty again."""
    calls = [asyncio.ensure_future(encode(house.engine, *[LONG] * 16, truncation="right")) for _ in range(4)]
    await asyncio.wait(calls, timeout=0)
    for call in calls:
        call.cancel()
    assert all(isinstance(found, asyncio.CancelledError) for found in await gather(*calls))
    await house.engine.drain()
    assert house.sample("attendant_queue_texts", lane="fast") == 0
    assert house.sample("attendant_queue_utilization", lane="fast") == 0


@pytest.mark.parametrize("text", ["\u0001", "\u200d\u200b", "\x00\x7f"])
async def test_a_text_of_which_the_tokenizer_keeps_nothing(house: House, text: str) -> None:
    """Zero tokens have no mean: it is empty_input, not silent zeros."""
    with pytest.raises(EmptyInput, match=r"inputs\[1\] has nothing that the tokenizer keeps"):
        await encode(house.engine, GOLDEN, text)
    assert house.batches_run == 0


async def test_a_full_queue_sheds_and_recovers(model: LoadedModel) -> None:
    """What is over the limit is refused at once, what was taken is answered, and then there is room again."""
    async with open_house(model, max_queue_tokens=2000) as house:
        found = await gather(*(encode(house.engine, "word " * 200) for _ in range(60)))
        shed = [error for error in found if isinstance(error, QueueFull)]
        assert 0 < len(shed) < 60
        assert all(not isinstance(answer, Exception) for answer in found if answer not in shed)
        await encode(house.engine, GOLDEN)
        assert house.sample("attendant_queue_utilization", lane="fast") == 0


async def test_refusals_give_back_their_room(house: House) -> None:
    """Whatever check fails after admission."""
    for text, fields in ((LONG, {}), ("\u0001", {}), ("a", {"outputs": ("spans",)})):
        with pytest.raises(InvalidArgument):
            await encode(house.engine, text, **fields)
    assert house.sample("attendant_queue_utilization", lane="fast") == 0


async def test_one_poisoned_text_fails_alone(poisoned_model: LoadedModel) -> None:
    """Real NaN: its request gets non_finite_output, its 31 mates in the same rows their answers."""
    async with open_house(poisoned_model) as house:
        texts = [f"a {POISON} runs" if n == 13 else f"boat number {n}" for n in range(32)]
        found = await gather(*(encode(house.engine, text) for text in texts))
        assert isinstance(found.pop(13), NonFiniteOutput)
        assert all(np.isfinite(pooled(answer)).all() for answer in found)
        assert house.sample("attendant_nonfinite_outputs_total", lane="fast") == 1


async def test_large_requests_are_tokenised_off_the_loop(engine: Engine) -> None:
    """The loop turns while a hundred thousand characters are cut into tokens."""
    work = asyncio.ensure_future(tokenize(engine, *["many words " * 1000] * 10))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2
    assert (await work).results[0].token_count == 2002


async def test_a_closed_engine_refuses(model: LoadedModel) -> None:
    """As a server does that is stopping."""
    async with open_house(model) as house:
        await house.engine.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await house.engine.encode(encode_request(GOLDEN))


def attend_request(*texts: str, **fields: Any) -> AttendRequest:
    return AttendRequest(tuple(Input(Source(text)) for text in texts), **fields)


async def test_maps_wait_in_the_explain_lane(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline passes there, a client disconnects there, and embedding goes on beside it."""
    async with open_house(model) as house:
        held = Held(monkeypatch, model.explain)
        long = attend_request(*[LONG] * 2, truncation="right", head_reduce="mean", dtype="float16")
        calls = [asyncio.ensure_future(house.engine.attend(long)) for _ in range(3)]
        await held.wait_for_batches(1)
        with pytest.raises(QueueFull, match="Queue too long for the deadline"):
            await house.engine.attend(attend_request(GOLDEN, deadline=time.monotonic() + 0.001))
        with pytest.raises(DeadlineExceeded, match="before the response was ready"):
            await house.engine.attend(attend_request(GOLDEN, deadline=time.monotonic() + 3))
        assert (await encode(house.engine, GOLDEN)).token_count == 5
        calls[1].cancel()
        held.gate.set()
        first, second, third = await gather(*calls)
        assert isinstance(second, asyncio.CancelledError)
        assert [result.truncated for response in (first, third) for result in response.results] == [True] * 4
        await house.engine.drain()
        assert house.sample("attendant_queue_utilization", lane="explain") == 0


async def test_a_full_explain_queue_sheds(model: LoadedModel) -> None:
    """Maps and comparisons are refused with a time to come back; embedding is not."""
    async with open_house(model, max_explain_queue_tokens=1) as house:
        with house.engine._explain.reserve(1):
            for call in (
                house.engine.attend(attend_request(GOLDEN)),
                house.engine.compare(CompareRequest((Occurrence(GOLDEN, word=1), Occurrence(LONG[:80], word=1)))),
            ):
                with pytest.raises(QueueFull) as refused:
                    await call
                assert refused.value.retry_after_s is not None
            assert (await encode(house.engine, GOLDEN)).token_count == 5


async def test_maps_of_a_poisoned_text(poisoned_model: LoadedModel) -> None:
    """No NaN leaves; it is counted, and the next text is fine."""
    async with open_house(poisoned_model) as house:
        with pytest.raises(NonFiniteOutput):
            await house.engine.attend(attend_request(f"a {POISON} runs"))
        assert house.sample("attendant_nonfinite_outputs_total", lane="explain") == 1
        assert len((await house.engine.attend(attend_request("harmless"))).results[0].maps) == 72


async def test_maps_are_counted(house: House) -> None:
    """Inputs, tokens and stages, as for vectors."""
    await house.engine.attend(attend_request(GOLDEN, GOLDEN))
    assert house.sample("attendant_request_tokens_sum") == house.sample("attendant_tokens_total") == 10
    for stage, count in (("tokenize", 1), ("queue", 1), ("inference", 2), ("postprocess", 1)):
        assert house.sample("attendant_stage_duration_seconds_count", stage=stage, lane="explain") == count


async def test_a_text_is_read_once_however_many_of_its_words_are_compared(house: House) -> None:
    """Rows are counted: two texts, three occurrences."""
    text = "The bank by the river bank."
    found = await house.engine.compare(
        CompareRequest((Occurrence(text, word=1), Occurrence("A bank.", word=1), Occurrence(text, word=5)))
    )
    assert house.sample("attendant_batch_size_count", lane="explain") == 2
    assert [each.start for each in found.occurrences] == [4, 2, 22]
