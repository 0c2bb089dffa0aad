"""The one door inward: validate, admit, tokenise, batch, assemble."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from model.tokenizer import Source, Tokens
from service.config import Settings
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.response import Outline, assemble, listed_bytes, outline, response_bytes, text_work
from service.engine.explain.attend import AttendWork, smaller_answer
from service.engine.explain.compare import CompareWork, Place, compare, comparison_bytes, find_place
from service.engine.explain.units import find_units, word_units
from service.engine.lane import Lane
from service.engine.model_info import limits_of, model_info_of
from service.engine.model_loader import LoadedModel
from service.engine.passage import Passage, aside, characters, estimate_tokens, fit, tokens_of
from service.engine.schema.encode import (
    EncodeRequest,
    EncodeResponse,
    ExplainWork,
    Input,
    Text,
    TextVectors,
    TokenizeRequest,
    TokenizeResponse,
    TokenizeResult,
)
from service.engine.schema.explain import AttendRequest, AttendResponse, CompareRequest, CompareResponse, MapPlan
from service.engine.validation import check_attend, check_compare, check_encode, check_inputs, is_last_alone
from service.errors import DeadlineExceeded, NotFound, ResponseTooLarge
from service.metrics import Metrics


class Engine:
    """Built and started on the event loop that its callers run on."""

    def __init__(self, model: LoadedModel, settings: Settings, metrics: Metrics) -> None:
        self._model = model
        self._manifest = model.artifact.manifest
        self._tokenizer = model.tokenizer
        self._metrics = metrics
        self._limits = limits_of(settings, self._manifest.max_tokens)
        self.info = model_info_of(model, self._limits, settings)
        fast, explain = model.runtime, model.explain
        self._fast: Lane[Text, TextVectors] = Lane("fast", fast, settings.max_queue_tokens, metrics)
        self._explain: Lane[ExplainWork, Any] = Lane(
            "explain", explain, settings.max_explain_queue_tokens, metrics, lambda: self._fast.busy
        )

    async def drain(self) -> None:
        """Return when everything that was taken has been answered."""
        await asyncio.gather(self._fast.batcher.drain(), self._explain.batcher.drain())

    async def close(self) -> None:
        await asyncio.gather(self._fast.batcher.close(), self._explain.batcher.close())

    @property
    def crowded(self) -> bool:
        """Whether requests for the fast lane may well be refused: then it pays to ask `check_room` first."""
        return self._fast.batcher.crowded

    def check_room(self, characters: int) -> None:
        """Raise `QueueFull` or `Unavailable` when the fast lane has no room for a request of so many characters."""
        self._fast.batcher.check_room(tokens_of(characters))

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Vectors of the inputs. Cancelling drops what has not run; raises a `ServiceError` for everything else."""
        self._check_model(request.model)
        max_inputs = request.max_inputs or self._limits.max_inputs
        check_inputs(request.inputs, request.field, max_inputs, self._limits, self._manifest.vocabulary)
        check_encode(request, self._manifest)
        deadline, model = self._deadline(request.deadline), self._model
        last = is_last_alone(request, self._manifest)
        lane: Lane[Any, TextVectors] = self._fast if last else self._explain
        passage = Passage(lane, request.inputs, deadline)
        outlines, vectors = await passage.through(
            partial(self._outline, request), partial(text_work, request, self._manifest, last)
        )
        assembling = partial(assemble, outlines, vectors, request, self._manifest, model.head, model.static)
        results = await passage.aside(assembling)
        count, cut = self._count([found.tokens for found in outlines])
        return EncodeResponse(self._manifest.name, lane.precision, results, count, cut, passage.finish())

    async def attend(self, request: AttendRequest) -> AttendResponse:
        """Attention maps of the inputs. Cancelling and errors as in `encode`."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits.max_inputs, self._limits, self._manifest.vocabulary)
        plan = check_attend(request, self._manifest)
        passage = Passage(self._explain, request.inputs, self._deadline(request.deadline))
        works, results = await passage.through(partial(self._plan_maps, request, plan), list)
        self._count([work.tokens for work in works])
        return AttendResponse(self._manifest.name, self._explain.precision, results, passage.finish())

    async def compare(self, request: CompareRequest) -> CompareResponse:
        """One word in several texts. Cancelling and errors as in `encode`."""
        self._check_model(request.model)
        layers = check_compare(request, self._limits, self._manifest)
        inputs = [Input(Source(text)) for text in {found.text for found in request.occurrences}]
        passage = Passage(self._explain, inputs, self._deadline(request.deadline))
        works, found = await passage.through(partial(self._plan_comparison, request, len(layers)), list)
        compared = await passage.aside(partial(compare, works, found, layers, self._model.static))
        self._count([work.tokens for work in works])
        return CompareResponse(self._manifest.name, self._explain.precision, *compared, passage.finish())

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Tokens and words of the inputs, whole; nothing runs."""
        self._check_model(request.model)
        check_inputs(request.inputs, request.field, self._limits.max_inputs, self._limits, self._manifest.vocabulary)
        with self._fast.batcher.reserve(estimate_tokens(request.inputs)):
            results = await aside(characters(request.inputs), partial(self._describe, request))
        return TokenizeResponse(self._manifest.name, results)

    def _describe(self, request: TokenizeRequest) -> list[TokenizeResult]:
        results, size = [], 0
        for tokens in self._tokenizer.encode([item.source for item in request.inputs]):
            words = words_of(tokens)
            described = describe_tokens(tokens, self._tokenizer.surfaces(tokens), words)
            size += listed_bytes((*described, *words), request.wire)
            self._check_size(size, len(request.inputs), lambda: "Send fewer inputs.")
            results.append(TokenizeResult(len(tokens), described, words))
        return results

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._manifest.name and name not in self.info.aliases:
            raise NotFound(f"model: not served here. The model is {self._manifest.name}.", reason="model_not_found")

    def _deadline(self, asked: float | None) -> float:
        now = time.monotonic()
        latest = now + self._limits.max_deadline_ms / 1000
        if asked is not None and asked <= now:
            raise DeadlineExceeded("The deadline had passed when the request arrived.")
        return latest if asked is None else min(asked, latest)

    def _outline(self, request: EncodeRequest) -> list[Outline]:
        """Tokenise, cut, find words and spans, and refuse what would be too large."""
        plain = request.outputs == ("pooled",) and request.truncation == "error"
        tokens = self._tokenize(request, offsets=not plain)
        outlines = [
            outline(item, found, request, self._tokenizer, f"{request.field}[{index}]")
            for index, (item, found) in enumerate(zip(request.inputs, tokens, strict=True))
        ]
        spelling = 'encoding: "base64"' if request.wire == "json" else 'dtype: "float16"'
        size = response_bytes(outlines, request, self._manifest)
        self._check_size(size, len(outlines), lambda: f"Send fewer inputs, ask for fewer outputs, or {spelling}.")
        return outlines

    def _plan_maps(self, request: AttendRequest, plan: MapPlan) -> list[AttendWork]:
        """Tokenise, cut, find the units, and refuse what would be too large."""
        tokens = self._tokenize(request)
        works = []
        for index, (item, found) in enumerate(zip(request.inputs, tokens, strict=True)):
            units = find_units(item, found, self._tokenizer.surfaces(found), request, f"{request.field}[{index}]")
            works.append(AttendWork(found, units, plan, request, self._model.blocks))
        size = sum(work.response_bytes() for work in works)
        self._check_size(size, len(works), partial(smaller_answer, works, self._limits.max_response_bytes))
        return works

    def _plan_comparison(self, request: CompareRequest, layer_count: int) -> list[CompareWork]:
        """Tokenise each text once, find the occurrences in it, and refuse what would be too large."""
        places: dict[str, dict[int, Place]] = {}
        texts = list(dict.fromkeys(found.text for found in request.occurrences))
        tokens = dict(zip(texts, self._tokenizer.encode([Source(text) for text in texts]), strict=True))
        for index, occurrence in enumerate(request.occurrences):
            found, where = tokens[occurrence.text], f"occurrences[{index}]"
            fit(found, self._manifest.max_tokens, "error", f"{where}.text", "Shorten it.")
            places.setdefault(occurrence.text, {})[index] = find_place(occurrence, found, where)
        works = [
            CompareWork(
                tokens[text],
                word_units(tokens[text], self._tokenizer.surfaces(tokens[text])),
                found,
                request.draws_on,
                self._model.blocks,
            )
            for text, found in places.items()
        ]
        size = comparison_bytes(works, layer_count, request)
        advice = "Send fewer occurrences, or ask for fewer layers."
        self._check_size(size, len(request.occurrences), lambda: advice)
        return works

    def _tokenize(self, request: EncodeRequest | AttendRequest, *, offsets: bool = True) -> list[Tokens]:
        found = self._tokenizer.encode([item.source for item in request.inputs], offsets=offsets)
        limit, truncation, hint = self._manifest.max_tokens, request.truncation, request.too_long_hint
        return [fit(tokens, limit, truncation, f"{request.field}[{index}]", hint) for index, tokens in enumerate(found)]

    def _check_size(self, size: int, inputs: int, advise: Callable[[], str]) -> None:
        limit = self._limits.max_response_bytes
        if size > limit:
            fitting = inputs * limit // size
            room = f" About {fitting} of these {inputs} inputs would fit." if fitting else ""
            raise ResponseTooLarge(f"The answer could take {size} bytes; the limit is {limit}. {advise()}{room}")

    def _count(self, tokens: Sequence[Tokens]) -> tuple[int, int]:
        """Note how much a request asked; returns its tokens and how many of its inputs were cut."""
        count, cut = sum(map(len, tokens)), sum(found.truncated for found in tokens)
        self._metrics.request_inputs.observe(len(tokens))
        self._metrics.request_tokens.observe(count)
        if cut:
            self._metrics.truncated_inputs.inc(cut)
        return count, cut
