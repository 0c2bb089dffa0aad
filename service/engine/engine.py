"""Request lifecycle: validate, admit, tokenize, submit, await, respond."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from model.tokenizer import Source, Tokens
from service.config import Settings
from service.engine.admission import Admission
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.response import (
    PreparedInput,
    build_results,
    encode_tasks,
    listed_bytes,
    prepare_input,
    response_bytes,
)
from service.engine.explain.attend import AttendTask, suggest_smaller
from service.engine.explain.compare import CompareTask, OccurrenceTokens, compare, comparison_bytes, find_occurrence
from service.engine.explain.units import find_units, word_units
from service.engine.model_info import limits_of, model_info_of
from service.engine.model_loader import LoadedModel
from service.engine.scheduler import Lane
from service.engine.schema.encode import (
    EncodeRequest,
    EncodeResponse,
    EncodeTask,
    ExplainTask,
    Input,
    TextVectors,
    Timing,
    TokenizeRequest,
    TokenizeResponse,
    TokenizeResult,
)
from service.engine.schema.explain import (
    AttendRequest,
    AttendResponse,
    AttentionMapSpec,
    CompareRequest,
    CompareResponse,
)
from service.engine.validation import (
    check_attend,
    check_compare,
    check_encode,
    check_inputs,
    check_length,
    is_last_alone,
)
from service.errors import DeadlineExceeded, NotFound, ResponseTooLarge
from service.metrics import Metrics

INLINE_CHARACTERS = 4096
"""Requests up to this size are prepared on the event loop, in about a millisecond; larger ones in a thread."""
PREPARATION_THREADS = 2
"""Threads contend for the interpreter lock, so more of them only delay the event loop."""
CHARACTERS_PER_TOKEN = 4
"""Estimate of a request's tokens that is admitted before they are counted."""

T = TypeVar("T")


