"""Attend and compare requests: kind, layers, heads, reductions, units, encodings and occurrences."""

from collections.abc import Sequence

from model.manifest import Manifest
from model.tokenizer import TokenizerInput
from service.engine.schema.encode import Input, Limits
from service.engine.schema.explain import AttendRequest, AttentionMapSpec, CompareRequest
from service.engine.validation.inputs import check_layers, check_span, check_text
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    MissingField,
    OutOfRange,
    TooFew,
    TooMany,
    Unsupported,
    missing_or_conflicting,
)

MIN_OCCURRENCES, MAX_OCCURRENCES = 2, 64
MAX_DECIMALS = 9
HEAD_REDUCES = {
    "probs": ("none", "mean", "max"),
    "scores": ("none", "mean", "max"),
    "norm": ("none", "sum"),
    "block_norm": ("none", "sum"),
    "projection": ("none", "sum"),
}
"""The values of `head_reduce` by kind. Maps of block_norm and projection always cover all heads."""
ROWS_WITHOUT_SUM = "not supported for kind {kind} (rows do not sum to 1)"


def check_attend(request: AttendRequest, manifest: Manifest) -> AttentionMapSpec:
    """Check kind, layers, heads, reductions, units and encodings; return the maps to compute."""
    if request.kind not in manifest.attention_kinds:
        known = ", ".join(request.spelling.value("kind", kind) for kind in manifest.attention_kinds)
        raise Unsupported(
            f"{request.spelling.value('kind', request.kind)} is not supported for this model",
            f"Use {known}." if known else "Use another model.",
            field="kind", reason="UNSUPPORTED_BY_MODEL",
        )  # fmt: skip
    last = manifest.num_hidden_layers
    if request.layers is not None:
        check_layers(request.layers, manifest, first=1)
    layers = range(1, last + 1) if request.layers is None else [layer % (last + 1) for layer in request.layers]
    heads = range(manifest.num_attention_heads) if request.heads is None else request.heads
    _check_heads(heads, manifest.num_attention_heads - 1)
    spec = AttentionMapSpec(request.kind, tuple(layers), tuple(heads), request.head_reduce, request.layer_reduce)
    _check_reduction(request)
    _check_units(request)
    if request.kind == "scores":
        _check_scores(request)
    _check_sparsity(request)
    _check_encoding(request, spec)
    return spec


def _check_heads(heads: Sequence[int], last: int) -> None:
    if not heads:
        raise Empty("empty", "Leave it out or name at least one.", field="heads")
    for index, head in enumerate(heads):
        if not 0 <= head <= last:
            raise OutOfRange(
                "out of range", f"Use 0 to {last}.",
                field=f"heads[{index}]", actual=head, minimum=0, maximum=last,
            )  # fmt: skip
    if len(set(heads)) < len(heads):
        raise Duplicate("contains the same head twice", "Remove one.", field="heads")


def _check_reduction(request: AttendRequest) -> None:
    spell, kind = request.spelling.value, request.kind
    allowed = HEAD_REDUCES[kind]
    if request.head_reduce not in allowed:
        *values, last = [spell("head_reduce", value) for value in allowed]
        raise ConflictingFields(
            f"{spell('head_reduce', request.head_reduce)} is not supported for kind {spell('kind', kind)}",
            f"Use {', '.join(values)} or {last}.", field="head_reduce",
        )  # fmt: skip
    if kind in ("block_norm", "projection") and request.heads is not None:
        raise ConflictingFields(f"kind {spell('kind', kind)} always covers all heads", "Leave it out.", field="heads")
    if request.layer_reduce == "rollout":
        rollout = spell("map_layer_reduce", "rollout")
        if kind == "scores":
            none, mean = spell("map_layer_reduce", "none"), spell("map_layer_reduce", "mean")
            problem = f"{rollout} is {ROWS_WITHOUT_SUM.format(kind=spell('kind', kind))}"
            raise ConflictingFields(problem, f"Use {none} or {mean}.", field="layer_reduce")
        if request.head_reduce == "max":
            value = spell("head_reduce", "max")
            raise ConflictingFields(
                f"{value} is not supported with layer_reduce {rollout}", "Leave it out.", field="head_reduce"
            )


