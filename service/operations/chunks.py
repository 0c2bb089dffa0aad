"""Chunks: splits long texts into character ranges and returns one vector per range.

In mode "separate", a chunk's vector is the embedding of its text. In mode "late" (Guenther et al. 2024, "Late
chunking", arXiv:2409.04701), the model reads as long a text as it accepts, and a chunk's vector is the mean over its
tokens. Longer texts are read in windows ("long late chunking"). A window starts with the preceding chunks that fit in a
quarter of it, and only its new chunks get vectors.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from attendant_client.types import (
    MAX_CHUNKED_CHARACTERS,
    Chunk,
    ChunkOptions,
    ChunkUnit,
    EncodeRequest,
    EncodeResponse,
    EncodeResult,
    Input,
    Limits,
    TextInputs,
    Usage,
)
from numpy.typing import NDArray
from sentencex import get_sentence_boundaries

from model.artifact.console import LANGUAGE_CODE, USE_LANGUAGE_CODE
from model.artifact.manifest import split_pooling
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from service.engine.engine import Engine
from service.engine.sides import max_tokens
from service.engine.vectors import finish_pooled
from service.errors import (
    ConflictingFields,
    Empty,
    InvalidFormat,
    MissingField,
    OutOfRange,
    ServiceError,
    TooLong,
    TooMany,
)
from service.operations.encode import LAST_LAYER, POOLED, check_encode, encode, pooled_bytes, pooled_vectors
from service.operations.inputs import (
    DESCRIBED_CHARACTER,
    ELEMENTS,
    INPUT,
    RESULT_BYTES,
    SPLIT,
    Call,
    Wire,
    check_count,
    check_span,
    check_text,
    count_prompt,
    listed_bytes,
    no_room,
    prompt_bytes,
    select_prompt,
    too_many,
)
from service.spelling import Change, Remedy, join, named, use_range

Level = Literal["paragraph", "sentence", "word", "token"]
LEVELS: dict[ChunkUnit, tuple[Level, ...]] = {
    "paragraph": ("paragraph", "sentence", "word", "token"),
    "sentence": ("sentence", "word", "token"),
    "token": ("word", "token"),
}
"""The levels of units per chunk unit. A unit that is too long is split into units of the next level."""
UNUSED: dict[ChunkUnit, tuple[str, ...]] = {
    "token": ("merge",),
    "span": ("max_tokens", "overlap_tokens", "merge"),
}
"""The options that have no effect, by chunk unit."""
DEFAULT_TOKENS = 256
BLOCK = 16_384
"""Number of characters per tokenizer call, to limit the tokens in memory."""
SENTENCES = 2048
"""Number of characters per call of the sentence splitter. In some scripts, its run time is quadratic."""
CONTEXT = 4
"""A late-chunking window repeats at most 1 / `CONTEXT` of its length from the previous window."""
SPLIT_CHARACTER = 3
"""The cost per character of finding units and counting tokens."""

_PARAGRAPH_END = re.compile(r"\n\s*\n|\u2029")
_WORD = re.compile(r"\S+")


class Range(NamedTuple):
    """The characters [start, end) of a text and the tokens [first, last) in them."""

    start: int
    end: int
    first: int
    last: int


class Room(NamedTuple):
    """The number of tokens of a text that fit in a model input after a prompt."""

    tokens: int
    prompt: str


Excess = Callable[[Range, Range], int]
"""Returns by how many tokens the text from one range to another exceeds the model's limit."""