class Engine:
    """Everything behind the API adapters. Create it on the event loop that calls it."""

    def __init__(self, model: LoadedModel, settings: Settings, metrics: Metrics) -> None:
        self._model = model
        self._manifest = model.artifact.manifest
        self._tokenizer = model.tokenizer
        self._metrics = metrics
        self._limits = limits_of(settings, self._manifest.max_input_tokens)
        self.info = model_info_of(model, self._limits, settings)
        self._executor = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="attendant-prepare")
        fast = Admission(model.tokens_per_second, settings.max_queue_ms, settings.max_queue_tokens)
        self._fast: Lane[EncodeTask, TextVectors] = Lane("fast", model.backend, fast, metrics)
        explain = Admission(model.explain.warm_up(), settings.max_explain_queue_ms, settings.max_explain_queue_tokens)
        self._explain: Lane[ExplainTask, Any] = Lane(
            "explain", model.explain, explain, metrics, yields_to=lambda: self._fast.busy
        )

    @property
    def healthy(self) -> bool:
        """True while both lanes can run work."""
        return self._fast.healthy and self._explain.healthy

    @property
    def near_capacity(self) -> bool:
        """True if the fast lane may reject the next request: then it pays to call `check_capacity` early."""
        return self._fast.admission.near_capacity

    def check_capacity(self, characters: int) -> None:
        """Raise `QueueFull` or `Unavailable` unless the fast lane admits a request of `characters` now."""
        self._fast.check_capacity(characters // CHARACTERS_PER_TOKEN, self._deadline(None))

    def reserve(self, characters: int) -> AbstractContextManager[None]:
        """Return a reservation of a request of `characters` in the fast lane. Raises as `Lane.reserve`."""
        return self._fast.reserve(characters // CHARACTERS_PER_TOKEN, self._deadline(None))

    async def drain(self) -> None:
        """Return when every admitted request has its results."""
        await asyncio.gather(self._fast.drain(), self._explain.drain())

    async def close(self) -> None:
        """Fail what waits and end the workers."""
        await asyncio.gather(self._fast.close(), self._explain.close())
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Return vectors of the inputs. Cancelling drops what has not run. Raises a `ServiceError`."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits, self._manifest, request.max_inputs)
        check_encode(request, self._manifest)
        last = is_last_alone(request, self._manifest)
        lane: Lane[Any, TextVectors] = self._fast if last else self._explain
        deadline, timer, size = self._deadline(request.deadline), Timer(), characters(request.inputs)
        async with within(deadline):
            with lane.reserve(estimate_tokens(request.inputs), deadline):
                prepared = await self._run(size, partial(self._prepare_encode, request))
                timer.tokenized()
                submitted = lane.submit(encode_tasks(request, self._manifest, prepared, last=last), deadline)
            vectors = await lane.wait(submitted)
            timer.ran()
            model = self._model
            respond = partial(
                build_results, prepared, vectors, request, self._manifest, model.dense_layers, model.static
            )
            results = await self._run(size, respond)
        token_count, truncated = self._count([item.tokens for item in prepared])
        timing = timer.finish(lane)
        return EncodeResponse(self._manifest.name, lane.precision, results, token_count, truncated, timing)

    async def attend(self, request: AttendRequest) -> AttendResponse:
        """Return attention maps of the inputs. Cancelling and errors as in `encode`."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits, self._manifest)
        spec = check_attend(request, self._manifest)
        lane, deadline, timer = self._explain, self._deadline(request.deadline), Timer()
        async with within(deadline):
            with lane.reserve(estimate_tokens(request.inputs), deadline):
                prepare = partial(self._prepare_attend, request, spec)
                tasks = await self._run(characters(request.inputs), prepare)
                timer.tokenized()
                submitted = lane.submit(tasks, deadline)
            results = await lane.wait(submitted)
            timer.ran()
        self._count([task.tokens for task in tasks])
        return AttendResponse(self._manifest.name, lane.precision, results, timer.finish(lane))

    async def compare(self, request: CompareRequest) -> CompareResponse:
        """Return similarities of a word's occurrences. Cancelling and errors as in `encode`."""
        self._check_model(request.model)
        layers = check_compare(request, self._limits, self._manifest)
        lane, deadline, timer = self._explain, self._deadline(request.deadline), Timer()
        inputs = [Input(Source(text)) for text in {occurrence.text for occurrence in request.occurrences}]
        async with within(deadline):
            with lane.reserve(estimate_tokens(inputs), deadline):
                prepare = partial(self._prepare_compare, request, len(layers))
                tasks = await self._run(characters(inputs), prepare)
                timer.tokenized()
                submitted = lane.submit(tasks, deadline)
            vectors = await lane.wait(submitted)
            timer.ran()
            respond = partial(compare, tasks, vectors, layers, self._model.static)
            occurrences, static, similarities = await self._run(characters(inputs), respond)
        self._count([task.tokens for task in tasks])
        timing = timer.finish(lane)
        return CompareResponse(self._manifest.name, lane.precision, occurrences, static, similarities, timing)

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Return tokens and words of the inputs, untruncated. Errors as in `encode`."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits, self._manifest)
        deadline = self._deadline(request.deadline)
        async with within(deadline):
            with self._fast.reserve(estimate_tokens(request.inputs), deadline):
                results = await self._run(characters(request.inputs), partial(self._tokenize_inputs, request))
        return TokenizeResponse(self._manifest.name, results)

    # Preparation: on the event loop for small requests, in a thread for large ones.

    def _prepare_encode(self, request: EncodeRequest) -> list[PreparedInput]:
        plain = request.outputs == ("pooled",) and request.truncation == "error"
        prepared = [
            prepare_input(item, tokens, request, self._tokenizer, f"{request.field}[{index}]")
            for index, (item, tokens) in enumerate(
                zip(request.inputs, self._tokenize(request, offsets=not plain), strict=True)
            )
        ]
        spelling = 'encoding: "base64"' if request.wire == "json" else 'dtype: "float16"'
        size = response_bytes(prepared, request, self._manifest)
        advice = f"Send fewer inputs, ask for fewer outputs, or {spelling}."
        self._check_response_size(size, len(prepared), lambda: advice)
        return prepared

    def _prepare_attend(self, request: AttendRequest, spec: AttentionMapSpec) -> list[AttendTask]:
        tasks = []
        for index, (item, tokens) in enumerate(zip(request.inputs, self._tokenize(request), strict=True)):
            units = find_units(item, tokens, self._tokenizer.surfaces(tokens), request, f"{request.field}[{index}]")
            tasks.append(AttendTask(tokens, units, spec, request, self._model.blocks))
        size = sum(task.response_bytes() for task in tasks)
        advise = partial(suggest_smaller, tasks, self._limits.max_response_bytes)
        self._check_response_size(size, len(tasks), advise)
        return tasks

    def _prepare_compare(self, request: CompareRequest, layer_count: int) -> list[CompareTask]:
        """Tokenize each text once and find its occurrences."""
        occurrences: dict[str, dict[int, OccurrenceTokens]] = {}
        texts = list(dict.fromkeys(occurrence.text for occurrence in request.occurrences))
        tokens = dict(zip(texts, self._tokenizer.encode([Source(text) for text in texts]), strict=True))
        for index, occurrence in enumerate(request.occurrences):
            where = f"occurrences[{index}]"
            check_length(tokens[occurrence.text], self._manifest, "error", f"{where}.text", "Shorten it.")
            place = find_occurrence(occurrence, tokens[occurrence.text], where)
            occurrences.setdefault(occurrence.text, {})[index] = place
        tasks = [
            CompareTask(
                tokens[text],
                word_units(tokens[text], self._tokenizer.surfaces(tokens[text])),
                places,
                request.draws_on,
                self._model.blocks,
            )
            for text, places in occurrences.items()
        ]
        size = comparison_bytes(tasks, layer_count, request)
        advice = "Send fewer occurrences, or ask for fewer layers."
        self._check_response_size(size, len(request.occurrences), lambda: advice)
        return tasks

    def _tokenize_inputs(self, request: TokenizeRequest) -> list[TokenizeResult]:
        results, size = [], 0
        for item in request.inputs:  # one by one: a response over the limit ends the work early
            (tokens,) = self._tokenizer.encode([item.source])
            words = words_of(tokens)
            described = describe_tokens(tokens, self._tokenizer.surfaces(tokens), words)
            size += listed_bytes((*described, *words), request.wire)
            self._check_response_size(size, len(request.inputs), lambda: "Send fewer inputs.")
            results.append(TokenizeResult(len(tokens), described, words))
        return results

    def _tokenize(self, request: EncodeRequest | AttendRequest, *, offsets: bool = True) -> list[Tokens]:
        tokenized = self._tokenizer.encode([item.source for item in request.inputs], offsets=offsets)
        truncation, hint = request.truncation, request.too_long_hint
        return [
            check_length(tokens, self._manifest, truncation, f"{request.field}[{index}]", hint)
            for index, tokens in enumerate(tokenized)
        ]

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        """Run `work` in a thread if the request is large, so that it does not block the event loop."""
        if size <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._manifest.name and name not in self.info.aliases:
            raise NotFound(f'model: not found. This server serves "{self._manifest.name}".', reason="model_not_found")

    def _check_response_size(self, size: int, inputs: int, advise: Callable[[], str]) -> None:
        limit = self._limits.max_response_bytes
        if size > limit:
            fitting = inputs * limit // size
            room = f" About {fitting} of these {inputs} inputs would fit." if fitting else ""
            raise ResponseTooLarge(f"Response too large (up to {size} bytes, limit {limit}). {advise()}{room}")

    def _deadline(self, requested: float | None) -> float:
        now = time.monotonic()
        latest = now + self._limits.max_deadline_ms / 1000
        if requested is not None and requested <= now:
            raise DeadlineExceeded("Deadline exceeded before the request arrived. Increase the timeout.")
        return latest if requested is None else min(requested, latest)

    def _count(self, tokens: Sequence[Tokens]) -> tuple[int, int]:
        """Count a request in the metrics; return its tokens and the number of its truncated inputs."""
        token_count, truncated = sum(map(len, tokens)), sum(item.truncated for item in tokens)
        self._metrics.request_inputs.observe(len(tokens))
        self._metrics.request_tokens.observe(token_count)
        if truncated:
            self._metrics.truncated_inputs.inc(truncated)
        return token_count, truncated


class Timer:
    """The stages of one request."""

    def __init__(self) -> None:
        self._started = self._tokenized = self._ran = time.perf_counter()

    def tokenized(self) -> None:
        self._tokenized = time.perf_counter()

    def ran(self) -> None:
        self._ran = time.perf_counter()

    def finish(self, lane: Lane[Any, Any]) -> Timing:
        """Count the stages in the lane's metrics and return them."""
        finished = time.perf_counter()
        timing = Timing(self._tokenized - self._started, self._ran - self._tokenized, finished - self._ran)
        lane.metrics.observe_tokenize(timing.tokenize)
        lane.metrics.observe_postprocess(timing.postprocess)
        return timing


@asynccontextmanager
async def within(deadline: float) -> AsyncIterator[None]:
    """Cancel the body when `deadline`, a time.monotonic() reading, passes; then raise `DeadlineExceeded`."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            yield
    except TimeoutError:
        raise DeadlineExceeded("Deadline exceeded before the response was ready. Increase the timeout.") from None


def characters(inputs: Sequence[Input]) -> int:
    """Return the size of the inputs; a token id counts as the characters of an average token."""
    return sum(
        len(item.source.text) + len(item.source.pair or "") + CHARACTERS_PER_TOKEN * len(item.source.token_ids or ())
        for item in inputs
    )


def estimate_tokens(inputs: Sequence[Input]) -> int:
    """Return about how many tokens the inputs have, special tokens included."""
    return 2 * len(inputs) + characters(inputs) // CHARACTERS_PER_TOKEN
