"""What is wrong with a request, said before anything is tokenised: which field, which limit, what to do."""

from collections.abc import Sequence

from model.artifact import Manifest
from service.engine.requests import EncodeRequest, Input, Limits, Output
from service.errors import EmptyInput, Invalid, TooLarge


def check_inputs(inputs: Sequence[Input], field: str, max_inputs: int, limits: Limits, vocabulary: int) -> None:
    """Count, sizes, ids and spans of the inputs."""
    if not inputs:
        raise EmptyInput(f"{field} is empty; send at least one.")
    if len(inputs) > max_inputs:
        raise Invalid(
            f"{field} has {len(inputs)} elements; the limit is {max_inputs}. Send several requests.",
            reason="too_many_inputs",
        )
    for index, item in enumerate(inputs):
        _check_input(item, f"{field}[{index}]", limits, vocabulary)


def _check_input(item: Input, where: str, limits: Limits, vocabulary: int) -> None:
    if item.source.token_ids is None:
        _check_text(item, where, limits.max_input_characters)
    else:
        _check_ids(item, item.source.token_ids, where, limits.max_input_characters, vocabulary)


def _check_text(item: Input, where: str, max_characters: int) -> None:
    source = item.source
    for name, text in (("text", source.text), ("pair", source.pair or "")):
        if len(text) > max_characters:
            raise TooLarge(
                f"{where}.{name} has {len(text)} characters; the limit is {max_characters}. "
                "Split it: truncation does not lift this limit.",
                reason="input_too_large",
            )
    if not source.text or source.text.isspace():
        raise EmptyInput(f"{where} is empty or blank; send some text.")
    for number, (start, end) in enumerate(item.spans):
        if not 0 <= start < end <= len(source.text):
            raise Invalid(
                f"{where}.spans[{number}] must satisfy 0 <= start < end <= {len(source.text)}, "
                "the number of characters of its text.",
                reason="span_out_of_range",
            )


def _check_ids(item: Input, ids: Sequence[int], where: str, max_ids: int, vocabulary: int) -> None:
    if not ids:
        raise EmptyInput(f"{where}.token_ids is empty; send at least one id.")
    if len(ids) > max_ids:
        raise TooLarge(f"{where}.token_ids has {len(ids)} ids; the limit is {max_ids}.", reason="input_too_large")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise Invalid(
            f"{where}.token_ids has an id outside 0..{vocabulary - 1}, the model's vocabulary.",
            reason="token_id_out_of_range",
        )
    if item.spans:
        raise Invalid(f"{where}.spans needs a text; token_ids have no characters.", reason="spans_need_text")


def check_encode(request: EncodeRequest, manifest: Manifest) -> None:
    """Outputs, layers, dimensions and dtype of an encode request, against each other and the model."""
    outputs = set(request.outputs)
    if not outputs:
        raise Invalid("outputs is empty; leave it out or name at least one.")
    with_spans = any(item.spans for item in request.inputs)
    if "spans" in outputs and not all(item.spans for item in request.inputs):
        raise Invalid("outputs asks for spans, but an input has none. Give every input its spans.")
    if with_spans and "spans" not in outputs:
        raise Invalid('An input has spans, but outputs does not ask for them. Add "spans" to outputs.')
    if outputs & {"words", "spans"} and any(item.source.token_ids is not None for item in request.inputs):
        raise Invalid("outputs words and spans need text; token_ids have no characters.")
    _check_layers(request, manifest)
    _check_pooled(request, manifest, outputs)


def _check_layers(request: EncodeRequest, manifest: Manifest) -> None:
    if not request.layers:
        raise Invalid("layers is empty; leave it out or name at least one.")
    last = manifest.layers
    for index, layer in enumerate(request.layers):
        if not -last - 1 <= layer <= last:
            raise Invalid(f"layers[{index}] must be 0..{last}, or negative from the end.", reason="layer_out_of_range")
    if len({layer % (last + 1) for layer in request.layers}) < len(request.layers):
        raise Invalid("layers names the same layer twice.")


def _check_pooled(request: EncodeRequest, manifest: Manifest, outputs: set[Output]) -> None:
    dimensions = request.dimensions
    if dimensions is not None:
        if not 1 <= dimensions <= pooled_size(request, manifest):
            raise Invalid(f"dimensions must be 1..{pooled_size(request, manifest)}, the width of the pooled vector.")
        if "pooled" not in outputs:
            raise Invalid("dimensions is for pooled vectors only, and outputs does not ask for them.")
    if request.dtype in ("int8", "ubinary"):
        if outputs != {"pooled"}:
            raise Invalid(f"dtype {request.dtype} is for pooled vectors only. Ask for nothing else in outputs.")
        if request.normalize is False:
            raise Invalid(f"dtype {request.dtype} is made of normalised vectors. Leave normalize out.")
        if request.dtype == "ubinary" and (dimensions or pooled_size(request, manifest)) % 8:
            raise Invalid("dtype ubinary needs dimensions that are a multiple of 8.")


def is_last_alone(request: EncodeRequest, manifest: Manifest) -> bool:
    """Whether the request asks for nothing but the last layer, which is the fast lane's."""
    return set(request.layers) <= {-1, manifest.layers}


def pooled_size(request: EncodeRequest, manifest: Manifest) -> int:
    """How many components a pooled vector has before any are cut."""
    if is_last_alone(request, manifest):
        return manifest.output_width
    return manifest.width * (len(request.layers) if request.layer_reduce == "concat" else 1)
