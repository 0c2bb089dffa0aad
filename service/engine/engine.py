"""The inference engine of one model (the model, its limits and its lanes), and the engines of all served models."""

import asyncio
import contextlib
import contextvars
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from attendant_client.types import ModelInfo

from model.artifact.manifest import Manifest, Role
from service.callers import Caller
from service.config import Settings
from service.engine.lane import ExplainLane, FastLane, Lane, LaneObserver, Reservation
from service.engine.model_info import describe_evaluations, describe_model, limits_of
from service.engine.model_loader import LoadedModel
from service.engine.scheduling import (
    CHARACTERS_PER_TOKEN,
    INLINE_COST,
    UNIT_S,
    Admission,
    HostQueue,
    LoopTurns,
    TokenizerAdmission,
)
from service.errors import NotFound, ResponseTooLarge, echo, response_too_late
from service.metrics import EXPLAIN_LANE, FAST_LANE, Metrics
from service.model_options import ModelOption
from service.request_log import current_record, reserve_response
from service.spelling import Remedy, join

PREPARATION_THREADS = 2
"""Threads contend for the GIL, so more threads would only delay the event loop."""

Parameters = ParamSpec("Parameters")
T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """State that all engines of a process share.

    Attributes:
        fast_lanes: They take priority over explain lanes, whichever model they belong to.
        turns: How late the event loop is.
    """

    fast_lanes: list[FastLane] = field(default_factory=list)
    turns: LoopTurns = field(default_factory=LoopTurns)


