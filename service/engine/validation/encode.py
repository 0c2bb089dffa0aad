"""Encode requests: outputs, layers, dimensions, dtype and prompt."""

from collections.abc import Iterable
from dataclasses import replace

from model.manifest import Manifest
from model.prompts import Role, role_prompt_name
from service.engine.schema.encode import AppliedPrompt, EncodeRequest, Limits, Output
from service.engine.validation.inputs import check_layers
from service.errors import (
    ConflictingFields,
    Duplicate,
    Empty,
    MissingField,
    NotFound,
    OutOfRange,
    RequestTooLarge,
    echo,
)


def check_encode(request: EncodeRequest, manifest: Manifest) -> EncodeRequest:
    """Check outputs, layers, dimensions and dtype; return the request with explicit layers."""
    spell = request.spelling
    outputs = set(request.outputs)
    if not outputs:
        raise Empty("empty", "Leave it out or name at least one.", field="outputs")
    if len(outputs) < len(request.outputs):
        raise Duplicate("contains the same output twice", "Remove one.", field="outputs")
    spans = spell.value("outputs", "spans")
    needs_spans, needs_words = "spans" in outputs, "words" in outputs
    for index, item in enumerate(request.inputs):
        if needs_spans != bool(item.spans):
            field = f"{spell.inputs}[{index}].spans"
            if needs_spans:
                raise MissingField(f"missing, but outputs contains {spans}", "Send spans.", field=field)
            raise ConflictingFields(f"set, but {spans} is missing from outputs", "Add it.", field=field)
        if needs_words and item.source.token_ids is not None:
            words, path = spell.value("outputs", "words"), f"{spell.inputs}[{index}]"
            raise ConflictingFields(
                f"{words} is not supported for token_ids", f"Remove it or send text in {path}.", field="outputs"
            )
    if request.layers is None:
        request = replace(request, layers=tuple(range(manifest.num_hidden_layers + 1)))
    else:
        check_layers(request.layers, manifest)
    if "pooled" not in outputs:
        _check_no_pooled_options(request)
    _check_pooled(request, manifest, outputs)
    return request


def _check_no_pooled_options(request: EncodeRequest) -> None:
    for field in ("pooling", "normalize", "dimensions"):
        if getattr(request, field) is not None:
            pooled = request.spelling.value("outputs", "pooled")
            raise ConflictingFields(
                f"set, but {pooled} is missing from outputs", f"Add it or leave {field} out.", field=field
            )


def _check_pooled(request: EncodeRequest, manifest: Manifest, outputs: set[Output]) -> None:
    dimensions = request.dimensions
    size = pooled_size(request, manifest)
    if dimensions is not None and not 1 <= dimensions <= size:
        raise OutOfRange(
            "out of range",
            f"Use 1 to {size}.",
            field="dimensions",
            actual=dimensions,
            minimum=1,
            maximum=size,
        )
    if request.dtype in ("int8", "ubinary"):
        dtype = request.spelling.value("dtype", request.dtype)
        if outputs != {"pooled"}:
            raise ConflictingFields(
                f"{dtype} is supported for pooled vectors only", "Remove the other outputs.", field="dtype"
            )
        if request.normalize is False:
            raise ConflictingFields(f"{dtype} requires normalized vectors", "Leave normalize out.", field="dtype")
        if request.dtype == "ubinary" and (dimensions or size) % 8:
            raise ConflictingFields(
                f"{dtype} requires a multiple of 8", "Change dimensions.", field="dimensions", actual=dimensions or size
            )


def select_prompt(request: EncodeRequest, limits: Limits, manifest: Manifest) -> AppliedPrompt | None:
    """Return the prompt of the request, else the default of the model. Token ids get no default prompt."""
    name = request.prompt_name
    prompt = find_prompt(name, request.prompt, limits, manifest)
    if prompt is not None and (name is not None or request.prompt):
        for index, item in enumerate(request.inputs):
            if item.source.token_ids is not None:
                field = "prompt" if name is None else "prompt_name"
                path = f"{request.spelling.inputs}[{index}]"
                raise ConflictingFields("not supported for token_ids", f"Send text in {path}.", field=field)
    return prompt


def prompt_not_found(name: str, prompts: Iterable[str], field: str) -> NotFound:
    """Return the error for a prompt that the model lacks."""
    known = ", ".join(f'"{prompt}"' for prompt in prompts)
    remedy = f"Use one of {known}." if known else "Leave it out: the model has no prompts."
    return NotFound("not found", remedy, field=field, actual=echo(name), reason="PROMPT_NOT_FOUND")


def find_prompt(
    name: str | None, text: str | None, limits: Limits, manifest: Manifest, role: Role | None = None
) -> AppliedPrompt | None:
    """Return the prompt of this name or text, else the role's default prompt, else the model's.

    `role` is also the prefix of the fields in errors.
    """
    field = "prompt" if role is None else f"{role}_prompt"
    if name is not None and text is not None:
        raise ConflictingFields(f"set together with {field}", "Send one of them.", field=f"{field}_name")
    if text is not None:
        if len(text) > limits.max_input_characters:
            raise RequestTooLarge(
                "too many characters", "Shorten it.",
                field=field, actual=len(text), maximum=limits.max_input_characters, reason="TOO_LONG",
            )  # fmt: skip
        return AppliedPrompt(None, text) if text else None
    if name is None:
        name = role_prompt_name(role, manifest.prompts) or manifest.default_prompt_name
    elif name not in manifest.prompts:
        raise prompt_not_found(name, manifest.prompts, f"{field}_name")
    return AppliedPrompt(name, manifest.prompts[name]) if name is not None and manifest.prompts[name] else None


def needs_last_layer_only(request: EncodeRequest, manifest: Manifest) -> bool:
    """Return whether the request needs only the last layer, which the fast lane computes."""
    return request.layers is not None and set(request.layers) <= {-1, manifest.num_hidden_layers}


def pooled_size(request: EncodeRequest, manifest: Manifest) -> int:
    """Return the number of components of a pooled vector before truncation; `request.layers` must be set."""
    assert request.layers is not None
    if needs_last_layer_only(request, manifest):
        return manifest.dimensions
    return manifest.hidden_size * (len(request.layers) if request.layer_reduce == "concat" else 1)
