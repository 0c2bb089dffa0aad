"""A served model: what its operations share."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from service.engine.admission import TokenizerAdmission
from service.engine.lane import Lane
from service.engine.model_loader import LoadedModel
from service.engine.operations.costs import INLINE_COST
from service.engine.schema.encode import EncodeTask, ExplainTask, Limits, TextVectors
from service.errors import ResponseTooLarge, response_too_late
from service.spelling import Remedy

PREPARATION_THREADS = 2
"""Threads contend for the GIL, so more of them only delay the event loop."""

FastLane = Lane[EncodeTask, TextVectors]
ExplainLane = Lane[ExplainTask, Any]
Parameters = ParamSpec("Parameters")
T = TypeVar("T")


class ServedModel:
    """A loaded model with its limits, its lanes, and threads for work outside of inference.

    `prompt_tokens` has the number of tokens of the model's own prompts, once they have been used.
    """

    def __init__(self, loaded: LoadedModel, name: str, limits: Limits, fast: FastLane, explain: ExplainLane) -> None:
        self.name = name
        self.manifest = loaded.artifact.manifest
        self.tokenizer = loaded.tokenizer
        self.dense_layers = loaded.dense_layers
        self.static = loaded.static
        self.limits = limits
        self.fast = fast
        self.explain = explain
        self.tokenizer_admission = TokenizerAdmission(limits.max_queue_tokens)
        self.prompt_tokens: dict[str, int] = {}
        self._executor = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="attendant-prepare")

    async def run(
        self,
        cost: int,
        deadline: float,
        work: Callable[Parameters, T],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> T:
        """Call `work`, in a thread if its cost would block the event loop; raises `DeadlineExceeded`."""
        if cost <= INLINE_COST:
            return work(*arguments, **options)
        call = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await call(self._executor, lambda: work(*arguments, **options))
        except TimeoutError:
            raise response_too_late() from None

    def check_response_size(self, size: int, inputs: int, suggest: Callable[[], Remedy]) -> None:
        """Raise `ResponseTooLarge` for a response of more bytes than the limit; `suggest` returns the remedy."""
        limit = self.limits.max_response_bytes
        if size > limit:
            fitting, remedy = inputs * limit // size, suggest()
            if fitting:
                remedy = replace(remedy, hint=f"About {fitting} of these {inputs} inputs fit.")
            raise ResponseTooLarge("Response too large", remedy, actual=size, maximum=limit, unit="bytes")

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(self.fast.drain(), self.explain.drain(), self.tokenizer_admission.drain())

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await asyncio.gather(self.fast.close(), self.explain.close())
        self._executor.shutdown(wait=False, cancel_futures=True)
