"""Watches files named in options that may change while the server runs: keys, certificates, models to serve."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from service.config import ConfigError
from service.metrics import Metrics

PERIOD_S = 1.0
"""Time between two reads. Polling detects every kind of change: a mounted Secret is replaced by switching a symbolic
link to its directory, which a watch on the file would miss, and network file systems do not report changes."""
SETTLE_S = 1.0
"""Time for which changed content must remain stable, since a program may still be writing it."""
MAX_RETRY_S = 60.0
"""Maximum backoff between attempts to apply the same content. It doubles from `PERIOD_S`."""

log = logging.getLogger("attendant.reload")


ContentT = TypeVar("ContentT")


async def read_settled(read: Callable[[], ContentT], known: Callable[[ContentT], bool]) -> ContentT:
    """Return the content of files once it equals `known` or two consecutive reads agree. `read` runs in a thread.

    A half-written file may be valid: without its last lines, it contains fewer keys, models or intermediate
    certificates.
    """
    content = await asyncio.to_thread(read)
    while not known(content):
        await asyncio.sleep(SETTLE_S)
        before, content = content, await asyncio.to_thread(read)
        if content == before:
            break
    return content


class FileWatch(Generic[ContentT]):
    """Applies file changes. On an error, counted and logged once, it keeps the previous content and retries."""

    def __init__(
        self,
        subject: str,
        metrics: Metrics,
        content: ContentT,
        read: Callable[[], ContentT],
        apply: Callable[[ContentT], Awaitable[None]],
        on_restored: Callable[[], None] = lambda: None,
    ) -> None:
        """`subject`: the name in metrics and logs. `content` is in use.

        `read` runs in a thread. `read` and `apply` raise `ConfigError` for content that cannot be used. `on_restored`
        is called when, after such an error, the content in use is restored.
        """
        self._subject = subject
        self._metrics = metrics
        self._applied = content
        self._read = read
        self._apply = apply
        self._on_restored = on_restored
        self._requested = asyncio.Event()
        self._failure = ""
        self._failed: ContentT | None = None
        self._retry_s = PERIOD_S
        self._retry_at = 0.0
        metrics.create_reloads(subject)

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._requested.wait()
            if self._requested.is_set():
                self._requested.clear()
                self._retry_at = 0.0
            await self.check()

    def request(self) -> None:
        """Check now, and retry failed content."""
        self._requested.set()

    async def check(self) -> None:
        """Apply the content if it has changed. Failed content is retried after `PERIOD_S`, then less often."""
        content = None
        try:
            content = await read_settled(self._read, lambda content: content in (self._applied, self._failed))
            if content != self._applied:
                if content == self._failed and time.monotonic() < self._retry_at:
                    return
                await self._apply(content)
                self._applied = content
                self._metrics.reloads.labels(self._subject, "success").inc()
            elif self._failure:
                self._on_restored()
                log.info("the content in use is back, the reload no longer fails subject=%s", self._subject)
            self._set_failure("")
        except Exception as error:  # an unexpected error must not end the watch
            is_expected = isinstance(error, ConfigError)
            failure = str(error) if is_expected else f"unexpected {type(error).__name__}"
            self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s) if content == self._failed else PERIOD_S
            self._failed, self._retry_at = content, time.monotonic() + self._retry_s
            if failure != self._failure:
                self._set_failure(failure)
                self._metrics.reloads.labels(self._subject, "error").inc()
                log.error(
                    "reload failed, nothing changes subject=%s error=%s", self._subject, failure,
                    exc_info=None if is_expected else error,
                )  # fmt: skip

    def _set_failure(self, failure: str) -> None:
        self._failure = failure
        self._metrics.reload_failing.labels(self._subject).set(bool(failure))
