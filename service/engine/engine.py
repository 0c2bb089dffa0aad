"""The inference engine of one model: the model, its lanes, and the operations on them."""

import asyncio
import contextlib
import contextvars
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

from model.artifact.manifest import Manifest, Role
from service.callers import Caller
from service.config import Settings
from service.engine.admission import CHARACTERS_PER_TOKEN, Admission, TokenizerAdmission
from service.engine.explain.memory import explain_bytes, max_explained_tokens
from service.engine.lane import ExplainLane, FastLane, Lane, Reservation
from service.engine.model_info import describe_model, limits_of
from service.engine.model_loader import LoadedModel
from service.engine.observer import ModelObserver
from service.engine.operations.attend import attend
from service.engine.operations.classify import classify
from service.engine.operations.compare import compare
from service.engine.operations.costs import INLINE_COST, UNIT_S
from service.engine.operations.encode import encode
from service.engine.operations.fill_mask import fill_mask
from service.engine.operations.rerank import rerank
from service.engine.operations.similarity import similarity
from service.engine.operations.token_classify import token_classify
from service.engine.operations.tokenize import decode, tokenize
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import EncodeRequest, EncodeResponse, TokenizeRequest, TokenizeResponse
from service.engine.schema.entities import TokenClassifyRequest, TokenClassifyResponse
from service.engine.schema.explain import AttendRequest, AttendResponse, CompareRequest, CompareResponse
from service.engine.schema.fill_mask import FillMaskRequest, FillMaskResponse
from service.engine.schema.labels import ClassifyRequest, ClassifyResponse, RerankRequest, RerankResponse
from service.engine.schema.similarity import SimilarityRequest, SimilarityResponse
from service.errors import RequestTooLarge, ResponseTooLarge, response_too_late
from service.metrics import EXPLAIN_LANE, FAST_LANE, Metrics
from service.model_options import ModelOption
from service.request_log import current_record, reserve_response
from service.spelling import Remedy

PREPARATION_THREADS = 2
"""Threads contend for the GIL, so more of them only delay the event loop."""


class Timed(Protocol):
    """A request; `deadline` is a time.monotonic() reading, or None for the maximum timeout."""

    @property
    def deadline(self) -> float | None: ...


Parameters = ParamSpec("Parameters")
T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Timed)
ResponseT = TypeVar("ResponseT")


FastLanes = list[FastLane]
"""The fast lanes of one process, to which the explain lanes yield."""


