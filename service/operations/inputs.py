"""Code shared by operations: the call; validation of inputs, layers and prompts; limits, costs, response sizes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import Literal, Protocol, TypeVar, get_args

from attendant_client.types import (
    DTYPES,
    MAX_OCCURRENCES,
    ClassifyRequest,
    Dtype,
    Input,
    LabelEffect,
    LayerOutput,
    Limits,
    MapDtype,
    ModelInfo,
    Operation,
    Output,
    RerankRequest,
    Role,
    SimilarityUnit,
    TextInputs,
    Truncation,
)

from model.artifact.manifest import Absent, Manifest, TruncationSide
from model.artifact.tokenizer import TokenizedInput, TokenizerInput
from service.engine.engine import Engine
from service.engine.lane import Timing
from service.engine.scheduling import CHARACTERS_PER_TOKEN, SPECIAL_TOKENS
from service.engine.tasks import make_tuples
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    InvalidArgument,
    MissingField,
    NotFound,
    OutOfRange,
    RequestTooLarge,
    TooLong,
    TooMany,
    UnknownField,
    UnsupportedByModel,
    echo,
)
from service.request_log import current_record
from service.spelling import Remedy, join, named

PartT = TypeVar("PartT")
Wire = Literal["json", "base64", "binary"]

MAX_LISTED_INPUTS = 2048
"""Maximum inputs per embedding request in APIs whose clients send whole lists; OpenAI's limit."""
EFFECT_UNIT: SimilarityUnit = "word"
"""Default unit of effects."""
MAX_TARGETS = 100
MAX_LABELS = 100
LIST_REMEDIES = {
    **dict.fromkeys(("inputs", "documents", "occurrences", "spans_per_request"), "Split the request."),
    "token_ids": "Shorten the input.",
}
SHORTEN = Remedy("Shorten it")
SPLIT = Remedy("Split the text")
SPLIT_NOT_TRUNCATED = replace(
    SPLIT,
    hint="Truncation does not apply to this limit.",
    if_cut=replace(SHORTEN, changes=({"truncation": "right"},)),
)
SPLIT_OR_CHUNKS = replace(SPLIT_NOT_TRUNCATED, changes=({"chunks.by": "sentence"},))
"""Remedies for a text over the character limit, in operations without and with truncation."""
USE_ANOTHER = "Use another model."
REMEDIES: dict[Operation, str] = {
    "rerank": "Use a cross-encoder or an embedding model.",
    "classify": "Use a classifier.",
    "token_classify": "Use a token classifier.",
    "fill_mask": "Use a masked language model.",
}
"""The kind of model that supports each operation that needs a head."""
MAX_OCCLUDED_SEQUENCES = 4096
"""Maximum number of sequences in a request with effect "occlusion".

Scheduling takes about 10 microseconds per sequence on the event loop, so this limit caps it at about 40 ms.
"""

# Costs of work outside of inference, which decide whether it runs on the event loop or in a thread. One unit is the
# time to tokenize one character, 0.25 us on AMD Zen 5 and 0.5 us on an AMD EPYC with AVX2 (all-MiniLM-L6-v2). The
# factors are measured and rounded up: every kind of request within `INLINE_COST` holds the event loop for at most 1 ms.
INPUT = 48
"""Tokenizing an input, and building its result."""
DESCRIBED_CHARACTER = 8
"""A character of an input whose tokens, words or units are listed, at worst one token per two characters."""
OUTPUT = 160
"""An array of vectors per input, or a mean over words or spans per layer."""
ELEMENTS = 20
"""Elements of output arrays per unit."""
SPAN = 8
PAIR = 4
"""A pair of occurrences in one layer."""

# Upper bounds on sizes in a response, in bytes. JSON takes at most 12 per character (two \u escapes).
JSON_VALUE_BYTES: dict[Dtype | MapDtype, int] = {"float32": 16, "float16": 16, "int8": 5, "ubinary": 4}
JSON_CHARACTER_BYTES = 12
TOKEN_BYTES = 128
RESULT_BYTES = 512


# The call of an operation


