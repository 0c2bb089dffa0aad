"""Deadlines of requests, and the time of their stages."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.engine.lane_metrics import LaneMetrics
from service.engine.schema.encode import Timing
from service.errors import DeadlineExceeded

LONGER_TIMEOUT = "Increase the timeout, at most to max_timeout_ms of /v1/model, or send fewer inputs."


class Timer:
    """Timer for the stages of one request."""

    def __init__(self) -> None:
        self._started = self._tokenized = self._ran = time.perf_counter()
        self._queue_s = 0.0

    def tokenized(self) -> None:
        self._tokenized = time.perf_counter()

    def ran(self, queue_s: float = 0.0) -> None:
        self._ran, self._queue_s = time.perf_counter(), queue_s

    def finish(self, metrics: LaneMetrics) -> Timing:
        """Count the stages in the metrics of the lane and return them."""
        finished = time.perf_counter()
        timing = Timing(
            tokenize=self._tokenized - self._started,
            run=self._ran - self._tokenized,
            postprocess=finished - self._ran,
            queue=self._queue_s,
        )
        metrics.observe_tokenize(timing.tokenize)
        metrics.observe_postprocess(timing.postprocess)
        return timing


@asynccontextmanager
async def deadline_scope(deadline: float) -> AsyncIterator[None]:
    """Cancel the body when `deadline`, a time.monotonic() reading, passes; then raise `DeadlineExceeded`."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            yield
    except TimeoutError:
        raise DeadlineExceeded("Deadline exceeded before the response was ready", LONGER_TIMEOUT) from None
