"""Checks of inputs, layers and prompts: counts, sizes, spans, token ids, and the number of tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from model.artifact.manifest import Absent, Manifest, Role, TruncationSide
from model.artifact.tokenizer import TokenizedInput, TokenizerInput
from service.engine.schema.encode import AppliedPrompt, Input, Side, Truncation
from service.engine.schema.model import Limits
from service.engine.schema.operations import Operation, operations_of
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    NotFound,
    OutOfRange,
    RequestTooLarge,
    TooLong,
    TooMany,
    UnsupportedByModel,
    echo,
)
from service.spelling import Remedy, join, named, route_name

if TYPE_CHECKING:
    from service.engine.engine import Engine

Part = TypeVar("Part")

SPLIT = Remedy("Split the text")
SPLIT_NOT_TRUNCATED = Remedy("Split the text", hint="Truncation does not apply to this limit.")
"""Remedies for a text over the limit of characters, in operations without and with truncation."""
USE_ANOTHER = "Use another model."
REMEDIES: dict[Operation, str] = {
    "rerank": "Use a cross-encoder or an embedding model.",
    "classify": "Use a classifier.",
    "token_classify": "Use a token classifier.",
    "fill_mask": "Use a masked language model.",
}
"""The kind of model that supports an operation of a head."""


def check_inputs(
    inputs: Sequence[Input],
    limits: Limits,
    manifest: Manifest,
    max_inputs: int | None = None,
    split: Remedy = SPLIT_NOT_TRUNCATED,
) -> None:
    """Check count, sizes, ids and spans. `max_inputs` overrides the limit; `split` is as in `check_text`."""
    check_count(len(inputs), "inputs", max_inputs or limits.max_inputs)
    spans = 0
    for item in inputs:
        spans += len(item.spans)
    if spans > limits.max_spans_per_request:
        raise TooMany(
            "too many spans in the request", "Split the request.",
            field="inputs", actual=spans, maximum=limits.max_spans_per_request,
        )  # fmt: skip
    for index, item in enumerate(inputs):
        path = f"inputs[{index}]"
        if len(item.spans) > limits.max_spans_per_input:
            raise TooMany(
                "too many items", "Send fewer spans.",
                field=f"{path}.spans", actual=len(item.spans), maximum=limits.max_spans_per_input,
            )  # fmt: skip
        if item.source.token_ids is None:
            _check_text_input(item, path, limits.max_input_characters, split)
            continue
        check_token_ids(item.source.token_ids, f"{path}.token_ids", limits, manifest)
        if item.spans:
            raise ConflictingFields("not supported with token_ids", "Send text.", field=f"{path}.spans")


def check_count(count: int, field: str, limit: int) -> None:
    """Check the number of items of a request."""
    if not count:
        raise Empty("empty", "Send at least one item.", field=field)
    if count > limit:
        raise TooMany("too many items", "Split the request.", field=field, actual=count, maximum=limit)


def _check_text_input(item: Input, path: str, max_characters: int, split: Remedy) -> None:
    source = item.source
    check_text(source.text, path, max_characters, split)
    if source.pair is not None:
        check_text(source.pair, f"{path}.pair", max_characters, split)
    for number, span in enumerate(item.spans):
        check_span(span, f"{path}.spans[{number}]", len(source.text))


def check_text(text: str, path: str, max_characters: int, split: Remedy) -> None:
    """Check the size of a text, and that it is not blank; `split` is the remedy for too many characters."""
    if len(text) > max_characters:
        raise RequestTooLarge(
            "too many characters", split, field=path, actual=len(text), maximum=max_characters, reason="TOO_LONG"
        )
    if not text or text.isspace():
        raise Empty("empty or blank", "Send text.", field=path)


def check_span(span: tuple[int, int], path: str, characters: int) -> None:
    """Check a range of a text of this many characters."""
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


def check_layers(layers: Sequence[int], manifest: Manifest, first: int = 0) -> None:
    """Check layers `first`..L, or the same from the end."""
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
    if len(layers) > 1 and len({layer % (last + 1) for layer in layers}) < len(layers):
        raise Duplicate("contains the same layer twice", "Remove one.", field="layers")


def require(part: Part | Absent, problem: str, field: str | None = None) -> Part:
    """Return an optional part of a model. Raises `UnsupportedByModel` with the reason of its absence."""
    if isinstance(part, Absent):
        raise UnsupportedByModel(f"{problem} ({part.reason})", part.remedy, field=field)
    return part


def require_operation(manifest: Manifest, operation: Operation) -> None:
    """Raise `UnsupportedByModel` if the model does not support an operation."""
    supported = operations_of(manifest)
    if operation not in supported:
        raise UnsupportedByModel(
            f"Operation {named('operation', operation)} is not supported for this model",
            f"It supports {join([route_name(name) for name in supported])}. {REMEDIES.get(operation, USE_ANOTHER)}",
            actual=operation,
        )


def check_at_least_one(field: str, value: int | None) -> None:
    """Raise `OutOfRange` for a number of items below 1."""
    if value is not None and value < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field=field, actual=value, minimum=1)


def check_length(
    tokens: TokenizedInput,
    manifest: Manifest,
    truncation: Truncation | None,
    path: str,
    prompt_field: str = "prompt",
    limit: int | None = None,
) -> TokenizedInput:
    """Return the tokens, truncated if requested. Raises `Empty` without content, and `TooLong` over the limit.

    `truncation` is None for an operation without truncation. `limit` None is the limit of inputs without a role.
    """
    if not tokens.has_content:
        raise Empty("no content after tokenization", "Send text.", field=path)
    limit = manifest.max_input_tokens if limit is None else limit
    if len(tokens) <= limit:
        return tokens
    end = truncation if truncation in ("left", "right") else manifest.truncation_side
    truncated = tokens.truncate(limit, end)
    if len(truncated) > limit or not truncated.has_content:  # truncation keeps the tokens of the prompt
        first, last = tokens.prompt_range
        raise no_room(last - first, limit, prompt_field)
    if truncation is None or truncation == "error":
        remedy = Remedy("Shorten it") if truncation is None else shorten(manifest.truncation_side)
        raise TooLong("too long", remedy, field=path, actual=len(tokens), maximum=limit, unit="tokens")
    return truncated


def shorten(side: TruncationSide = "right") -> Remedy:
    """Return the remedy for an input over the limit of tokens, which truncation at a side can drop."""
    return Remedy("Shorten it", ({"truncation": side},))


def no_room(prompt_tokens: int, limit: int, field: str) -> TooLong:
    """Return the error for a prompt that leaves no room for text."""
    return TooLong(
        "leaves no room for text", "Use a shorter prompt.",
        field=field, actual=prompt_tokens, maximum=limit, unit="tokens",
    )  # fmt: skip


def select_prompt(
    inputs: Sequence[Input],
    name: str | None,
    text: str | None,
    limits: Limits,
    manifest: Manifest,
    role: Side | None = None,
) -> AppliedPrompt | None:
    """Return the prompt of a request, else that of the role, or without a role the default one.

    Token ids get no default prompt.
    """
    if role is not None and name is None and text is None:
        return find_prompt(None, None, limits, manifest, role)
    prompt = find_prompt(name, text, limits, manifest)
    if prompt is not None and (name is not None or text):
        for index, item in enumerate(inputs):
            if item.source.token_ids is not None:
                field = "prompt" if name is None else "prompt_name"
                raise ConflictingFields(
                    "not supported for token_ids", f"Send text in {{inputs}}[{index}].", field=field
                )
    return prompt


def find_prompt(
    name: str | None, text: str | None, limits: Limits, manifest: Manifest, role: Role | None = None
) -> AppliedPrompt | None:
    """Return the prompt of this name or text, else that of the role, or without a role the model's default prompt.

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
    """Return the prompt of a classifier for its texts, in a pair for the first one; a template contains it already."""
    head = manifest.classification
    return None if head is None or head.template is not None else find_prompt(None, None, limits, manifest)