@dataclass(slots=True)
class Call:
    """One call of an operation.

    Attributes:
        deadline: A time.monotonic() reading; None selects the maximum timeout.
        wire: The encoding of arrays in the response, which determines its size.
        max_inputs: Overrides the maximum number of inputs, for APIs with a different limit.
        padded: Whether all inputs are padded to the longest one in the response, which then contains only arrays.
        returned_bytes: The number of bytes that the API adapter adds to the response.
        timing: Stage durations, set when the operation finishes.
    """

    deadline: float | None = None
    wire: Wire = "json"
    max_inputs: int | None = None
    padded: bool = False
    returned_bytes: int = 0
    timing: Timing = Timing(0.0, 0.0, 0.0)  # noqa: RUF009  # immutable

    def start(self, engine: Engine) -> float:
        """Return the deadline, at most the maximum timeout from now. Call it when the request arrives."""
        now = time.monotonic()
        latest = now + engine.limits.max_timeout_ms / 1000
        if self.deadline is None:
            return latest
        if (record := current_record()) is not None:
            record.timeout_s = self.deadline - now
        return min(self.deadline, latest)


# Lists and inputs


@dataclass(frozen=True, slots=True)
class AppliedPrompt:
    """The text that was prepended to each text; `name` is None for a prompt text in the request."""

    name: str | None
    text: str


NO_PROMPT = AppliedPrompt(None, "")


def item_limits(infos: Sequence[ModelInfo]) -> dict[str, int]:
    """Return the maximum number of items of each list in a request to one of these models."""
    limits = infos[0].limits
    return {
        "inputs": limits.max_inputs,
        "documents": limits.max_documents,
        "spans": limits.max_spans_per_input,
        "spans_per_request": limits.max_spans_per_request,
        "token_ids": max(info.limits.max_input_characters for info in infos),
        "occurrences": MAX_OCCURRENCES,
        "layers": max(info.num_hidden_layers + 1 for info in infos),
        "heads": max(info.num_attention_heads for info in infos),
        "outputs": len(get_args(Output)),
        "layer_outputs": len(get_args(LayerOutput)),
        "rows": max(info.max_input_tokens for info in infos),
        "targets": MAX_TARGETS,
        "labels": MAX_LABELS,
    }


def too_many(field: str, name: str, actual: int, limit: int) -> InvalidArgument | RequestTooLarge:
    """Return the error for a list over its limit; `name` is its key in `item_limits`."""
    problem = "too many spans in the request" if name == "spans_per_request" else "too many items"
    remedy = LIST_REMEDIES.get(name, "Remove some.")
    if name == "token_ids":
        return RequestTooLarge(problem, remedy, field=field, actual=actual, maximum=limit, reason="TOO_LONG")
    return TooMany(problem, remedy, field=field, actual=actual, maximum=limit)


def cut(text: str, truncation: Truncation, info: ModelInfo) -> str:
    """Return a text, cut to the engine's character limit if it may be truncated."""
    limit = info.limits.max_input_characters
    if truncation == "error" or len(text) <= limit:
        return text
    side = info.truncation_side if truncation == "auto" else truncation
    return text[:limit] if side == "right" else text[-limit:]


def check_inputs(
    inputs: Sequence[Input],
    limits: Limits,
    manifest: Manifest,
    max_inputs: int | None = None,
    split: Remedy = SPLIT_NOT_TRUNCATED,
    *,
    spans: bool = False,
) -> None:
    """Check the number of inputs, and each input's size, ids and spans.

    `max_inputs` overrides the limit; `split` is as in `check_text`. Pairs cannot be split into chunks. Without `spans`,
    inputs with spans are rejected.
    """
    check_count(len(inputs), "inputs", max_inputs or limits.max_inputs)
    max_characters = limits.max_input_characters
    if isinstance(inputs, TextInputs):
        texts = inputs.texts
        if max(map(len, texts)) <= max_characters and all(texts) and not any(map(str.isspace, texts)):
            return
    count = sum(len(item.spans) for item in inputs)
    if count > limits.max_spans_per_request:
        raise too_many("inputs", "spans_per_request", count, limits.max_spans_per_request)
    if split is SPLIT_OR_CHUNKS and any(item.pair is not None for item in inputs):
        split = SPLIT_NOT_TRUNCATED
    for index, item in enumerate(inputs):
        path = f"inputs[{index}]"
        if len(item.spans) > limits.max_spans_per_input:
            raise too_many(f"{path}.spans", "spans", len(item.spans), limits.max_spans_per_input)
        if item.spans and not spans:
            raise UnknownField("not supported here", "Remove it.", field=f"{path}.spans")
        if item.token_ids is None:
            _check_text_input(item, path, max_characters, split)
        else:
            _check_ids_input(item, path, limits, manifest)


