"""Failures outside of requests: none is silent."""

import asyncio

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers

from service.process import run_in_thread, start_task


async def test_panic_in_the_loading_thread_is_raised() -> None:
    """The panic of a Rust library is no Exception. The server would wait for its models for ever."""
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