def prepend_prompt(inputs: Sequence[Input], prompt: AppliedPrompt | None) -> list[TokenizerInput]:
    """Return the inputs for the tokenizer, with a prompt unless they are token ids."""
    sources = [item.source for item in inputs]
    if prompt is None:
        return sources
    return [source if source.token_ids is not None else replace(source, prompt=prompt.text) for source in sources]


def prompt_not_found(name: str, prompts: Iterable[str], field: str) -> NotFound:
    """Return the error for a prompt that the model lacks."""
    known = ", ".join(f'"{prompt}"' for prompt in prompts)
    remedy = f"Use one of {known}." if known else "Leave it out: the model has no prompts."
    return NotFound("not found", remedy, field=field, actual=echo(name), reason="PROMPT_NOT_FOUND")


async def count_prompt(
    engine: "Engine", prompt: AppliedPrompt, inputs: int, deadline: float, field: str = "prompt"
) -> int:
    """Return the number of tokens of a prompt, without special tokens.

    Raises `TooLong` if it leaves no room for text, and `RequestTooLarge` if its copies, one per input, have more
    characters than the largest request.
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
    # A prompt within the limit may still leave no room: `check_length` decides with the text.
    if len(tokens) > engine.manifest.longest_input_tokens:
        raise no_room(count, engine.manifest.longest_input_tokens, field)
    if prompt.name is not None:
        engine.prompt_tokens[prompt.name] = count
    return count