def check_count(count: int, field: str, limit: int) -> None:
    """Check the number of items of a request."""
    if not count:
        raise Empty("empty", "Send at least one item.", field=field)
    if count > limit:
        raise TooMany("too many items", "Split the request.", field=field, actual=count, maximum=limit)


def _check_ids_input(item: Input, path: str, limits: Limits, manifest: Manifest) -> None:
    for name, value in (("text", item.text), ("pair", item.pair)):
        if value is not None:
            raise ConflictingFields(f"{name} and token_ids are both set", "Send one of them.", field=path)
    check_token_ids(item.token_ids or (), f"{path}.token_ids", limits, manifest)
    if item.spans:
        raise ConflictingFields("not supported with token_ids", "Send text.", field=f"{path}.spans")


def _check_text_input(item: Input, path: str, max_characters: int, split: Remedy) -> None:
    if item.text is None:
        raise MissingField("text and token_ids are both missing", "Send one of them.", field=path)
    check_text(item.text, path, max_characters, split)
    if item.pair is not None:
        check_text(item.pair, f"{path}.pair", max_characters, split)
    for number, span in enumerate(item.spans):
        check_span(span, f"{path}.spans[{number}]", len(item.text))


def check_text(text: str, path: str, max_characters: int, split: Remedy) -> None:
    """Check the size of a text, and that it is not blank; `split` is the remedy for too many characters."""
    if len(text) > max_characters:
        raise RequestTooLarge(
            "too many characters", split, field=path, actual=len(text), maximum=max_characters, reason="TOO_LONG"
        )
    if not text or text.isspace():
        raise Empty("empty or blank", "Send text.", field=path)


def check_span(span: tuple[int, int], path: str, characters: int) -> None:
    """Check a span in a text of this many characters."""
    start, end = span
    if end > characters:
        raise OutOfRange(
            "ends after the text", "Use character offsets, not bytes.",
            field=path, actual=end, maximum=characters, unit="characters",
        )  # fmt: skip
    if not 0 <= start < end:
        raise OutOfRange("empty or negative range", "Send offsets with 0 <= start < end.", field=path)


def check_token_ids(ids: Sequence[int], path: str, limits: Limits, manifest: Manifest) -> None:
    """Check the number of token ids, and that all are in the vocabulary."""
    last, max_ids = manifest.architecture.vocab_size - 1, limits.max_input_characters
    if not ids:
        raise Empty("empty", "Send at least one id.", field=path)
    if len(ids) > max_ids:
        raise RequestTooLarge(
            "too many items", "Shorten the input.", field=path, actual=len(ids), maximum=max_ids, reason="TOO_LONG"
        )
    smallest, largest = min(ids), max(ids)
    if smallest < 0 or largest > last:
        raise OutOfRange(
            "id outside of the vocabulary", f"Use ids from 0 to {last}.",
            field=path, actual=smallest if smallest < 0 else largest, minimum=0, maximum=last,
        )  # fmt: skip


def resolve_layers(layers: Sequence[int] | Literal["all"], manifest: Manifest, first: int = 0) -> tuple[int, ...]:
    """Return layers as 0..L; negative layers count from the end. Raises a `ServiceError` for layers below `first`."""
    if layers == "all":
        return tuple(range(first, manifest.architecture.num_hidden_layers + 1))
    if not layers:
        raise Empty("empty", "Leave it out or name at least one.", field="layers")
    last = manifest.architecture.num_hidden_layers
    lowest = first - last - 1
    for index, layer in enumerate(layers):
        if not (first <= layer <= last or lowest <= layer <= -1):
            raise OutOfRange(
                "out of range", f"Use {first} to {last}, or {lowest} to -1 from the end.",
                field=f"layers[{index}]", actual=layer, minimum=lowest, maximum=last,
            )  # fmt: skip
    numbers = tuple([layer % (last + 1) for layer in layers])
    if len(numbers) > 1 and len(set(numbers)) < len(numbers):
        raise Duplicate("contains the same layer twice", "Remove one.", field="layers")
    return numbers


