"""Checks of inputs and layers: counts, sizes, spans, token ids, and the number of tokens."""

from collections.abc import Sequence
from typing import Literal

from model.manifest import Manifest
from model.tokenizer import TokenizedInput
from service.engine.schema.encode import Input, Limits, Truncation
from service.errors import ConflictingFields, Duplicate, Empty, OutOfRange, RequestTooLarge, TooLong, TooMany
from service.spelling import Remedy

SPLIT = Remedy("Split the text")
SPLIT_NOT_TRUNCATED = Remedy("Split the text", hint="Truncation does not apply to this limit.")
"""Remedies for a text over the limit of characters, in operations without and with truncation."""
SHORTEN = Remedy("Shorten it", ({"truncation": "right"},))
"""The remedy for an input over the limit of tokens."""


def check_inputs(
    inputs: Sequence[Input],
    limits: Limits,
    manifest: Manifest,
    max_inputs: int | None = None,
    split: Remedy = SPLIT_NOT_TRUNCATED,
) -> None:
    """Check count, sizes, ids and spans. `max_inputs` overrides the limit; `split` is as in `check_text`."""
    check_count(len(inputs), "inputs", max_inputs or limits.max_inputs)
    spans = sum(len(item.spans) for item in inputs)
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
    last, max_ids = manifest.vocab_size - 1, limits.max_input_characters
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
    last = manifest.num_hidden_layers
    lowest = first - last - 1
    for index, layer in enumerate(layers):
        if not (first <= layer <= last or lowest <= layer <= -1):
            raise OutOfRange(
                "out of range", f"Use {first} to {last}, or {lowest} to -1 from the end.",
                field=f"layers[{index}]", actual=layer, minimum=lowest, maximum=last,
            )  # fmt: skip
    if len({layer % (last + 1) for layer in layers}) < len(layers):
        raise Duplicate("contains the same layer twice", "Remove one.", field="layers")


def check_length(
    tokens: TokenizedInput, manifest: Manifest, truncation: Truncation | None, path: str, prompt_field: str = "prompt"
) -> TokenizedInput:
    """Return the tokens, truncated if requested; raises if there is none or too much.

    `truncation` is None for an operation without truncation.
    """
    if not tokens.has_content:
        raise Empty("no content after tokenization", "Send text.", field=path)
    limit = manifest.max_input_tokens
    if len(tokens) <= limit:
        return tokens
    side: Literal["left", "right"] = "left" if truncation == "left" else "right"
    truncated = tokens.truncate(limit, side)
    if len(truncated) > limit or not truncated.has_content:  # truncation keeps the tokens of the prompt
        first, last = tokens.prompt_range
        raise no_room(last - first, limit, prompt_field)
    if truncation is None or truncation == "error":
        remedy = Remedy("Shorten it") if truncation is None else SHORTEN
        raise TooLong("too long", remedy, field=path, actual=len(tokens), maximum=limit, unit="tokens")
    return truncated


def no_room(prompt_tokens: int, limit: int, field: str) -> TooLong:
    """Return the error for a prompt that leaves no room for text."""
    return TooLong(
        "leaves no room for text", "Use a shorter prompt.",
        field=field, actual=prompt_tokens, maximum=limit, unit="tokens",
    )  # fmt: skip
