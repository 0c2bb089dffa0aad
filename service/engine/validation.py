"""What is wrong with a request, said before anything is tokenised: which field, which limit, what to do."""

from collections.abc import Sequence

from model.artifact import Manifest
from model.tokenizer import Source, Tokens
from service.engine.schema.encode import EncodeRequest, Input, Limits, Output, Truncation
from service.engine.schema.explain import AttendRequest, AttentionMapSpec, CompareRequest
from service.errors import EmptyInput, InputTooLong, InvalidArgument, RequestTooLarge, Unsupported

MIN_OCCURRENCES, MAX_OCCURRENCES = 2, 64
MAX_DECIMALS = 9
HEAD_REDUCES = {
    "probs": ("none", "mean", "max"),
    "scores": ("none", "mean", "max"),
    "norm": ("none", "sum"),
    "block_norm": ("none", "sum"),
    "projection": ("none", "sum"),
}
"""For each kind what may become of its heads; block_norm and projection are of all of them in any case."""


def check_inputs(
    inputs: Sequence[Input], field: str, limits: Limits, manifest: Manifest, max_inputs: int | None = None
) -> None:
    """Check count, sizes, ids and spans; `max_inputs` is the limit of an API adapter with its own."""
    max_inputs = max_inputs or limits.max_inputs
    if not inputs:
        raise EmptyInput(f"{field} is empty; send at least one.")
    if len(inputs) > max_inputs:
        raise InvalidArgument(
            f"{field}: too many items ({len(inputs)}, limit {max_inputs}). Split the request.",
            reason="too_many_inputs",
        )
    spans = sum(len(item.spans) for item in inputs)
    if spans > limits.max_spans_per_request:
        raise InvalidArgument(
            f"{field}: too many spans ({spans}, limit {limits.max_spans_per_request} per request). Split the request.",
            reason="too_many_spans",
        )
    for index, item in enumerate(inputs):
        _check_input(item, f"{field}[{index}]", limits, manifest.vocab_size)


def _check_input(item: Input, where: str, limits: Limits, vocabulary: int) -> None:
    if len(item.spans) > limits.max_spans_per_input:
        raise InvalidArgument(
            f"{where}.spans: too many items ({len(item.spans)}, limit {limits.max_spans_per_input}). Send fewer.",
            reason="too_many_spans",
        )
    if item.source.token_ids is None:
        _check_text(item, where, limits.max_input_characters)
    else:
        _check_ids(item, item.source.token_ids, where, limits.max_input_characters, vocabulary)


def _check_text(item: Input, where: str, max_characters: int) -> None:
    source = item.source
    for name, text in (("text", source.text), ("pair", source.pair or "")):
        if len(text) > max_characters:
            raise RequestTooLarge(
                f"{where}.{name} has {len(text)} characters; the limit is {max_characters}. "
                "Split it: truncation does not lift this limit.",
                reason="input_too_large",
            )
    if not source.text or source.text.isspace():
        raise EmptyInput(f"{where} is empty or blank; send some text.")
    if source.pair is not None and (not source.pair or source.pair.isspace()):
        raise EmptyInput(f"{where}.pair: empty or blank. Send text, or leave it out.")
    for number, (start, end) in enumerate(item.spans):
        if not 0 <= start < end <= len(source.text):
            raise InvalidArgument(
                f"{where}.spans[{number}] must satisfy 0 <= start < end <= {len(source.text)}, "
                "the number of characters of its text.",
                reason="span_out_of_range",
            )


def _check_ids(item: Input, ids: Sequence[int], where: str, max_ids: int, vocabulary: int) -> None:
    if not ids:
        raise EmptyInput(f"{where}.token_ids is empty; send at least one id.")
    if len(ids) > max_ids:
        raise RequestTooLarge(
            f"{where}.token_ids has {len(ids)} ids; the limit is {max_ids}.", reason="input_too_large"
        )
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise InvalidArgument(
            f"{where}.token_ids has an id outside 0..{vocabulary - 1}, the model's vocabulary.",
            reason="token_id_out_of_range",
        )
    if item.spans:
        raise InvalidArgument(f"{where}.spans needs a text; token_ids have no characters.", reason="spans_need_text")