def require(part: PartT | Absent, problem: str, field: str | None = None) -> PartT:
    """Return an optional part of a model. Raises `UnsupportedByModel` with the reason if it is missing."""
    if isinstance(part, Absent):
        raise UnsupportedByModel(f"{problem} ({part.reason})", part.remedy, field=field)
    return part


def require_operation(engine: Engine, operation: Operation) -> None:
    """Raise `UnsupportedByModel` if the model does not support an operation."""
    supported = engine.info.operations
    if operation not in supported:
        raise UnsupportedByModel(
            f"Operation {named('operation', operation)} is not supported for this model",
            f"It supports {join([named('operation', name) for name in supported])}. "
            f"{REMEDIES.get(operation, USE_ANOTHER)}",
            actual=operation,
        )


def check_at_least_one(field: str, value: int | None) -> None:
    """Raise `OutOfRange` for a number of items below 1."""
    if value is not None and value < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field=field, actual=value, minimum=1)


def check_length(  # noqa: PLR0913  # the limit, and what an error may suggest
    tokens: TokenizedInput,
    manifest: Manifest,
    truncation: Truncation | None,
    path: str,
    prompt_field: str = "prompt",
    limit: int | None = None,
    *,
    may_split: bool = False,
    keep_pair: bool = False,
) -> TokenizedInput:
    """Return the tokens, truncated if requested. Raises `Empty` if there is no content, and `TooLong` over the limit.

    `truncation` is None for operations that do not truncate. `limit` defaults to the limit for inputs without a role.
    `may_split`: whether the operation can split the input into chunks. `keep_pair`: truncate only the first text.
    """
    if not tokens.has_content:
        raise Empty("no content after tokenization", "Send text.", field=path)
    limit = manifest.max_input_tokens if limit is None else limit
    if len(tokens) <= limit:
        return tokens
    end = truncation if truncation in ("left", "right") else manifest.truncation_side
    truncated = tokens.truncate(limit, end, keep_pair=keep_pair)
    if len(truncated) > limit or not truncated.has_content:  # truncation keeps prompt tokens
        first, last = tokens.prompt_range
        raise no_room(last - first, limit - (len(truncated) - (last - first)), prompt_field)
    if truncation is None or truncation == "error":
        remedy = SHORTEN if truncation is None else shorten(manifest.truncation_side)
        if may_split:
            remedy = replace(remedy, changes=(*remedy.changes, {"chunks.by": "sentence"}))
        raise TooLong("too long", remedy, field=path, actual=len(tokens), maximum=limit, unit="tokens")
    return truncated


def shorten(side: TruncationSide) -> Remedy:
    """Return the remedy for an input over the token limit: shorten it, or truncate it at this side."""
    return replace(SHORTEN, changes=({"truncation": side},))


def no_room(prompt_tokens: int, limit: int, field: str) -> TooLong:
    """Return the error for a prompt that leaves no room for text. `limit`: for the prompt and at least one token."""
    return TooLong(
        "leaves no room for text", "Use a shorter prompt.",
        field=field, actual=prompt_tokens, maximum=max(0, limit - 1), unit="tokens",
    )  # fmt: skip


def select_prompt(
    inputs: Sequence[Input],
    name: str | None,
    text: str | None,
    limits: Limits,
    manifest: Manifest,
    role: Role | None = None,
) -> AppliedPrompt | None:
    """Return the request's prompt, else the role's prompt, or without a role the default prompt.

    The default prompt does not apply to token ids.
    """
    if role is not None and name is None and text is None:
        return find_prompt(None, None, limits, manifest, role)
    prompt = find_prompt(name, text, limits, manifest)
    if prompt is not None and (name is not None or text):
        for index, item in enumerate(inputs):
            if item.token_ids is not None:
                field = "prompt" if name is None else "prompt_name"
                raise ConflictingFields(
                    "not supported for token_ids", f"Send text in {{inputs}}[{index}].", field=field
                )
    return prompt