def _check_units(request: AttendRequest) -> None:
    spell = request.spelling.value
    span, unit = spell("unit", "span"), spell("unit", request.unit)
    for index, item in enumerate(request.inputs):
        path = f"{request.spelling.inputs}[{index}]"
        if request.unit == "span" and not item.spans:
            raise MissingField(f"missing, but unit is {span}", "Send spans.", field=f"{path}.spans")
        if request.unit != "span" and item.spans:
            raise ConflictingFields(f"set, but unit is {unit}", f"Set unit to {span}.", field=f"{path}.spans")
        if request.unit != "token" and item.source.token_ids is not None:
            raise ConflictingFields(
                f"{unit} is not supported for token_ids", f"Use {spell('unit', 'token')}.", field="unit"
            )
        if request.segments != "all" and item.source.pair is None:
            segments = spell("segments", request.segments)
            raise MissingField(
                f"missing, but segments is {segments}", f"Send pair or set segments to {spell('segments', 'all')}.",
                field=f"{path}.pair",
            )  # fmt: skip
    if request.unit == "span" and request.segments != "all":
        raise ConflictingFields(
            f"{spell('segments', request.segments)} is not supported with unit {span} (spans are in the first text)",
            f"Use {spell('segments', 'all')}.", field="segments",
        )  # fmt: skip


def _check_scores(request: AttendRequest) -> None:
    spell = request.spelling.value
    problem = ROWS_WITHOUT_SUM.format(kind=spell("kind", "scores"))
    if request.special_tokens == "renormalize":
        keep, drop = spell("special_tokens", "keep"), spell("special_tokens", "drop")
        raise ConflictingFields(
            f"{spell('special_tokens', 'renormalize')} is {problem}", f"Use {keep} or {drop}.", field="special_tokens"
        )
    for field in ("top_p", "top_k"):
        if getattr(request, field) is not None:
            raise ConflictingFields(problem, "Leave it out.", field=field)


def _check_sparsity(request: AttendRequest) -> None:
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise OutOfRange(
            "out of range", "Use a number above 0 and at most 1.",
            field="top_p", actual=request.top_p, minimum=0, maximum=1,
        )  # fmt: skip
    if request.top_k is not None and request.top_k < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field="top_k", actual=request.top_k, minimum=1)


def _check_encoding(request: AttendRequest, spec: AttentionMapSpec) -> None:
    if request.decimals is not None:
        if not 1 <= request.decimals <= MAX_DECIMALS:
            raise OutOfRange(
                "out of range",
                f"Use 1 to {MAX_DECIMALS}.",
                field="decimals",
                actual=request.decimals,
                minimum=1,
                maximum=MAX_DECIMALS,
            )
        if request.wire != "json":
            raise ConflictingFields('set, but encoding_format is not "float"', "Leave it out.", field="decimals")
    if request.dtype == "sqrt_uint8":
        value = request.spelling.value("dtype", "sqrt_uint8")
        if request.wire == "json":
            raise ConflictingFields(f'{value} requires encoding_format "base64"', "Set encoding_format.", field="dtype")
        if not spec.at_most_one(request.special_tokens):
            raise ConflictingFields(
                f"{value} requires values from 0 to 1 (probs, rollout, or a renormalized norm)",
                f"Use {request.spelling.value('dtype', 'float16')}.", field="dtype",
            )  # fmt: skip


def check_compare(request: CompareRequest, limits: Limits, manifest: Manifest) -> tuple[int, ...]:
    """Check occurrences, layers and top_contributors; return the layers, 0..L."""
    count = len(request.occurrences)
    if not MIN_OCCURRENCES <= count <= MAX_OCCURRENCES:
        kind, problem = (TooFew, "too few items") if count < MIN_OCCURRENCES else (TooMany, "too many items")
        raise kind(
            problem, f"Send {MIN_OCCURRENCES} to {MAX_OCCURRENCES}.",
            field="occurrences", actual=count, minimum=MIN_OCCURRENCES, maximum=MAX_OCCURRENCES,
        )  # fmt: skip
    for index, occurrence in enumerate(request.occurrences):
        path = f"occurrences[{index}]"
        check_text(Input(TokenizerInput(occurrence.text)), f"{path}.text", limits.max_input_characters)
        if (occurrence.span is None) == (occurrence.word_index is None):
            raise missing_or_conflicting(("span", "word_index"), occurrence.span is None, path)
        if occurrence.span is not None:
            check_span(occurrence.span, f"{path}.span", len(occurrence.text))
    if request.top_contributors < 0:
        raise OutOfRange(
            "out of range", "Use 0 or more.", field="top_contributors", actual=request.top_contributors, minimum=0
        )
    if request.top_contributors and "projection" not in manifest.attention_kinds:
        raise Unsupported(
            "not supported for this model (it has no kind projection)", "Set it to 0.",
            field="top_contributors", reason="UNSUPPORTED_BY_MODEL",
        )  # fmt: skip
    if request.layers is None:
        return tuple(range(manifest.num_hidden_layers + 1))
    check_layers(request.layers, manifest)
    return tuple(layer % (manifest.num_hidden_layers + 1) for layer in request.layers)
