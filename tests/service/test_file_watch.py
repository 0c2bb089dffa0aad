"""Changes of files: applied once, and kept out of use while they are invalid."""

import asyncio
import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from service.config import ConfigError
from service.file_watch import FileWatch
from service.metrics import Metrics


class Source:
    """Content that can be read and applied unless it is "invalid" or "missing"."""

    def __init__(self) -> None:
        self.content = "one"
        self.applied: list[str] = []
        self.metrics = Metrics(CollectorRegistry())
        self.watch = FileWatch("tls", self.metrics, "one", self.read, self.apply)

    def read(self) -> str:
        if self.content == "missing":
            raise ConfigError("missing")
        return self.content

    async def apply(self, content: str) -> None:
        self.applied.append(content)
        if content == "invalid":
            raise ConfigError(content)
        if content == "defect":
            raise ZeroDivisionError

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"attendant_{name}", {"subject": "tls", **labels})

    @property
    def reloads(self) -> list[float | None]:
        return [self.sample("reloads_total", result=result) for result in ("success", "error")]


@pytest.fixture
async def source() -> Source:
    return Source()


async def test_each_change_is_applied_once(source: Source) -> None:
    for content in ("one", "two", "two", "one"):
        source.content = content
        await source.watch.check()
    assert source.applied == ["two", "one"]
    assert source.reloads == [2, 0]


async def test_content_that_is_being_written_is_not_applied(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["one, t", "one, two", "one, two, th", "one, two, three", "one, two, three"])
    monkeypatch.setattr(source, "read", lambda: next(versions))
    source.watch = FileWatch("tls", source.metrics, "one", source.read, source.apply)
    await source.watch.check()
    assert (source.applied, source.reloads) == (["one, two, three"], [1, 0])


async def test_missing_content_is_reported_once(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.content = "missing"
    for _ in range(3):
        await source.watch.check()
    assert (source.reloads, source.sample("reload_failing"), len(caplog.records)) == ([0, 1], 1, 1)
    assert caplog.messages == ["reload failed, nothing changes subject=tls error=missing"]
    source.content = "one"
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await source.watch.check()
    assert (source.reloads, source.sample("reload_failing"), source.applied) == ([0, 1], 0, [])
    assert caplog.messages[1:] == ["the content in use is back, the reload no longer fails subject=tls"]


async def test_unexpected_error_does_not_end_the_watch(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.content = "defect"
    for _ in range(2):
        await source.watch.check()
    assert (source.reloads, source.sample("reload_failing")) == ([0, 1], 1)
    (record,) = caplog.records
    assert record.getMessage() == "reload failed, nothing changes subject=tls error=unexpected ZeroDivisionError"
    assert record.exc_info
    source.content = "two"
    await source.watch.check()
    assert (source.applied[-1], source.reloads, source.sample("reload_failing")) == ("two", [1, 1], 0)


async def test_invalid_content_is_retried_later_and_reported_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed load of a model takes seconds of CPU time: the time between two attempts doubles, up to a minute."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    source.content = "invalid"
    attempts = []
    for second in range(200):
        now = 1000.0 + second
        before = len(source.applied)
        await source.watch.check()
        if len(source.applied) > before:
            attempts.append(second)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert source.reloads == [0, 1]
    source.content = "two"
    await source.watch.check()
    assert (source.applied[-1], source.reloads, source.sample("reload_failing")) == ("two", [1, 1], 0)


async def test_request_retries_at_once(source: Source) -> None:
    source.content = "invalid"
    await source.watch.check()
    await source.watch.check()
    assert source.applied == ["invalid"]
    source.watch.request()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.watch.run()
    assert source.applied == ["invalid", "invalid"]