def find_prompt(
    name: str | None, text: str | None, limits: Limits, manifest: Manifest, role: Role | None = None
) -> AppliedPrompt | None:
    """Return the prompt with this name or text, else the role's prompt, or without a role the model's default prompt.

    `role` is also the prefix of the fields in errors.
    """
    prompts, field = manifest.prompts, "prompt" if role is None else f"{role}_prompt"
    if name is not None and text is not None:
        raise ConflictingFields(f"set together with {field}", "Send one of them.", field=f"{field}_name")
    if text is not None:
        limit = limits.max_input_characters
        if len(text) > limit:
            raise RequestTooLarge(
                "too many characters", "Shorten it.", field=field, actual=len(text), maximum=limit, reason="TOO_LONG"
            )
        return AppliedPrompt(None, text) if text else None
    if name is None:
        default = manifest.default_prompt_name
        name = default if role is None else manifest.roles.get(role)
    elif name not in prompts:
        raise prompt_not_found(name, prompts, f"{field}_name")
    return AppliedPrompt(name, prompts[name]) if name is not None and prompts[name] else None


def classifier_prompt(limits: Limits, manifest: Manifest) -> AppliedPrompt | None:
    """Return a classifier's prompt, for the text or a pair's first text. A template already contains it."""
    head = manifest.classification
    return None if head is None or head.template is not None else find_prompt(None, None, limits, manifest)


def tokenizer_inputs(inputs: Sequence[Input], prompt: AppliedPrompt | None = None) -> list[TokenizerInput]:
    """Return the inputs for the tokenizer. Texts are prefixed with the prompt; token ids are not."""
    text = "" if prompt is None else prompt.text
    if isinstance(inputs, TextInputs):
        return make_tuples(TokenizerInput, inputs.texts, repeat(None), repeat(None), repeat(text))
    return [
        TokenizerInput(item.text or "", item.pair, prompt=text)
        if item.token_ids is None
        else TokenizerInput(token_ids=tuple(item.token_ids))
        for item in inputs
    ]


def prompt_not_found(name: str, prompts: Iterable[str], field: str) -> NotFound:
    """Return the error for a prompt name that the model does not define."""
    known = ", ".join(f'"{prompt}"' for prompt in prompts)
    remedy = f"Use one of {known}." if known else "Leave it out: the model has no prompts."
    return NotFound("not found", remedy, field=field, actual=echo(name), reason="PROMPT_NOT_FOUND")


async def count_prompt(
    engine: Engine, prompt: AppliedPrompt, inputs: int, deadline: float, field: str = "prompt"
) -> int:
    """Return the number of tokens of a prompt, without special tokens.

    Raises `TooLong` if the prompt leaves no room for text, and `RequestTooLarge` if its copies, one per input, exceed
    the maximum request size in characters.
    """
    characters, limit = len(prompt.text) * inputs, engine.limits.max_request_bytes
    if characters > limit:
        raise RequestTooLarge(
            f"too many characters for {inputs} inputs", "Shorten it or send fewer inputs.",
            field=field, actual=characters, maximum=limit, reason="TOO_LONG",
        )  # fmt: skip
    if prompt.name is not None and prompt.name in engine.prompt_tokens:
        return engine.prompt_tokens[prompt.name]
    sources = [TokenizerInput(""), TokenizerInput(prompt.text)]
    empty, tokens = await engine.run(len(prompt.text), deadline, engine.tokenizer.encode, sources, offsets=False)
    count = len(tokens) - len(empty)
    # A prompt within the limit may still leave no room for a given text; `check_length` checks that.
    if len(tokens) > engine.manifest.longest_input_tokens:
        raise no_room(count, engine.manifest.longest_input_tokens - len(empty), field)
    if prompt.name is not None:
        engine.prompt_tokens[prompt.name] = count
    return count


# Effects


