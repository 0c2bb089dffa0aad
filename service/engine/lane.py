"""A lane: a queue with its own graph, limits and metrics, so that one kind of work never slows the other."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from model.tokenizer import Tokens
from service.engine.backends.select import Provider
from service.engine.batcher import Batcher, Plan
from service.errors import DeadlineExceeded, Internal, NonFiniteOutput, ServiceError
from service.metrics import Metrics


class Tokenized(Protocol):
    """What waits in a lane."""

    @property
    def tokens(self) -> Tokens: ...


Item = TypeVar("Item", bound=Tokenized)
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", bound=Tokenized, contravariant=True)


class Runs(Protocol[Item_contra, Result]):
    """What a lane needs of a runtime."""

    @property
    def provider(self) -> Provider: ...

    @property
    def wide_tokens(self) -> int: ...

    def run(self, items: Sequence[Item_contra], /) -> list[Result]: ...

    def run_wide(self, items: Sequence[Item_contra], /) -> list[Result]: ...

    def choose(self, sizes: Sequence[int], free: int, /) -> list[int]: ...

    def row_length(self, items: Sequence[Item_contra], /) -> int: ...


class Lane(Generic[Item, Result]):
    """Started on the loop that its callers run on."""

    def __init__(
        self,
        name: str,
        runtime: Runs[Item, Result],
        max_queue_tokens: int,
        metrics: Metrics,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.precision = runtime.provider.precision
        self.batcher: Batcher[Item, Result] = Batcher(
            Plan(
                lane=name,
                run=runtime.run,
                choose=runtime.choose,
                row_length=runtime.row_length,
                workers=runtime.provider.workers,
                max_queue_tokens=max_queue_tokens,
                gives_way=gives_way,
                run_wide=runtime.run_wide,
                wide_threads=runtime.provider.wide_threads,
                wide_tokens=runtime.wide_tokens,
                window=runtime.provider.window,
            ),
            metrics,
        )
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", name).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", name).observe
        self._nonfinite_outputs = metrics.nonfinite_outputs.labels(name)

    @property
    def busy(self) -> bool:
        """Whether something waits."""
        return self.batcher.waiting_tokens > 0

    def submit(self, items: Sequence[Item], deadline: float) -> "asyncio.Future[list[Result]]":
        """Queue one request's items; as `Batcher.submit`."""
        return self.batcher.submit(items, [len(item.tokens) for item in items], deadline)

    async def answer(self, results: "asyncio.Future[list[Result]]", deadline: float) -> list[Result]:
        """What was submitted, once it has run; raises a `ServiceError` for everything but being cancelled."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await results
        except TimeoutError:
            pass  # raised below, so that it does not keep this one, whose traceback keeps the request
        except NonFiniteOutput:
            self._nonfinite_outputs.inc()
            raise
        except ServiceError:
            raise
        except Exception as error:
            raise Internal from error
        raise DeadlineExceeded("The deadline passed before the model had run. Allow more time.")
