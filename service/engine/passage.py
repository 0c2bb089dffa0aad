"""One request's way through a lane: room in the queue, preparation, the wait for its results, and the time of each."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from model.tokenizer import Tokens
from service.engine.lane import Lane
from service.engine.schema.encode import Input, Timing, Truncation
from service.errors import EmptyInput, InputTooLong

INLINE_CHARACTERS = 8192
"""Requests of so many characters are handled on the event loop (tokenising takes about 2 ms); larger ones aside."""
CHARACTERS_PER_TOKEN = 4
"""Only for the estimate that holds room in the queue until the tokens are counted."""

Made = TypeVar("Made")
Result = TypeVar("Result")


class Passage(Generic[Result]):
    """Made when the request has been checked; `through` once, then `aside` for what is left to do, then `finish`."""

    def __init__(self, lane: Lane[Any, Result], inputs: Sequence[Input], deadline: float) -> None:
        self._lane = lane
        self._deadline = deadline
        self._characters = characters(inputs)
        self._estimate = estimate_tokens(inputs)
        self._started = self._tokenized = self._ran = time.perf_counter()

    async def through(
        self, prepare: Callable[[], list[Made]], work_of: Callable[[list[Made]], Sequence[Any]]
    ) -> tuple[list[Made], list[Result]]:
        """What `prepare` made of the inputs, and what the lane gave for the `work_of` it; none where there is none."""
        with self._lane.batcher.reserve(self._estimate):
            made = await self.aside(prepare)
            self._tokenized = time.perf_counter()
            self._lane.observe_tokenize(self._tokenized - self._started)
            work = work_of(made)
            future = self._lane.submit(work, self._deadline) if work else None
        results = [] if future is None else await self._lane.answer(future, self._deadline)
        self._ran = time.perf_counter()
        return made, results

    async def aside(self, work: Callable[[], Made]) -> Made:
        """As the function of that name."""
        return await aside(self._characters, work)

    def finish(self) -> Timing:
        """Where the time went."""
        finished = time.perf_counter()
        self._lane.observe_postprocess(finished - self._ran)
        return Timing(self._tokenized - self._started, self._ran - self._tokenized, finished - self._ran)


async def aside(characters: int, work: Callable[[], Made]) -> Made:
    """Do the work of a large request in a thread, so that the loop turns meanwhile; of a small one at once."""
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def characters(inputs: Sequence[Input]) -> int:
    """How much there is to do; an id counts as the characters of a usual token."""
    return sum(
        len(item.source.text) + len(item.source.pair or "") + CHARACTERS_PER_TOKEN * len(item.source.token_ids or ())
        for item in inputs
    )


def estimate_tokens(inputs: Sequence[Input]) -> int:
    return 2 * len(inputs) + tokens_of(characters(inputs))


def tokens_of(characters: int) -> int:
    """About how many tokens so many characters are."""
    return characters // CHARACTERS_PER_TOKEN


def fit(tokens: Tokens, limit: int, truncation: Truncation, where: str, hint: str) -> Tokens:
    """Cut, or refuse, what is longer than the model takes; refuse what has no content."""
    if not tokens.has_content:
        raise EmptyInput(f"{where} has nothing that the tokenizer keeps; send some text.")
    if len(tokens) <= limit:
        return tokens
    if truncation == "error":
        raise InputTooLong(f"{where} has {len(tokens)} tokens; the limit is {limit}. {hint}")
    return tokens.truncate(limit, truncation)
