"""Request lifecycle: validate, admit, tokenize, submit, await, respond."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from model.tokenizer import TokenizedInput, TokenizerInput
from service.config import Settings
from service.engine.admission import Admission, count_characters, estimate_tokens
from service.engine.costs import INLINE_COST, compare_cost, describe_cost, encode_cost
from service.engine.encode.response import build_results
from service.engine.explain.compare import compare
from service.engine.fair_queue import Cost
from service.engine.lane import Lane
from service.engine.lane_metrics import ModelMetrics
from service.engine.model_info import describe_model, limits_of
from service.engine.model_loader import LoadedModel
from service.engine.preparation import Preparation, similarity_cost
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import (
    AppliedPrompt,
    EncodeRequest,
    EncodeResponse,
    EncodeTask,
    ExplainTask,
    Input,
    TextVectors,
    TokenizeRequest,
    TokenizeResponse,
)
from service.engine.schema.explain import AttendRequest, AttendResponse, CompareRequest, CompareResponse
from service.engine.schema.similarity import SimilarityRequest, SimilarityResponse
from service.engine.timing import Timer, deadline_scope
from service.engine.tokenizing import Tokenizing
from service.engine.validation.encode import check_encode, needs_last_layer_only, select_prompt
from service.engine.validation.explain import check_attend, check_compare
from service.engine.validation.inputs import check_inputs
from service.engine.validation.similarity import check_similarity
from service.errors import DeadlineExceeded
from service.metrics import EXPLAIN_LANE, FAST_LANE, Metrics
from service.model_options import ModelOption
from service.request_log import note_timeout, note_tokens

PREPARATION_THREADS = 2
"""Threads contend for the GIL, so more of them only delay the event loop."""

FastLane = Lane[EncodeTask, TextVectors]
T = TypeVar("T")


class Engine:
    """The inference engine of one model. Construct it on the event loop that uses it.

    `fast_lanes` collects the fast lanes of all engines, to which the explain lane yields; None if there is one engine.
    `engines` is the number of engines that share the machine.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        metrics: Metrics,
        option: ModelOption | None = None,
        fast_lanes: list[FastLane] | None = None,
        engines: int = 1,
    ) -> None:
        option = option or settings.served_models[0]
        self._model = model
        self._manifest = model.artifact.manifest
        self.name = option.name or self._manifest.name
        self._metrics = ModelMetrics(metrics, self.name)
        self._limits = limits_of(settings, self._manifest.max_input_tokens)
        self.info = describe_model(model, self._limits, self.name, option.aliases)
        self._preparation = Preparation(model, self._limits)
        self._executor = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="attendant-prepare")
        self._tokenizing = Tokenizing(settings.max_queue_tokens)
        fast = Admission(
            model.backend.seconds,
            model.backend.choice.streams / engines,
            settings.max_queue_ms,
            settings.max_queue_tokens,
            self.max_batch_tokens,
        )
        self._fast: FastLane = Lane(FAST_LANE, model.backend, fast, self._metrics)
        fast_lanes = [] if fast_lanes is None else fast_lanes
        fast_lanes.append(self._fast)
        explain = Admission(
            model.explain.seconds,
            1 / engines,
            settings.max_explain_queue_ms,
            settings.max_explain_queue_tokens,
            model.explain.max_batch_tokens,
        )
        self._explain: Lane[ExplainTask, Any] = Lane(
            EXPLAIN_LANE, model.explain, explain, self._metrics, lambda: any(lane.busy for lane in fast_lanes)
        )

    @property
    def healthy(self) -> bool:
        """True while embeddings can be computed and no batch has stalled.

        A failed explain lane rejects its own requests only.
        """
        return self._fast.healthy and not (self._fast.stalled or self._explain.stalled)

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        self._fast.watch(seconds)
        self._explain.watch(seconds)

    @property
    def max_batch_tokens(self) -> int:
        """Maximum number of tokens in a batch of the fast lane."""
        return self._model.backend.max_batch_tokens

    @property
    def near_capacity(self) -> bool:
        """True if the fast lane may reject the next request.

        Callers should then call `check_capacity` before parsing a request.
        """
        return self._fast.admission.near_capacity

    def check_capacity(self, characters: int) -> None:
        """Raise `QueueFull` or `Unavailable` unless the fast lane admits a request of `characters` now."""
        self._fast.check_capacity(self._fast.admission.cost_of_text(characters), self._deadline(None))

    def reserve(self, characters: int) -> AbstractContextManager[None]:
        """Reserve fast-lane capacity for a request of this many characters; raises as `Lane.reserve` does."""
        return self._fast.reserve(self._fast.admission.cost_of_text(characters), self._deadline(None))

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await asyncio.gather(self._fast.drain(), self._explain.drain(), self._tokenizing.drain())

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await asyncio.gather(self._fast.close(), self._explain.close())
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Return embeddings of the inputs. Cancellation drops queued tasks. Raises a `ServiceError`."""
        field = request.spelling.inputs
        check_inputs(request.inputs, field, self._limits, self._manifest, request.max_inputs, request.spelling.split)
        request = check_encode(request, self._manifest)
        prompt = select_prompt(request, self._limits, self._manifest)
        last = needs_last_layer_only(request, self._manifest)
        lane: Lane[Any, TextVectors] = self._fast if last else self._explain
        deadline, timer = self._deadline(request.deadline), Timer()
        if lane.admission.near_capacity:  # an error for good comes before an error that asks to retry
            self._preparation.check_least_response(request)
        async with deadline_scope(deadline):
            prompt_tokens = await self._count_prompt(prompt, len(request.inputs))
            size = encode_cost(request, self._manifest, 0 if prompt is None else len(prompt.text))
            with lane.reserve(self._estimate(lane, request.inputs, prompt_tokens), deadline):
                prepare = partial(self._preparation.encode, request, prompt, last=last)
                prepared, tasks = await self._run(size, prepare)
                timer.tokenized()
                token_count, truncated = self._count([item.tokens for item in prepared])
                submitted = lane.submit(tasks, deadline)
            vectors = await lane.wait(submitted)
            timer.ran(submitted.job.queue_s)
            model = self._model
            respond = partial(
                build_results, prepared, vectors, request, self._manifest, model.dense_layers, model.static
            )
            results = await self._run(size, respond)
        timing = timer.finish(lane.metrics)
        return EncodeResponse(self.name, lane.precision, results, token_count, truncated, timing, prompt)

    async def attend(self, request: AttendRequest) -> AttendResponse:
        """Return attention maps of the inputs. Cancellation and errors are as in `encode`."""
        check_inputs(request.inputs, request.spelling.inputs, self._limits, self._manifest)
        spec = check_attend(request, self._manifest)
        lane, deadline, timer = self._explain, self._deadline(request.deadline), Timer()
        async with deadline_scope(deadline):
            with lane.reserve(self._estimate(lane, request.inputs), deadline):
                prepare = partial(self._preparation.attend, request, spec)
                tasks = await self._run(describe_cost(request), prepare)
                timer.tokenized()
                token_count, truncated = self._count([task.tokens for task in tasks])
                submitted = lane.submit(tasks, deadline)
            results = await lane.wait(submitted)
            timer.ran()
        return AttendResponse(self.name, lane.precision, results, token_count, truncated, timer.finish(lane.metrics))

    async def compare(self, request: CompareRequest) -> CompareResponse:
        """Return similarities of a word's occurrences. Cancellation and errors are as in `encode`."""
        layers = check_compare(request, self._limits, self._manifest)
        lane, deadline, timer = self._explain, self._deadline(request.deadline), Timer()
        inputs = [Input(TokenizerInput(text)) for text in {occurrence.text for occurrence in request.occurrences}]
        cost = compare_cost(request, inputs, len(layers))
        async with deadline_scope(deadline):
            with lane.reserve(self._estimate(lane, inputs), deadline):
                tasks = await self._run(cost, partial(self._preparation.compare, request, len(layers)))
                timer.tokenized()
                token_count, _ = self._count([task.tokens for task in tasks])
                submitted = lane.submit(tasks, deadline)
            vectors = await lane.wait(submitted)
            timer.ran()
            respond = partial(compare, tasks, vectors, layers, self._model.static)
            occurrences, static, similarities = await self._run(cost, respond)
        timing = timer.finish(lane.metrics)
        return CompareResponse(self.name, lane.precision, occurrences, static, similarities, token_count, timing)

    async def similarity(self, request: SimilarityRequest) -> SimilarityResponse:
        """Return similarities of queries and documents. Cancellation and errors are as in `encode`."""
        linear = self._model.dense_layers.linear
        spec = check_similarity(request, self._limits, self._manifest, linear=linear)
        lane, deadline, timer = self._fast, self._deadline(request.deadline), Timer()
        async with deadline_scope(deadline):
            prompt_tokens = (
                await self._count_prompt(spec.query_prompt, len(request.queries), "query_prompt"),
                await self._count_prompt(spec.document_prompt, len(request.documents), "document_prompt"),
            )
            size, tokens, explanation = similarity_cost(
                request, spec, prompt_tokens, self._limits, self._manifest.max_input_tokens
            )
            admission = lane.admission
            with lane.reserve(admission.cost(tokens).plus(admission.cost_of_tokens(explanation)), deadline):
                prepared, tasks = await self._run(size, partial(self._preparation.similarity, request, spec))
                timer.tokenized()
                token_count, truncated = self._count([text.tokens for text in prepared.texts])
                submitted = lane.submit(tasks, deadline)
            vectors = await lane.wait(submitted)
            timer.ran(submitted.job.queue_s)
            scores, pairs = await self._run(size, partial(prepared.results, vectors))
        return SimilarityResponse(
            self.name, lane.precision, spec.similarity, scores,
            [text.result(explain=request.explain) for text in prepared.queries],
            [text.result(explain=request.explain) for text in prepared.documents],
            pairs, spec.unavailable if request.explain else None, token_count, truncated,
            spec.query_prompt, spec.document_prompt, timer.finish(lane.metrics),
        )  # fmt: skip

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Return tokens and words of the inputs, untruncated. Errors are as in `encode`."""
        check_inputs(request.inputs, request.spelling.inputs, self._limits, self._manifest)
        deadline = self._deadline(request.deadline)
        async with deadline_scope(deadline):
            with self._tokenizing.reserve(request.inputs):
                results = await self._run(describe_cost(request), partial(self._preparation.tokenize, request))
        return TokenizeResponse(self.name, results)

    async def decode(self, request: DecodeRequest) -> list[str]:
        """Return the texts of token ids. Errors are as in `encode`."""
        inputs = [Input(TokenizerInput(token_ids=token_ids)) for token_ids in request.token_ids]
        check_inputs(inputs, request.spelling.inputs, self._limits, self._manifest)
        deadline = self._deadline(request.deadline)
        async with deadline_scope(deadline):
            with self._tokenizing.reserve(inputs):
                cost = sum(map(count_characters, inputs))
                return await self._run(cost, partial(self._preparation.decode, request))

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids without the special tokens of the model, if they have all of them at both ends."""
        return self._model.tokenizer.content_ids(token_ids)

    def _estimate(self, lane: Lane[Any, Any], inputs: Sequence[Input], prompt_tokens: int = 0) -> Cost:
        lengths = map(count_characters, inputs)
        return lane.admission.cost(estimate_tokens(lengths, self._manifest.max_input_tokens, prompt_tokens))

    async def _count_prompt(self, prompt: AppliedPrompt | None, inputs: int, field: str = "prompt") -> int:
        """Return the number of tokens of a prompt, 0 for None. Raises a `ServiceError` if it is too long."""
        if prompt is None:
            return 0
        count = partial(self._preparation.count_prompt, prompt, inputs, field)
        return await self._run(len(prompt.text), count)

    async def _run(self, cost: int, work: Callable[[], T]) -> T:
        """Run `work` in a thread if its cost would block the event loop."""
        if cost <= INLINE_COST:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _deadline(self, requested: float | None) -> float:
        now = time.monotonic()
        latest = now + self._limits.max_timeout_ms / 1000
        if requested is not None:
            note_timeout(requested - now)
        if requested is not None and requested <= now:
            raise DeadlineExceeded("Deadline exceeded before the request arrived", "Increase the timeout.")
        return latest if requested is None else min(requested, latest)

    def _count(self, tokens: Sequence[TokenizedInput]) -> tuple[int, int]:
        """Record a request in the metrics; return its token count and its number of truncated inputs."""
        token_count, truncated = sum(map(len, tokens)), sum(item.truncated for item in tokens)
        self._metrics.observe_request(len(tokens), token_count, truncated)
        note_tokens(token_count)
        return token_count, truncated
