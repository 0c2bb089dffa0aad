"""Inputs and layers: counts, sizes, spans, token ids, and the number of tokens."""

from collections.abc import Sequence

from model.manifest import Manifest
from model.tokenizer import TokenizedInput
from service.engine.schema.encode import NATIVE, Input, Limits, Truncation
from service.errors import ConflictingFields, Duplicate, Empty, OutOfRange, RequestTooLarge, TooLong, TooMany


def check_inputs(  # the inputs, their limits, and what an API names differently
    inputs: Sequence[Input],
    field: str,
    limits: Limits,
    manifest: Manifest,
    max_inputs: int | None = None,
    split: str = NATIVE.split,
) -> None:
    """Check count, sizes, ids and spans.

    `max_inputs` overrides the limit for an API that has its own, `split` is the remedy for too many characters.
    """
    max_inputs = max_inputs or limits.max_inputs
    if not inputs:
        raise Empty("empty", "Send at least one item.", field=field)
    if len(inputs) > max_inputs:
        raise TooMany(
            "too many items", "Split the request.",
            field=field, actual=len(inputs), maximum=max_inputs,
        )  # fmt: skip
    spans = sum(len(item.spans) for item in inputs)
    if spans > limits.max_spans_per_request:
        raise TooMany(
            "too many spans in the request", "Split the request.",
            field=field, actual=spans, maximum=limits.max_spans_per_request,
        )  # fmt: skip
    for index, item in enumerate(inputs):
        _check_input(item, f"{field}[{index}]", limits, manifest.vocab_size, split)


def _check_input(item: Input, path: str, limits: Limits, vocab_size: int, split: str) -> None:
    if len(item.spans) > limits.max_spans_per_input:
        raise TooMany(
            "too many items", "Send fewer spans.",
            field=f"{path}.spans", actual=len(item.spans), maximum=limits.max_spans_per_input,
        )  # fmt: skip
    if item.source.token_ids is None:
        check_text(item, path, limits.max_input_characters, split)
    else:
        _check_ids(item, item.source.token_ids, path, limits.max_input_characters, vocab_size)


def check_text(item: Input, path: str, max_characters: int, split: str = NATIVE.split) -> None:
    source = item.source
    for field, text in ((path, source.text), (f"{path}.pair", source.pair)):
        if text is None:
            continue
        if len(text) > max_characters:
            raise RequestTooLarge(
                "too many characters", split,
                field=field, actual=len(text), maximum=max_characters, reason="TOO_LONG",
            )  # fmt: skip
        if not text or text.isspace():
            raise Empty("empty or blank", "Send text.", field=field)
    for number, span in enumerate(item.spans):
        check_span(span, f"{path}.spans[{number}]", len(source.text))


def check_span(span: tuple[int, int], path: str, characters: int) -> None:
    start, end = span
    if end > characters:
        raise OutOfRange(
            "ends after the text", "Use character offsets, not bytes.",
            field=path, actual=end, maximum=characters, unit="characters",
        )  # fmt: skip
    if not 0 <= start < end:
        raise OutOfRange("empty or negative range", "Send offsets with 0 <= start < end.", field=path)


def _check_ids(item: Input, ids: Sequence[int], path: str, max_ids: int, vocab_size: int) -> None:
    field = f"{path}.token_ids"
    if not ids:
        raise Empty("empty", "Send at least one id.", field=field)
    if len(ids) > max_ids:
        raise RequestTooLarge(
            "too many items", "Shorten the input.",
            field=field, actual=len(ids), maximum=max_ids, reason="TOO_LONG",
        )  # fmt: skip
    if min(ids) < 0 or max(ids) >= vocab_size:
        actual = min(ids) if min(ids) < 0 else max(ids)
        raise OutOfRange(
            "id outside of the vocabulary", f"Use ids from 0 to {vocab_size - 1}.",
            field=field, actual=actual, minimum=0, maximum=vocab_size - 1,
        )  # fmt: skip
    if item.spans:
        raise ConflictingFields("not supported with token_ids", "Send text.", field=f"{path}.spans")


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


def check_length(  # what to check, and the fields of the two possible errors
    tokens: TokenizedInput,
    manifest: Manifest,
    truncation: Truncation,
    path: str,
    remedy: str,
    prompt_field: str = "prompt",
) -> TokenizedInput:
    """Return the tokens, truncated if requested; raises if there is none or too much."""
    if not tokens.has_content:
        raise Empty("no content after tokenization", "Send text.", field=path)
    limit = manifest.max_input_tokens
    if len(tokens) <= limit:
        return tokens
    truncated = tokens.truncate(limit, "right" if truncation == "error" else truncation)
    if len(truncated) > limit or not truncated.has_content:  # truncation keeps the tokens of the prompt
        first, last = tokens.prompt_range
        raise _no_room(last - first, limit, prompt_field)
    if truncation == "error":
        raise TooLong("too long", remedy, field=path, actual=len(tokens), maximum=limit, unit="tokens")
    return truncated


def check_prompt_length(prompt_tokens: int, tokens: int, manifest: Manifest, field: str) -> None:
    """Raise `TooLong` if a prompt and the special tokens, `tokens` together, exceed the limit without any text.

    A prompt within the limit may still leave no room: `check_length` decides with the text.
    """
    if tokens > manifest.max_input_tokens:
        raise _no_room(prompt_tokens, manifest.max_input_tokens, field)


def _no_room(prompt_tokens: int, limit: int, field: str) -> TooLong:
    return TooLong(
        "leaves no room for text", "Use a shorter prompt.",
        field=field, actual=prompt_tokens, maximum=limit, unit="tokens",
    )  # fmt: skip