class Window(NamedTuple):
    """Consecutive items [start, last). Items before `new` repeat the end of the previous window."""

    start: int
    new: int
    last: int


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a request and its chunks."""

    text: str
    chunks: list[Range]
    windows: list[Window]
    """The windows over the chunks in mode "late"; empty if the chunks are encoded separately."""

    @property
    def texts(self) -> list[Chunk]:
        """The chunks of the response."""
        return [
            Chunk(self.text[chunk.start : chunk.end], chunk.start, chunk.end, chunk.last - chunk.first)
            for chunk in self.chunks
        ]


def encode_any(engine: Engine, request: EncodeRequest, call: Call) -> Awaitable[EncodeResponse]:
    """Return embeddings of the inputs: pooled, of tokens, words or spans, static; or one per chunk."""
    if request.chunks is None:
        return encode(engine, request, call)
    return encode_chunks(engine, request, request.chunks, call)


async def encode_chunks(engine: Engine, request: EncodeRequest, options: ChunkOptions, call: Call) -> EncodeResponse:
    """Return one vector per chunk of each text."""
    call.deadline = deadline = call.start(engine)
    bare = _check_request(engine, request, options, call)
    room = await _find_room(engine, request, deadline)
    options = _check_options(options, room.tokens)
    characters = sum([len(item.text or "") for item in request.inputs])
    cost = (SPLIT_CHARACTER + DESCRIBED_CHARACTER) * characters + INPUT * len(request.inputs)
    documents = await engine.run(cost, deadline, _split_inputs, engine, request.inputs, options, room)
    _check_size(engine, bare, call, documents)
    separate = [index for index, item in enumerate(documents) if not item.windows]
    late = [index for index, item in enumerate(documents) if item.windows]
    results: list[EncodeResult | None] = [None] * len(documents)
    responses = []
    for places, vectors_of in ((separate, _encode_separately), (late, _encode_late)):
        if not places:
            continue
        response, vectors = await vectors_of(engine, bare, call, [documents[index] for index in places], places)
        responses.append(response)
        done = read = 0
        for index in places:
            document = documents[index]
            own = vectors[done : (done := done + len(document.chunks))]
            inputs = response.results[read : (read := read + len(document.windows or document.chunks))]
            results[index] = _result(document, sum([item.token_count for item in inputs]), own, bare)
    usage = Usage(sum([item.usage.tokens for item in responses]))
    return replace(responses[0], results=results, usage=usage)  # type: ignore[arg-type]  # every place is set


# Checks


def _check_request(engine: Engine, request: EncodeRequest, options: ChunkOptions, call: Call) -> EncodeRequest:
    """Check everything but the texts' tokens; return the request without inputs and chunks."""
    if tuple(request.outputs) != POOLED:
        raise ConflictingFields(
            "not supported with chunks", f"Use {named('outputs', 'pooled')} alone.", field="outputs"
        )
    if not LANGUAGE_CODE.fullmatch(options.language):
        raise InvalidFormat("not a language code", f"{USE_LANGUAGE_CODE}.", field="chunks.language")
    check_count(len(request.inputs), "inputs", call.max_inputs or engine.limits.max_inputs)
    for index, item in enumerate(request.inputs):
        _check_input(item, options, f"inputs[{index}]", engine.limits)
    bare = check_encode(replace(request, inputs=(), chunks=None), engine.manifest)
    if options.mode == "late" and (pooling := request.pooling or engine.manifest.embedding.pooling) != "mean":
        parts, separate = split_pooling(pooling), f"Use {named('mode', 'separate')}"
        replaced = "." if len(parts) > 1 else f", or set pooling to {named('pooling', 'mean')}."
        raise ConflictingFields(
            f"{named('mode', 'late')} takes means of tokens, and the pooling is "
            f"{join([named('pooling', part) for part in parts])}",
            f"{separate}{replaced}",
            field="chunks.mode",
        )
    return bare


def _check_input(item: Input, options: ChunkOptions, path: str, limits: Limits) -> None:
    for name in ("token_ids", "pair"):
        if getattr(item, name) is not None:
            raise ConflictingFields("not supported with chunks", "Send a text alone.", field=f"{path}.{name}")
    if item.text is None:
        raise MissingField("missing", "Send a text.", field=f"{path}.text")
    check_text(item.text, path, MAX_CHUNKED_CHARACTERS, SPLIT)
    field, by_span = f"{path}.spans", named("by", "span")
    if options.by == "span":
        if not item.spans:
            raise MissingField(f"missing, but chunks.by is {by_span}", "Send spans.", field=field)
        _check_spans(item.spans, field, len(item.text), limits)
    elif item.spans:
        raise ConflictingFields(f"set, but chunks.by is not {by_span}", "Set it or remove spans.", field=field)