def check_effect_options(effect: LabelEffect, options: Mapping[str, object]) -> None:
    """Check that `options`, which an effect requires, are None without an effect."""
    for field, value in options.items():
        if effect == "none" and value is not None:
            raise ConflictingFields(
                "set, but effect is {effect.none}",
                f"Set effect to {{effect.occlusion}} or leave {field} out.",
                field=field,
            )


def effect_unit(request: ClassifyRequest | RerankRequest) -> SimilarityUnit | None:
    """Return the unit of effects; None without an effect."""
    return None if request.effect == "none" else request.unit or EFFECT_UNIT


def check_occlusion(sizes: Sequence[int], limits: Limits, remedy: str) -> None:
    """Check the cost of occlusion; `sizes` are the occluded sequences' lengths in tokens."""
    for noun, actual, limit in (
        ("sequences", len(sizes), MAX_OCCLUDED_SEQUENCES),
        ("tokens", sum(sizes), limits.max_queue_tokens),
    ):
        if actual > limit:
            raise RequestTooLarge(
                f"{{effect.occlusion}} needs too many {noun}", f"{remedy}.",
                field="effect", actual=actual, maximum=limit,
            )  # fmt: skip


def occlusion_tokens(sizes: Sequence[int], limits: Limits) -> int:
    """Return the estimated tokens needed to occlude texts of these sizes, at most `max_queue_tokens`."""
    return min(sum(size * size for size in sizes), limits.max_queue_tokens)


# Costs and sizes


def describe_cost(inputs: Sequence[Input]) -> int:
    """Return the cost of tokenizing inputs and listing their tokens, words or units."""
    spans = 0 if isinstance(inputs, TextInputs) else sum([len(item.spans) for item in inputs])
    return DESCRIBED_CHARACTER * sum(count_characters(inputs)) + (INPUT + OUTPUT) * len(inputs) + SPAN * spans


def count_characters(inputs: Sequence[Input]) -> list[int]:
    """Return the number of characters of each input; a token id counts as `CHARACTERS_PER_TOKEN` characters."""
    if isinstance(inputs, TextInputs):
        return [*map(len, inputs.texts)]
    return [
        len(item.text or "") + len(item.pair or "") + CHARACTERS_PER_TOKEN * len(item.token_ids or ())
        for item in inputs
    ]


def estimate_tokens(lengths: Iterable[int], max_tokens: int, prompt_tokens: int = 0) -> list[int]:
    """Return the estimated number of tokens of each input, given their numbers of characters.

    Inputs longer than `max_tokens` are truncated or rejected before inference.
    """
    extra = SPECIAL_TOKENS + prompt_tokens
    return [min(max_tokens, extra + length // CHARACTERS_PER_TOKEN) for length in lengths]


class Listed(Protocol):
    """An item of a list in a response: a token, a word, a unit."""

    @property
    def text(self) -> str: ...


def listed_bytes(parts: Sequence[Listed], wire: Wire) -> int:
    """Return an upper bound on the size of tokens, words or units in a response."""
    character = 4 if wire == "binary" else JSON_CHARACTER_BYTES
    return TOKEN_BYTES * len(parts) + character * sum(map(len, map(_text_of, parts)))


_text_of = attrgetter("text")


def prompt_bytes(prompt: AppliedPrompt | None, wire: Wire) -> int:
    """Return an upper bound on the size of an applied prompt in a response."""
    return 0 if prompt is None else len(prompt.text) * (4 if wire == "binary" else JSON_CHARACTER_BYTES)


def array_bytes(values: int, dtype: Dtype | MapDtype, wire: Wire) -> int:
    """Return the size of `values` numbers: exact in binary and base64, an upper bound in JSON."""
    if wire == "json":
        return values * JSON_VALUE_BYTES[dtype]
    size = -(-values // 8) if dtype == "ubinary" else values * DTYPES[dtype].itemsize
    return size if wire == "binary" else -(-size // 3) * 4


def total_bytes(sizes: Sequence[int], *, padded: bool) -> int:
    """Return the total size of results of these sizes. If `padded`, all have the size of the largest."""
    return len(sizes) * max(sizes) if padded else sum(sizes)