def check_encode(request: EncodeRequest, manifest: Manifest) -> None:
    """Outputs, layers, dimensions and dtype of an encode request, against each other and the model."""
    outputs = set(request.outputs)
    if not outputs:
        raise InvalidArgument("outputs is empty; leave it out or name at least one.")
    if len(outputs) < len(request.outputs):
        raise InvalidArgument("outputs: names the same output twice. Remove one.")
    with_spans = any(item.spans for item in request.inputs)
    if "spans" in outputs and not all(item.spans for item in request.inputs):
        raise InvalidArgument("outputs asks for spans, but an input has none. Give every input its spans.")
    if with_spans and "spans" not in outputs:
        raise InvalidArgument('An input has spans, but outputs does not ask for them. Add "spans" to outputs.')
    if outputs & {"words", "spans"} and any(item.source.token_ids is not None for item in request.inputs):
        raise InvalidArgument("outputs words and spans need text; token_ids have no characters.")
    _check_layers(request.layers, manifest)
    if "pooled" not in outputs:
        _check_no_pooled_options(request)
    _check_pooled(request, manifest, outputs)


def _check_layers(layers: Sequence[int], manifest: Manifest) -> None:
    if not layers:
        raise InvalidArgument("layers is empty; leave it out or name at least one.")
    last = manifest.num_hidden_layers
    for index, layer in enumerate(layers):
        if not -last - 1 <= layer <= last:
            raise InvalidArgument(
                f"layers[{index}] must be 0..{last}, or -{last + 1}..-1 from the end.", reason="layer_out_of_range"
            )
    if len({layer % (last + 1) for layer in layers}) < len(layers):
        raise InvalidArgument("layers names the same layer twice.")


def _check_no_pooled_options(request: EncodeRequest) -> None:
    for field in ("pooling", "normalize", "dimensions"):
        if getattr(request, field) is not None:
            raise InvalidArgument(f'{field}: set, but "pooled" is missing from outputs. Add it or leave {field} out.')


def _check_pooled(request: EncodeRequest, manifest: Manifest, outputs: set[Output]) -> None:
    dimensions = request.dimensions
    if dimensions is not None and not 1 <= dimensions <= pooled_size(request, manifest):
        raise InvalidArgument(
            f"dimensions must be 1..{pooled_size(request, manifest)}, the width of the pooled vector."
        )
    if request.dtype in ("int8", "ubinary"):
        if outputs != {"pooled"}:
            raise InvalidArgument(f"dtype {request.dtype} is for pooled vectors only. Ask for nothing else in outputs.")
        if request.normalize is False:
            raise InvalidArgument(f"dtype {request.dtype} is made of normalised vectors. Leave normalize out.")
        if request.dtype == "ubinary" and (dimensions or pooled_size(request, manifest)) % 8:
            raise InvalidArgument("dtype ubinary needs dimensions that are a multiple of 8.")


def check_length(tokens: Tokens, manifest: Manifest, truncation: Truncation, where: str, hint: str) -> Tokens:
    """Return the tokens, truncated if that is wanted; raise for what has no content or is too long."""
    if not tokens.has_content:
        raise EmptyInput(f"{where} has nothing that the tokenizer keeps; send some text.")
    limit = manifest.max_input_tokens
    if len(tokens) <= limit:
        return tokens
    if truncation == "error":
        raise InputTooLong(f"{where}: too long ({len(tokens)} tokens, limit {limit}). {hint}")
    return tokens.truncate(limit, truncation)


def is_last_alone(request: EncodeRequest, manifest: Manifest) -> bool:
    """Whether the request asks for nothing but the last layer, which is the fast lane's."""
    return set(request.layers) <= {-1, manifest.num_hidden_layers}


def pooled_size(request: EncodeRequest, manifest: Manifest) -> int:
    """How many components a pooled vector has before any are cut."""
    if is_last_alone(request, manifest):
        return manifest.dimensions
    return manifest.hidden_size * (len(request.layers) if request.layer_reduce == "concat" else 1)


def check_attend(request: AttendRequest, manifest: Manifest) -> AttentionMapSpec:
    """Kind, layers, heads and what becomes of them, units and encodings, against each other and the model."""
    if request.kind not in manifest.attention_kinds:
        raise Unsupported(
            f"kind {request.kind} does not fit this model; it has {', '.join(manifest.attention_kinds) or 'none'}.",
            reason="kind_not_offered",
        )
    layers = _chosen(request.layers, 1, manifest.num_hidden_layers, "layers", "layer_out_of_range")
    heads = _chosen(request.heads, 0, manifest.num_attention_heads - 1, "heads", "head_out_of_range")
    plan = AttentionMapSpec(request.kind, layers, heads, request.head_reduce, request.layer_reduce)
    _check_reduction(request, plan)
    _check_units(request)
    if request.kind == "scores":
        _check_scores(request)
    _check_numbers(request, plan)
    return plan


def _chosen(asked: Sequence[int] | None, first: int, last: int, field: str, reason: str) -> tuple[int, ...]:
    if asked is None:
        return tuple(range(first, last + 1))
    if not asked:
        raise InvalidArgument(f'{field} is empty; leave it out for "all", or name at least one.')
    for index, number in enumerate(asked):
        if not first <= number <= last:
            raise InvalidArgument(f"{field}[{index}] must be {first}..{last}.", reason=reason)
    if len(set(asked)) < len(asked):
        raise InvalidArgument(f"{field} names the same one twice.")
    return tuple(asked)