def _check_spans(spans: Sequence[tuple[int, int]], field: str, characters: int, limits: Limits) -> None:
    if len(spans) > limits.max_spans_per_input:
        raise too_many(field, "spans", len(spans), limits.max_spans_per_input)
    for number, span in enumerate(spans):
        check_span(span, f"{field}[{number}]", characters)
    for number, (before, after) in enumerate(pairwise(spans), start=1):
        if after[0] < before[0] or after[1] < before[1]:
            raise OutOfRange("before the previous span", "Sort the spans.", field=f"{field}[{number}]")


async def _find_room(engine: Engine, request: EncodeRequest, deadline: float) -> Room:
    """Return the room for text in a model input."""
    manifest = engine.manifest
    limit = max_tokens(manifest, None, request.role) if request.role is not None else manifest.max_input_tokens
    inputs = request.inputs
    prompt = select_prompt(inputs, request.prompt_name, request.prompt, engine.limits, manifest, request.role)
    used = 0 if prompt is None else await count_prompt(engine, prompt, len(inputs), deadline)
    (empty,) = engine.tokenizer.encode([TokenizerInput("")], offsets=False)
    room = limit - len(empty) - used
    if room < 1:
        raise no_room(used, limit - len(empty), "prompt" if request.prompt_name is None else "prompt_name")
    return Room(room, "" if prompt is None else prompt.text)


