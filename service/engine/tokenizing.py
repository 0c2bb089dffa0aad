"""Admission of requests that are tokenized but not run: they do not depend on the queue of a lane."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service.engine.admission import CHARACTERS_PER_TOKEN, count_characters
from service.engine.schema.encode import Input
from service.errors import QueueFull

RETRY_AFTER_S = 1.0


class Tokenizing:
    """The requests in tokenization, at most `max_tokens` estimated tokens unless there is only one. Not thread-safe."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def reserve(self, inputs: Sequence[Input]) -> Iterator[None]:
        """Count a request while it is tokenized. Raises `QueueFull`."""
        tokens = 1 + sum(map(count_characters, inputs)) // CHARACTERS_PER_TOKEN
        if self._tokens and self._tokens + tokens > self._max_tokens:
            raise QueueFull(
                f"Tokenizer busy ({self._tokens} tokens in progress, {tokens} requested, limit {self._max_tokens})",
                "Retry later.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._tokens += tokens
        self._idle.clear()
        try:
            yield
        finally:
            self._tokens -= tokens
            if not self._tokens:
                self._idle.set()

    async def drain(self) -> None:
        """Wait until no request is in tokenization."""
        await self._idle.wait()