class Engine:
    """A loaded model with its limits, its lanes, and threads for work outside of inference.

    Construct it on the event loop that uses it. Its fast lane is added to those in `shared`.

    Attributes:
        explain_lane: None if the artifact has no graph for it.
        static: The embedding table, (V, E); None if the artifact has none.
        mask_tokenizer: The tokenizer of texts that spell the mask token; None for a model without one.
        prompt_tokens: The numbers of tokens of the model's prompts, cached on first use.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        metrics: Metrics,
        option: ModelOption | None = None,
        shared: Shared | None = None,
    ) -> None:
        option = option or settings.served_models[0]
        shared = shared or Shared()
        self._fast_lanes = shared.fast_lanes
        self.manifest = model.artifact.manifest
        self.name = option.name or self.manifest.name
        self.tokenizer = model.tokenizer
        self.mask_tokenizer = model.mask_tokenizer
        self.dense_layers = model.dense_layers
        self.static = model.static
        self.limits = limits_of(settings, self.manifest.longest_input_tokens)
        self.info = describe_model(model, self.limits, self.name, option.aliases)
        self.max_batch_tokens = model.backend.max_batch_tokens
        fast = Admission(model.backend, settings.max_queue_ms, settings.max_queue_tokens)
        self._host = HostQueue(PREPARATION_THREADS, shared.turns)
        self.fast_lane: FastLane = Lane(model.backend, fast, LaneObserver(metrics, FAST_LANE, self.name), self._host)
        self._fast_lanes.append(self.fast_lane)
        self.explain_lane: ExplainLane | None = None
        if model.explain is not None:
            explain = Admission(model.explain, settings.max_explain_queue_ms, settings.max_explain_queue_tokens)
            observer = LaneObserver(metrics, EXPLAIN_LANE, self.name)
            self.explain_lane = Lane(
                model.explain,
                explain,
                observer,
                self._host,
                lambda: any(lane.has_queued_tasks for lane in self._fast_lanes),
            )
        self._lanes = [lane for lane in (self.fast_lane, self.explain_lane) if lane is not None]
        self.tokenizer_admission = TokenizerAdmission(self.limits.max_queue_tokens)
        self.prompt_tokens: dict[str, int] = {}
        self._requests = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._max_timeout_s = self.limits.max_timeout_ms / 1000
        self._executor = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="attendant-prepare")

    @property
    def healthy(self) -> bool:
        """True while embeddings can be computed and no batch has stalled.

        A failed explain lane rejects only explain requests.
        """
        return self.fast_lane.healthy and not any(lane.stalled for lane in self._lanes)

    def acquire(self) -> None:
        """Count a request that uses this engine until `release`."""
        self._requests += 1
        self._unused.clear()

    def release(self) -> None:
        """Decrement the count of requests."""
        self._requests -= 1
        if not self._requests:
            self._unused.set()

    def share(self, models: int) -> None:
        """Set the number of models that share the machine, for run-time estimates."""
        for lane in self._lanes:
            lane.share(models)

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, in hexadecimal."""
        return self.info.digest.removeprefix("sha256:")

    def describe(self, manifest: Manifest, digest: str, aliases: tuple[str, ...]) -> None:
        """Replace the description after a change of names or manifest measurements that does not affect results."""
        self.manifest = manifest
        evaluations = describe_evaluations(manifest)
        self.info = replace(self.info, digest=f"sha256:{digest}", evaluations=evaluations, aliases=list(aliases))

    def queued_tokens_by_caller(self) -> Counter[str]:
        """Return the number of tokens that are queued or in preparation per named caller."""
        return sum((Counter(lane.admission.backlog.tokens_by_caller) for lane in self._lanes), Counter[str]())

    def watch(self, seconds: float) -> None:
        """Add `seconds` to the run time of the running batches."""
        for lane in self._lanes:
            lane.watchdog.observe(seconds)

    def reserve(self, characters: int, caller: Caller) -> Reservation:
        """Reserve fast-lane capacity for a request of this many characters. Raises the errors of `Lane.reserve`."""
        deadline = time.monotonic() + self._max_timeout_s
        return self.fast_lane.reserve((), deadline, characters, characters // CHARACTERS_PER_TOKEN, caller)

    def role_prompt_name(self, role: Role | None) -> str | None:
        """Return the name of the model's prompt for a role; None if it has none."""
        return None if role is None else self.manifest.roles.get(role)

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Strip the model's special tokens from both ends of the ids if all are present."""
        return self.tokenizer.content_ids(token_ids)

    # Used by the operations.

    @property
    def explain(self) -> ExplainLane:
        """The explain lane, for operations that have checked that the manifest lists its graph."""
        assert self.explain_lane is not None
        return self.explain_lane

    async def run(
        self,
        cost: int,
        deadline: float,
        work: Callable[Parameters, T],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> T:
        """Call `work`, in a thread if it would block the event loop for too long. Raises `DeadlineExceeded`.

        The fast lane's watchdog watches the thread, because a tokenizer call cannot be interrupted.
        """

        def call() -> T:
            try:
                return work(*arguments, **options)
            except Exception:
                raise
            except BaseException as error:  # a tokenizer panic is not an Exception
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        def call_in_thread() -> T:
            watchdog = self.fast_lane.watchdog
            watchdog.start(cost * UNIT_S)
            try:
                return context.run(call)
            finally:
                watchdog.stop()

        if cost <= INLINE_COST:
            return call()
        context = contextvars.copy_context()  # keeps the request's record
        try:
            with self._host.running(cost):
                async with asyncio.timeout(deadline - time.monotonic()):
                    return await asyncio.get_running_loop().run_in_executor(self._executor, call_in_thread)
        except TimeoutError:
            raise response_too_late() from None

    def check_response_size(self, size: int, inputs: int, suggest: Callable[[], Remedy]) -> None:
        """Reserve memory for a response. `suggest` returns the remedy if the response is over the limit.

        Raises `ResponseTooLarge`, and `MemoryShareExceeded` or `Overloaded` while clients have not read other
        responses.
        """
        limit = self.limits.max_response_bytes
        if size > limit:
            fitting, remedy = inputs * limit // size, suggest()
            if fitting:
                remedy = replace(remedy, hint=f"About {fitting} of these {inputs} inputs fit.")
            raise ResponseTooLarge("Response too large", remedy, actual=size, maximum=limit, unit="bytes")
        reserve_response(size)

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(*(lane.drain() for lane in self._lanes), self.tokenizer_admission.drain())

    async def retire(self) -> None:
        """Close once every request that uses this engine has its response, or after the maximum timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_timeout_s):
                await self._unused.wait()
                await self.drain()
        await self.close()

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        if self.fast_lane in self._fast_lanes:
            self._fast_lanes.remove(self.fast_lane)
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        self._executor.shutdown(wait=False, cancel_futures=True)


class Models:
    """One engine per served model, at least one. The first one serves requests that name no model.

    Attributes:
        shared: The state that all engines share, for new ones.
        generation: A number that changes whenever the models do.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.shared = Shared()
        self._retiring: set[Engine] = set()
        self._engines: tuple[Engine, ...] = ()
        self.generation = 0
        self.replace(engines)

    def replace(self, engines: Sequence[Engine]) -> list[Engine]:
        """Serve these models from now on; return the engines that are no longer used, to be passed to `retire`."""
        removed = [engine for engine in self._engines if engine not in engines]
        self._engines = tuple(engines)
        self.generation += 1
        self._by_name = {name: engine for engine in engines for name in (engine.info.name, *engine.info.aliases)}
        self._retiring.update(removed)
        for engine in engines:
            engine.share(len(engines))
        return removed

    async def retire(self, engine: Engine) -> None:
        """Close a replaced engine once no request uses it."""
        await engine.retire()
        self._retiring.discard(engine)

    @property
    def texts_per_second(self) -> float:
        """The sentences per second of the fastest model on the whole machine."""
        return max(engine.fast_lane.admission.texts_per_second for engine in self._engines)

    @property
    def near_capacity(self) -> bool:
        """True if a fast lane may reject the next request."""
        for engine in self._engines:  # noqa: SIM110  # a generator doubles the time
            if engine.fast_lane.near_capacity:
                return True
        return False

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def names(self) -> list[str]:
        """The names and aliases of the models."""
        return list(self._by_name)

    @property
    def infos(self) -> list[ModelInfo]:
        """The descriptions of the models."""
        return [engine.info for engine in self._engines]

    def queued_tokens_by_caller(self) -> Counter[str]:
        """Return the number of tokens that are queued or in preparation per named caller, over all models."""
        return sum((engine.queued_tokens_by_caller() for engine in self._all), Counter[str]())

    def find(self, name: str | None = None, field: str = "model") -> Engine:
        """Return the engine of a model, or of the default model; raises `NotFound` with `field`.

        The current request's record stores the model, and keeps its engine open until the request is finished.
        """
        engine = self._engines[0] if name is None else self._by_name.get(name)
        if engine is None:
            names = [f'"{known}"' for known in self.names]
            raise NotFound(
                "not found", f"This server serves {join(names)}.",
                field=field, actual=echo(name or ""), reason="MODEL_NOT_FOUND",
            )  # fmt: skip
        if (record := current_record()) is not None:
            record.model = engine.name
            record.use(engine)
        return engine

    @property
    def _all(self) -> list[Engine]:
        return [*self._engines, *self._retiring]

    @property
    def healthy(self) -> bool:
        """True while every engine can compute embeddings."""
        return all(engine.healthy for engine in self._engines)

    def watch(self, seconds: float) -> None:
        """Add `seconds` to the run time of every model's running batches."""
        for engine in self._all:
            engine.watch(seconds)

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(*(engine.drain() for engine in self._all))

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await asyncio.gather(*(engine.close() for engine in self._all))