class Engine:
    """A loaded model with its limits, its lanes, and threads for work outside of inference.

    Construct it on the event loop that uses it. Its fast lane joins `fast_lanes`.

    Each operation raises a `ServiceError` if it fails. Cancellation drops its queued tasks.

    Attributes:
        explain_lane: None if the artifact has no graph for it.
        static: The embedding table, (V, E); None if the artifact has none.
        mask_tokenizer: The tokenizer of texts that spell the mask token; None for a model without one.
        prompt_tokens: The number of tokens of the model's own prompts, once they have been used.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        metrics: Metrics,
        option: ModelOption | None = None,
        fast_lanes: FastLanes | None = None,
    ) -> None:
        option = option or settings.served_models[0]
        self._fast_lanes = fast_lanes if fast_lanes is not None else []
        self.manifest = model.artifact.manifest
        self.name = option.name or self.manifest.name
        self.tokenizer = model.tokenizer
        self.mask_tokenizer = model.mask_tokenizer
        self.dense_layers = model.dense_layers
        self.static = model.static
        self.limits = limits_of(settings, self.manifest.longest_input_tokens)
        self.info = describe_model(model, self.limits, self.name, option.aliases)
        self.max_batch_tokens = model.backend.max_batch_tokens
        observer = ModelObserver(metrics, self.name)
        fast = Admission(
            model.backend.seconds,
            model.backend.choice.streams,
            settings.max_queue_ms,
            settings.max_queue_tokens,
            self.max_batch_tokens,
        )
        self.fast_lane: FastLane = Lane(FAST_LANE, model.backend, fast, observer)
        self._fast_lanes.append(self.fast_lane)
        self.explain_lane: ExplainLane | None = None
        if model.explain is not None:
            explain = Admission(
                model.explain.seconds,
                1,
                settings.max_explain_queue_ms,
                settings.max_explain_queue_tokens,
                model.explain.max_batch_tokens,
            )
            self.explain_lane = Lane(
                EXPLAIN_LANE,
                model.explain,
                explain,
                observer,
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

        A failed explain lane rejects its own requests only.
        """
        return self.fast_lane.healthy and not any(lane.stalled for lane in self._lanes)

    def acquire(self) -> None:
        """Count a request that uses this engine, until `release`."""
        self._requests += 1
        self._unused.clear()

    def release(self) -> None:
        """Count one request less."""
        self._requests -= 1
        if not self._requests:
            self._unused.set()

    def share(self, models: int) -> None:
        """Expect a part of the machine: this many models share it."""
        for lane in self._lanes:
            lane.share(models)

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, in hexadecimal."""
        return self.info.digest.removeprefix("sha256:")

    def describe(self, manifest: Manifest, digest: str, aliases: tuple[str, ...]) -> None:
        """Replace the description: the names, or measures in the manifest have changed, but not what is computed."""
        self.manifest = manifest
        evaluations = list(manifest.evaluations)
        self.info = replace(self.info, digest=f"sha256:{digest}", evaluations=evaluations, aliases=list(aliases))

    def queued_tokens_by_caller(self) -> Counter[str]:
        """Return how many tokens of callers with a name are queued or in preparation."""
        return sum((Counter(lane.admission.backlog.tokens_by_caller) for lane in self._lanes), Counter[str]())

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        for lane in self._lanes:
            lane.watch(seconds)

    def reserve(self, characters: int, caller: Caller) -> Reservation:
        """Reserve fast-lane capacity for a request of this many characters; raises as `Lane.reserve` does."""
        deadline = time.monotonic() + self._max_timeout_s
        return self.fast_lane.reserve((), deadline, characters // CHARACTERS_PER_TOKEN, caller)

    def encode(self, request: EncodeRequest) -> Awaitable[EncodeResponse]:
        """Return embeddings of the inputs."""
        return encode(self, request, self._deadline(request))

    def attend(self, request: AttendRequest) -> Awaitable[AttendResponse]:
        """Return attention maps of the inputs."""
        return attend(self, request, self._deadline(request))

    def compare(self, request: CompareRequest) -> Awaitable[CompareResponse]:
        """Return similarities of a word's occurrences."""
        return compare(self, request, self._deadline(request))

    def similarity(self, request: SimilarityRequest) -> Awaitable[SimilarityResponse]:
        """Return similarities of queries and documents."""
        return similarity(self, request, self._deadline(request))

    def rerank(self, request: RerankRequest) -> Awaitable[RerankResponse]:
        """Return documents by their relevance to a query."""
        return rerank(self, request, self._deadline(request))

    def classify(self, request: ClassifyRequest) -> Awaitable[ClassifyResponse]:
        """Return the labels of the inputs."""
        return classify(self, request, self._deadline(request))

    def token_classify(self, request: TokenClassifyRequest) -> Awaitable[TokenClassifyResponse]:
        """Return the entities of the inputs."""
        return token_classify(self, request, self._deadline(request))

    def fill_mask(self, request: FillMaskRequest) -> Awaitable[FillMaskResponse]:
        """Return the words that the model predicts for tokens of the inputs."""
        return fill_mask(self, request, self._deadline(request))

    def tokenize(self, request: TokenizeRequest) -> Awaitable[TokenizeResponse]:
        """Return tokens and words of the inputs, untruncated."""
        return tokenize(self, request, self._deadline(request))

    def decode(self, request: DecodeRequest) -> Awaitable[list[str]]:
        """Return the texts of token ids."""
        return decode(self, request, self._deadline(request))

    def role_prompt_name(self, role: Role | None) -> str | None:
        """Return the name of the model's prompt for a role; None if it has none."""
        return None if role is None else self.manifest.roles.get(role)

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids without the special tokens of the model, if they have all of them at both ends."""
        return self.tokenizer.content_ids(token_ids)

    def _deadline(self, request: Timed) -> float:
        """Return the deadline of a request that has just arrived, a time.monotonic() reading."""
        now, requested = time.monotonic(), request.deadline
        latest = now + self._max_timeout_s
        if requested is None:
            return latest
        if (record := current_record()) is not None:
            record.timeout_s = requested - now
        return min(requested, latest)

    # For the operations.

    @property
    def explain(self) -> ExplainLane:
        """The explain lane, for operations that have checked that the manifest has its graph."""
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
        """Call `work`, in a thread if its cost would block the event loop; raises `DeadlineExceeded`.

        The watchdog of the fast lane watches the thread: a call of the tokenizer cannot be interrupted.
        """

        def call() -> T:
            try:
                return work(*arguments, **options)
            except Exception:
                raise
            except BaseException as error:  # a panic of the tokenizer, which is no Exception
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        def call_in_thread() -> T:
            with self.fast_lane.watchdog.running(cost * UNIT_S):
                return context.run(call)

        if cost <= INLINE_COST:
            return call()
        context = contextvars.copy_context()  # with the record of the request
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.get_running_loop().run_in_executor(self._executor, call_in_thread)
        except TimeoutError:
            raise response_too_late() from None

    def check_response_size(self, size: int, inputs: int, suggest: Callable[[], Remedy]) -> None:
        """Reserve memory for a response. `suggest` returns the remedy for one of more bytes than the limit.

        Raises `ResponseTooLarge`, and `MemoryShareExceeded` or `Overloaded` while clients have not read other ones.
        """
        limit = self.limits.max_response_bytes
        if size > limit:
            fitting, remedy = inputs * limit // size, suggest()
            if fitting:
                remedy = replace(remedy, hint=f"About {fitting} of these {inputs} inputs fit.")
            raise ResponseTooLarge("Response too large", remedy, actual=size, maximum=limit, unit="bytes")
        reserve_response(size)

    def check_explain_size(self, sizes: Sequence[int], *, maps: bool, path: str | None = None) -> None:
        """Raise `RequestTooLarge` for an input whose intermediate results exceed the limit.

        `sizes`: the tokens of each input. `path` replaces the path of the input.
        """
        architecture, limit = self.manifest.architecture, self.limits.max_explain_bytes
        for index, size in enumerate(sizes):
            needed = explain_bytes(architecture, size, maps=maps)
            if needed > limit:
                fitting = max_explained_tokens(architecture, limit, maps=maps)
                raise RequestTooLarge(
                    "intermediate results too large", f"Send a shorter text (at most {fitting} tokens).",
                    field=path or f"inputs[{index}]", actual=needed, maximum=limit, unit="bytes",
                )  # fmt: skip

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(*(lane.drain() for lane in self._lanes), self.tokenizer_admission.drain())

    async def retire(self) -> None:
        """Close once every request that uses this engine has its response, at the latest after the maximum timeout."""
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
