"""The one door inward: validate, admit, tokenise, batch, assemble."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from model.tokenizer import Tokens
from service import __version__
from service.config import Settings
from service.engine.assembly import Outline, assemble, listed_bytes, outline, response_bytes
from service.engine.checks import check_encode, check_inputs, is_last_alone
from service.engine.lane import Lane, one_alone
from service.engine.loaded import LoadedModel
from service.engine.packing import choose
from service.engine.requests import (
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    Limits,
    ModelFacts,
    Text,
    TextVectors,
    Timing,
    TokenizeRequest,
    TokenizeResponse,
    TokenizeResult,
    Wire,
)
from service.engine.runtime import NotFinite
from service.engine.words import describe_tokens, words_of
from service.errors import (
    DeadlineExceeded,
    EmptyInput,
    InputTooLong,
    Internal,
    NonFiniteOutput,
    NotFound,
    ResponseTooLarge,
    ServiceError,
)
from service.metrics import Metrics

INLINE_CHARACTERS = 8192
"""Requests of so many characters are handled on the event loop (tokenising takes about 2 ms); larger ones aside."""
CHARACTERS_PER_TOKEN = 4
"""Only for the estimate that holds room in the queue until the tokens are counted."""

Made = TypeVar("Made")


class Engine:
    """Built and started on the event loop that its callers run on."""

    def __init__(self, model: LoadedModel, settings: Settings, metrics: Metrics) -> None:
        self._model = model
        self._manifest = model.artifact.manifest
        self._tokenizer = model.tokenizer
        self._metrics = metrics
        self._limits = _limits(settings, self._manifest.max_tokens)
        self.facts = _facts(model, self._limits, settings)
        fast, explain = model.runtime, model.explain
        share = partial(choose, shared=fast.row_lengths.shared)
        self._fast = Lane("fast", fast, share, settings.max_queue_tokens, metrics)
        self._explain = Lane("explain", explain, one_alone, settings.max_explain_queue_tokens, metrics)

    async def drain(self) -> None:
        """Return when everything that was taken has been answered."""
        await asyncio.gather(self._fast.batcher.drain(), self._explain.batcher.drain())

    async def close(self) -> None:
        await asyncio.gather(self._fast.batcher.close(), self._explain.batcher.close())

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Vectors of the inputs. Cancelling drops what has not run; raises a `ServiceError` for everything else."""
        self._check_model(request.model)
        max_inputs = request.max_inputs or self._limits.max_inputs
        check_inputs(request.inputs, request.field, max_inputs, self._limits, self._manifest.vocabulary)
        check_encode(request, self._manifest)
        deadline = self._deadline(request.deadline)
        lane = self._fast if is_last_alone(request, self._manifest) else self._explain
        started = time.perf_counter()
        with lane.batcher.reserve(_estimate_tokens(request.inputs)):
            outlines = await _aside(_characters(request.inputs), partial(self._prepare, request))
            tokens = [found.tokens for found in outlines]
            tokenized = time.perf_counter()
            lane.observe_tokenize(tokenized - started)
            vectors = self._submit(lane, tokens, request, deadline)
        found_vectors = await self._answer(lane, vectors, deadline) if vectors is not None else []
        ran = time.perf_counter()
        model = self._model
        assembling = partial(assemble, outlines, found_vectors, request, self._manifest, model.head, model.static)
        results = await _aside(_characters(request.inputs), assembling)
        finished = time.perf_counter()
        lane.observe_postprocess(finished - ran)
        return self._respond(lane, tokens, results, Timing(tokenized - started, ran - tokenized, finished - ran))

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Tokens and words of the inputs, whole; nothing runs."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits.max_inputs, self._limits, self._manifest.vocabulary)
        with self._fast.batcher.reserve(_estimate_tokens(request.inputs)):
            results = await _aside(_characters(request.inputs), partial(self._describe, request))
        return TokenizeResponse(self._manifest.name, results)

    def _describe(self, request: TokenizeRequest) -> list[TokenizeResult]:
        results, size = [], 0
        for tokens in self._tokenizer.encode([item.source for item in request.inputs]):
            words = words_of(tokens)
            described = describe_tokens(tokens, self._tokenizer.surfaces(tokens), words)
            size += listed_bytes((*described, *words), request.wire)
            self._check_size(size, request.wire)
            results.append(TokenizeResult(len(tokens), described, words))
        return results

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._manifest.name and name not in self.facts.aliases:
            raise NotFound(f"model: not served here. The model is {self._manifest.name}.", reason="model_not_found")

    def _deadline(self, asked: float | None) -> float:
        now = time.monotonic()
        latest = now + self._limits.max_deadline_ms / 1000
        if asked is not None and asked <= now:
            raise DeadlineExceeded("The deadline had passed when the request arrived.")
        return latest if asked is None else min(asked, latest)

    def _prepare(self, request: EncodeRequest) -> list[Outline]:
        """Tokenise, cut, find words and spans, and refuse what would be too large."""
        plain = request.outputs == ("pooled",) and request.truncation == "error"
        tokens = self._fit(self._tokenizer.encode([item.source for item in request.inputs], offsets=not plain), request)
        outlines = [
            outline(item, found, request, self._tokenizer, f"{request.field}[{index}]")
            for index, (item, found) in enumerate(zip(request.inputs, tokens, strict=True))
        ]
        self._check_size(response_bytes(outlines, request, self._manifest), request.wire)
        return outlines

    def _fit(self, tokens: list[Tokens], request: EncodeRequest) -> list[Tokens]:
        """Cut, or refuse, what is longer than the model takes; refuse what has no content."""
        limit = self._manifest.max_tokens
        for index, found in enumerate(tokens):
            if not found.has_content:
                raise EmptyInput(f"{request.field}[{index}] has nothing that the tokenizer keeps; send some text.")
            if len(found) > limit:
                if request.truncation == "error":
                    raise InputTooLong(
                        f"{request.field}[{index}] has {len(found)} tokens; the limit is {limit}. "
                        f"{request.too_long_hint}"
                    )
                tokens[index] = found.truncate(limit, request.truncation)
        return tokens

    def _check_size(self, size: int, wire: Wire) -> None:
        if size > self._limits.max_response_bytes:
            raise ResponseTooLarge(
                f"The answer could take {size} bytes; the limit is {self._limits.max_response_bytes}. "
                "Send fewer inputs or outputs"
                + (', encoding: "base64", or dtype: "float16".' if wire == "json" else ', or dtype: "float16".')
            )

    def _submit(
        self, lane: Lane, tokens: Sequence[Tokens], request: EncodeRequest, deadline: float
    ) -> "asyncio.Future[list[TextVectors]] | None":
        hidden = not {"tokens", "words", "spans"}.isdisjoint(request.outputs)
        pooling = (request.pooling or self._manifest.pooling) if "pooled" in request.outputs else None
        if not hidden and pooling is None:
            return None
        layers = tuple(layer % (self._manifest.layers + 1) for layer in request.layers)
        texts = [Text(found, pooling, hidden, layers) for found in tokens]
        return lane.batcher.submit(texts, [len(found) for found in tokens], deadline)

    async def _answer(
        self, lane: Lane, vectors: "asyncio.Future[list[TextVectors]]", deadline: float
    ) -> list[TextVectors]:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await vectors
        except TimeoutError:
            raise DeadlineExceeded("The deadline passed before the model had run. Allow more time.") from None
        except NotFinite as error:
            self._metrics.nonfinite_outputs.labels(lane.name).inc()
            raise NonFiniteOutput from error
        except ServiceError:
            raise
        except Exception as error:
            raise Internal from error

    def _respond(
        self, lane: Lane, tokens: Sequence[Tokens], results: list[EncodeResult], timing: Timing
    ) -> EncodeResponse:
        count = sum(map(len, tokens))
        cut = sum(found.truncated for found in tokens)
        self._metrics.request_inputs.observe(len(tokens))
        self._metrics.request_tokens.observe(count)
        if cut:
            self._metrics.truncated_inputs.inc(cut)
        return EncodeResponse(self._manifest.name, lane.precision, results, count, cut, timing)


