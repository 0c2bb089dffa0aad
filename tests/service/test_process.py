"""Failures of threads and background tasks, and long work in steps."""

import asyncio

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers

from service.process import run_in_thread, start_task
from service.steps import Steps, convert


async def test_panic_in_the_loading_thread_is_raised() -> None:
    """The panic of a Rust library is no Exception. The server would wait for its models forever."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    tokenizer.normalizer = normalizers.Replace(Regex("(a+)+$"), "b")
    with pytest.raises(RuntimeError, match="PanicException: "):
        await asyncio.wait_for(run_in_thread(lambda: tokenizer.encode("a" * 60 + "!")), 20)


async def test_failed_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise OSError("no sockets")

    task = start_task(work())
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("CRITICAL", "background task failed")
    assert "no sockets" in caplog.text


async def test_many_results_are_converted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.steps.STEP_S", 0)
    progress: list[int] = []

    async def note_progress() -> None:
        progress.append(len(converted))

    def double(number: int) -> int:
        converted.append(number)
        return 2 * number

    converted: list[int] = []
    other = asyncio.create_task(note_progress())
    assert await convert(double, range(1000)) == list(range(0, 2000, 2))
    assert other.done()
    assert progress[0] < 10


async def test_nested_loops_share_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each inner loop is shorter than a step."""
    monkeypatch.setattr("service.steps.STEP_S", 0.01)
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    steps, items = Steps(), 0
    async for _ in steps.each(range(100_000)):
        async for _ in steps.each(range(3)):
            items += 1
        if ran.is_set():
            break
    assert ran.is_set()
    assert items > 3