def _check_options(options: ChunkOptions, room: int) -> ChunkOptions:
    """Check the token limits; return the options with `max_tokens` filled in."""
    defaults = ChunkOptions()
    for name in UNUSED.get(options.by, ()):
        if getattr(options, name) != getattr(defaults, name):
            problem = f"set, but chunks.by is {named('by', options.by)}"
            raise ConflictingFields(problem, "Leave it out.", field=f"chunks.{name}")
    if options.by == "span":
        return replace(options, max_tokens=room)
    # Windows repeat this much preceding text, so late chunks up to this size always get some context.
    largest = max(1, room // CONTEXT) if options.mode == "late" else room
    size = min(DEFAULT_TOKENS, largest) if options.max_tokens is None else options.max_tokens
    if not 1 <= size <= room:
        raise OutOfRange(
            "out of range",
            f"{use_range(1, room)[:-1]}, as many as the model reads at once.",
            field="chunks.max_tokens",
            actual=size,
            minimum=1,
            maximum=room,
        )
    if not 0 <= options.overlap_tokens <= size // 2:
        raise OutOfRange(
            "out of range", f"Use 0 to {size // 2}, half of a chunk.",
            field="chunks.overlap_tokens", actual=options.overlap_tokens, minimum=0, maximum=size // 2,
        )  # fmt: skip
    return replace(options, max_tokens=size)


def _check_size(engine: Engine, request: EncodeRequest, call: Call, documents: Sequence[Document]) -> None:
    """Reserve memory for the response. Raises `ResponseTooLarge`."""
    limit, count = engine.limits.max_response_bytes, sum([len(item.chunks) for item in documents])
    texts = sum([listed_bytes(item.texts, call.wire) for item in documents])
    prompt = select_prompt(
        request.inputs, request.prompt_name, request.prompt, engine.limits, engine.manifest, request.role
    )

    def size(smaller: EncodeRequest, wire: Wire) -> int:
        vectors = count * pooled_bytes(smaller, replace(call, wire=wire), engine.manifest)
        return RESULT_BYTES * len(documents) + texts + vectors + prompt_bytes(prompt, wire)

    def suggest() -> Remedy:
        changes: list[Change] = []
        if call.wire == "json" and size(request, "base64") <= limit:
            changes.append({"encoding_format": "base64"})
        if request.dtype == "float32" and size(replace(request, dtype="float16"), call.wire) <= limit:
            changes.append({"dtype": "float16"})
        return Remedy("Send fewer or shorter texts", changes)

    engine.check_response_size(size(request, call.wire), len(documents), suggest)


# Splitting


def _split_inputs(engine: Engine, inputs: Sequence[Input], options: ChunkOptions, room: Room) -> list[Document]:
    """Return the texts with their chunks. Raises `Empty`, `TooLong` and `TooMany`."""
    documents, count, limit = [], 0, engine.limits.max_spans_per_request
    for index, item in enumerate(inputs):
        document = split(item.text or "", item.spans, options, room, engine.tokenizer, f"inputs[{index}]")
        documents.append(document)
        count += (own := len(document.chunks))
        if own > limit:
            remedy = "Use longer chunks, or split the text."
            raise TooMany("too many chunks", remedy, field=f"inputs[{index}]", actual=own, maximum=limit)
        if count > limit:
            raise TooMany("too many chunks", "Split the request.", field="chunks", actual=count, maximum=limit)
    return documents


def split(
    text: str, spans: Sequence[tuple[int, int]], options: ChunkOptions, room: Room, tokenizer: Tokenizer, path: str
) -> Document:
    """Split a text into chunks."""
    limit, prompt = room
    tokens = find_tokens(text, tokenizer)
    if not tokens.starts.size:
        raise Empty("no content after tokenization", "Send text.", field=path)
    assert options.max_tokens is not None

    (empty,) = tokenizer.encode([TokenizerInput(prompt)], offsets=False)

    def excess(first: Range, last: Range) -> int:
        """Return by how many tokens a chunk or window, tokenized with the prompt, exceeds the model's limit."""
        if last.last - first.first <= limit // 2:
            return 0
        (alone,) = tokenizer.encode([TokenizerInput(text[first.start : last.end], prompt=prompt)], offsets=False)
        return max(0, len(alone) - len(empty) - limit)

    if options.by == "span":
        chunks = tokens.ranges(spans)
        for number, chunk in enumerate(chunks):
            field = f"{path}.spans[{number}]"
            if chunk.first == chunk.last:
                raise Empty("no token is assigned to this span", "Move or remove the span.", field=field)
            if excess(chunk, chunk):
                size = chunk.last - chunk.first
                raise TooLong("too long", "Use shorter spans.", field=field, actual=size, maximum=limit, unit="tokens")
    else:
        units, groups = _find_units(text, tokens, options, excess)
        packed = pack(units, options.max_tokens, options.overlap_tokens, excess, groups)
        chunks = [_join(units[window.start], units[window.last - 1]) for window in packed]
    if options.mode == "separate" or len(chunks) == 1:
        return Document(text, chunks, [])
    return Document(text, chunks, pack(chunks, limit, limit // CONTEXT, excess, [0] * len(chunks)))


@dataclass(frozen=True, slots=True)
class Tokens:
    """The start and end of each token in a text, ascending, (T,)."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def ranges(self, bounds: Sequence[tuple[int, int]]) -> list[Range]:
        """Return character ranges with the tokens that overlap them."""
        starts, ends = np.asarray(bounds, np.int64).reshape(-1, 2).T
        first = np.searchsorted(self.ends, starts, side="right")
        last = np.maximum(first, np.searchsorted(self.starts, ends))
        return list(map(Range, starts.tolist(), ends.tolist(), first.tolist(), last.tolist()))


def find_tokens(text: str, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of a text, except special tokens and tokens that cover no characters."""
    found = [np.zeros((0, 2), np.int64)]
    for start, end in _blocks(text):
        (tokens,) = tokenizer.encode([TokenizerInput(text[start:end])], offsets=True)
        offsets = np.asarray(tokens.offsets, np.int64).reshape(-1, 2)
        found.append(start + offsets[offsets[:, 0] < offsets[:, 1]])
    return Tokens(*np.maximum.accumulate(np.concatenate(found), axis=0).T)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of about `BLOCK` characters, split before a space if possible."""
    start = 0
    while start < len(text):
        end = min(len(text), start + BLOCK)
        if end < len(text):
            spaces = (text.rfind(space, start + BLOCK // 2, end) for space in "\n ")
            end = next((place for place in spaces if place > 0), end)
        yield start, end
        start = end


def _join(first: Range, last: Range) -> Range:
    return Range(first.start, last.end, first.first, last.last)


def _find_units(text: str, tokens: Tokens, options: ChunkOptions, excess: Excess) -> tuple[list[Range], list[int]]:
    """Return the units of a text and each unit's group. Only units of the same group may share a chunk."""
    units, groups = [], []
    levels = LEVELS[options.by]
    (whole,) = tokens.ranges([(0, len(text))])
    for group, unit in enumerate(_units_of(levels[0], text, whole, tokens, options)):
        for part in _shorten(unit, levels, text, tokens, options, excess):
            units.append(part)
            groups.append(0 if options.merge else group)
    return units, groups


def _shorten(
    unit: Range, levels: tuple[Level, ...], text: str, tokens: Tokens, options: ChunkOptions, excess: Excess
) -> Iterator[Range]:
    """Yield the unit, or split it by the next levels until each part fits and has at most `max_tokens` tokens."""
    is_short = unit.last - unit.first <= (options.max_tokens or 0) and not excess(unit, unit)
    if is_short or len(levels) == 1:
        yield unit
        return
    for part in _units_of(levels[1], text, unit, tokens, options):
        yield from _shorten(part, levels[1:], text, tokens, options, excess)


def _units_of(level: Level, text: str, of: Range, tokens: Tokens, options: ChunkOptions) -> list[Range]:
    """Return the units of a level in a range, stripped of whitespace. Units without tokens are omitted."""
    ranges: Iterable[tuple[int, int]]
    if level == "paragraph":
        ends = [match.span() for match in _PARAGRAPH_END.finditer(text, of.start, of.end)]
        ranges = zip([of.start, *(end for _, end in ends)], [*(start for start, _ in ends), of.end], strict=True)
    elif level == "sentence":
        ranges = _sentences(text, of.start, of.end, options.language)
    elif level == "word":
        ranges = (match.span() for match in _WORD.finditer(text, of.start, of.end))
    else:  # tokens that share a character stay together
        places = np.unique(tokens.starts[of.first : of.last]).tolist()
        ranges = pairwise([of.start, *places[1:], of.end])
    trimmed = []
    for start, end in ranges:
        part = text[start:end]
        first = start + len(part) - len(part.lstrip())
        trimmed.append((first, first + len(part.strip())))
    return [unit for unit in tokens.ranges(trimmed) if unit.first < unit.last]


def _sentences(text: str, start: int, end: int, language: str) -> Iterator[tuple[int, int]]:
    size = SENTENCES
    while start < end:
        stop = min(end, start + size)
        found = get_sentence_boundaries(language, text[start:stop])
        if stop < end:
            found = found[:-1]  # the last sentence may continue
        if not found:
            size *= 2
            continue
        for sentence in found:
            yield start + sentence["start_index"], start + sentence["end_index"]
        start += found[-1]["end_index"]
        size = SENTENCES


def pack(items: Sequence[Range], limit: int, overlap: int, excess: Excess, groups: Sequence[int]) -> list[Window]:
    """Pack consecutive items of the same group into windows of at most `limit` tokens.

    An item over the limit gets a separate window. A window begins by repeating the preceding items, of any group, that
    fit in `overlap` tokens and leave room for the next item. A window of several items may have more tokens when
    tokenized separately; if so, `excess` returns the surplus, and the limit is lowered for all windows.
    """
    while True:
        windows = _pack(items, limit, overlap, groups)
        lower = limit
        for window in windows:
            first, last = items[window.start], items[window.last - 1]
            if window.last - window.start > 1 and (over := excess(first, last)):
                lower = min(lower, last.last - first.first - over)
        if lower == limit:
            return windows
        limit = lower


def _pack(items: Sequence[Range], limit: int, overlap: int, groups: Sequence[int]) -> list[Window]:
    windows, start, new = [], 0, 0
    while new < len(items):
        while start < new and items[new].last - items[start].first > limit:
            start += 1
        last = new + 1
        while last < len(items) and groups[last] == groups[new] and items[last].last - items[start].first <= limit:
            last += 1
        windows.append(Window(start, new, last))
        start = new = last
        while new < len(items) and start > 0 and items[last - 1].last - items[start - 1].first <= overlap:
            start -= 1
    return windows


# Vectors


async def _encode_separately(
    engine: Engine, request: EncodeRequest, call: Call, documents: Sequence[Document], places: Sequence[int]
) -> tuple[EncodeResponse, NDArray[Any]]:
    """Encode each chunk separately; return the response and the vectors of all chunks, (C, ...)."""
    owners = [place for place, document in zip(places, documents, strict=True) for _ in document.chunks]
    inputs = TextInputs([item.text[chunk.start : chunk.end] for item in documents for chunk in item.chunks])
    response = await _encode(engine, replace(request, inputs=inputs), call, owners)
    return response, pooled_vectors(response)


async def _encode_late(
    engine: Engine, request: EncodeRequest, call: Call, documents: Sequence[Document], places: Sequence[int]
) -> tuple[EncodeResponse, NDArray[Any]]:
    """Encode the texts window by window; return the response and the vectors of all chunks, (C, ...)."""
    owners, inputs = [], []
    for place, document in zip(places, documents, strict=True):
        for window in document.windows:
            start, end = document.chunks[window.start].start, document.chunks[window.last - 1].end
            new = document.chunks[window.new : window.last]
            spans = tuple([(chunk.start - start, chunk.end - start) for chunk in new])
            owners.append(place)
            inputs.append(Input(document.text[start:end], spans=spans))
    spans_only = replace(
        request, inputs=tuple(inputs), outputs=("spans",), pooling=None, normalize=None, dimensions=None,
        dtype="float32", layer_reduce="stack",
    )  # fmt: skip
    response = await _encode(engine, spans_only, call, owners)
    means: Any = [item.span_vectors for item in response.results]
    pooled = np.concatenate([item[None] if item.ndim == 2 else item for item in means], axis=1)  # (layers, C, D)
    vectors = await engine.run(
        pooled.size // ELEMENTS, call.start(engine), finish_pooled, pooled, engine.manifest.embedding,
        engine.dense_layers, last_layer_only=request.layers == LAST_LAYER, layer_reduce=request.layer_reduce,
        dimensions=request.dimensions, normalize_vectors=request.normalize, dtype=request.dtype,
    )  # fmt: skip
    return response, vectors


async def _encode(engine: Engine, request: EncodeRequest, call: Call, owners: Sequence[int]) -> EncodeResponse:
    """Encode chunks or windows as inputs. Errors name the text in `owners` that each belongs to."""
    inner = replace(call, max_inputs=len(request.inputs), wire="binary")  # smaller than the checked response
    try:
        response = await encode(engine, request, inner)
    except ServiceError as error:
        match = re.match(r"inputs\[(\d+)\]", error.field or "")
        if match is not None:
            error.field = f"inputs[{owners[int(match[1])]}]"
        raise
    call.timing = inner.timing
    return response


def _result(document: Document, tokens: int, vectors: NDArray[Any], request: EncodeRequest) -> EncodeResult:
    if request.layer_reduce == "stack" and vectors.ndim == 3:
        vectors = np.ascontiguousarray(vectors.swapaxes(0, 1))  # (layers, C, D)
    return EncodeResult(tokens, False, chunks=document.texts, chunk_vectors=vectors)