async def _aside(characters: int, work: Callable[[], Made]) -> Made:
    """Do the work of a large request in a thread, so that the loop turns meanwhile; of a small one at once."""
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def _characters(inputs: Sequence[Input]) -> int:
    """How much there is to do; an id counts as the characters of a usual token."""
    return sum(
        len(item.source.text) + len(item.source.pair or "") + CHARACTERS_PER_TOKEN * len(item.source.token_ids or ())
        for item in inputs
    )


def _estimate_tokens(inputs: Sequence[Input]) -> int:
    return 2 * len(inputs) + _characters(inputs) // CHARACTERS_PER_TOKEN


def _limits(settings: Settings, max_tokens: int) -> Limits:
    return Limits(
        max_inputs=settings.max_inputs,
        max_input_characters=settings.max_characters_per_token * max_tokens,
        max_request_bytes=settings.max_request_bytes,
        max_response_bytes=settings.max_response_bytes,
        max_queue_tokens=settings.max_queue_tokens,
        max_explain_queue_tokens=settings.max_explain_queue_tokens,
        max_deadline_ms=settings.max_deadline_ms,
        header_timeout_ms=settings.header_timeout_ms,
        body_timeout_ms=settings.body_timeout_ms,
    )


def _facts(model: LoadedModel, limits: Limits, settings: Settings) -> ModelFacts:
    manifest, runtime = model.artifact.manifest, model.runtime
    return ModelFacts(
        name=manifest.name,
        aliases=[name.strip() for name in settings.model_aliases.split(",") if name.strip()],
        digest=f"sha256:{model.artifact.digest}",
        source=manifest.source,
        revision=manifest.revision,
        licence=manifest.licence,
        family=manifest.family,
        layer_count=manifest.layers,
        head_count=manifest.heads,
        width=manifest.width,
        output_width=manifest.output_width,
        vocabulary_size=manifest.vocabulary,
        max_tokens=manifest.max_tokens,
        pooling=manifest.pooling,
        normalize=manifest.normalize,
        prompts=manifest.prompts,
        precision=runtime.provider.precision,
        provider=runtime.provider.name,
        row_lengths=list(runtime.row_lengths.lengths),
        layers=list(range(manifest.layers + 1)),
        attention_kinds=[],
        limits=limits,
        version=__version__,
    )