def _check_reduction(request: AttendRequest, plan: AttentionMapSpec) -> None:
    kind, reduces = request.kind, HEAD_REDUCES[request.kind]
    if request.head_reduce not in reduces:
        raise InvalidArgument(f"head_reduce {request.head_reduce} is not for {kind}; it takes {', '.join(reduces)}.")
    if kind in ("block_norm", "projection") and request.heads is not None:
        raise InvalidArgument(f'kind {kind} is of all heads together; leave heads at "all".')
    if plan.layer_reduce == "rollout":
        if kind == "scores":
            raise InvalidArgument("layer_reduce rollout is not for scores, which are no shares; use none or mean.")
        if request.head_reduce == "max":
            raise InvalidArgument("layer_reduce rollout takes the mean of the heads; leave head_reduce out.")


def _check_units(request: AttendRequest) -> None:
    with_spans = any(item.spans for item in request.inputs)
    if request.unit == "spans":
        if not all(item.spans for item in request.inputs):
            raise InvalidArgument("unit spans needs spans, but an input has none. Give every input its spans.")
        if request.segments != "all":
            raise InvalidArgument("unit spans lies in the first text of a pair; leave segments at all.")
    elif with_spans:
        raise InvalidArgument("An input has spans, but unit does not ask for them. Send unit: spans.")
    if request.unit != "token" and any(item.source.token_ids is not None for item in request.inputs):
        raise InvalidArgument(f"unit {request.unit} needs text; token_ids have no characters. Use token.")


def _check_scores(request: AttendRequest) -> None:
    if request.special == "renormalize":
        raise InvalidArgument("special renormalize is not for scores, which are no shares; use keep or drop.")
    for field in ("top_p", "top_k"):
        if getattr(request, field) is not None:
            raise InvalidArgument(f"{field} is not for scores, which are no shares; leave it out.")


def _check_numbers(request: AttendRequest, plan: AttentionMapSpec) -> None:
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise InvalidArgument(
            "top_p must be above 0 and at most 1: the share of a row that the values kept must cover."
        )
    if request.top_k is not None and request.top_k < 1:
        raise InvalidArgument("top_k must be at least 1: how many values of a row to keep.")
    if request.decimals is not None:
        if not 1 <= request.decimals <= MAX_DECIMALS:
            raise InvalidArgument(f"decimals must be 1..{MAX_DECIMALS}.")
        if request.wire != "json":
            raise InvalidArgument("decimals is for encoding float; leave it out.")
    if request.dtype == "sqrt_uint8":
        if request.wire == "json":
            raise InvalidArgument("dtype sqrt_uint8 needs encoding base64.")
        if not plan.at_most_one(request.special):
            raise InvalidArgument(
                "dtype sqrt_uint8 is for values from 0 to 1: probs, a rollout, or special renormalize of a norm."
            )


def check_compare(request: CompareRequest, limits: Limits, manifest: Manifest) -> tuple[int, ...]:
    """Occurrences, layers and draws_on; returns the layers, 0..L."""
    count = len(request.occurrences)
    if not MIN_OCCURRENCES <= count <= MAX_OCCURRENCES:
        raise InvalidArgument(
            f"occurrences takes {MIN_OCCURRENCES} to {MAX_OCCURRENCES} elements; it has {count}.",
            reason="occurrence_count",
        )
    for index, occurrence in enumerate(request.occurrences):
        where = f"occurrences[{index}]"
        _check_text(Input(Source(occurrence.text)), where, limits.max_input_characters)
        if (occurrence.span is None) == (occurrence.word is None):
            raise InvalidArgument(f"{where} must have either span or word.")
        if occurrence.span is not None:
            start, end = occurrence.span
            if not 0 <= start < end <= len(occurrence.text):
                raise InvalidArgument(
                    f"{where}.span must satisfy 0 <= start < end <= {len(occurrence.text)}, "
                    "the number of characters of its text.",
                    reason="span_out_of_range",
                )
    if request.draws_on < 0:
        raise InvalidArgument("draws_on must be 0 or more: how many words to name.")
    if request.draws_on and "projection" not in manifest.attention_kinds:
        raise Unsupported("draws_on needs projection, which does not fit this model; send draws_on: 0.")
    if request.layers is None:
        return tuple(range(manifest.num_hidden_layers + 1))
    _check_layers(request.layers, manifest)
    return tuple(layer % (manifest.num_hidden_layers + 1) for layer in request.layers)
