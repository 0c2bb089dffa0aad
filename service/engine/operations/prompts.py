"""The prompts of a request: which ones apply, and how many tokens they have."""

from collections.abc import Iterable, Sequence

from model.manifest import Manifest
from model.prompts import Role, role_prompt_name
from model.tokenizer import TokenizerInput
from service.engine.operations.inputs import no_room
from service.engine.operations.served_model import ServedModel
from service.engine.schema.encode import AppliedPrompt, Input, Limits
from service.errors import ConflictingFields, NotFound, RequestTooLarge, echo


def select_prompt(
    inputs: Sequence[Input], name: str | None, text: str | None, limits: Limits, manifest: Manifest
) -> AppliedPrompt | None:
    """Return the prompt of a request, else the default of the model. Token ids get no default prompt."""
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
    """Return the prompt of this name or text, else the role's default prompt, else the model's.

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
        name = role_prompt_name(role, prompts) or manifest.default_prompt_name
    elif name not in prompts:
        raise prompt_not_found(name, prompts, f"{field}_name")
    return AppliedPrompt(name, prompts[name]) if name is not None and prompts[name] else None


def prompt_not_found(name: str, prompts: Iterable[str], field: str) -> NotFound:
    """Return the error for a prompt that the model lacks."""
    known = ", ".join(f'"{prompt}"' for prompt in prompts)
    remedy = f"Use one of {known}." if known else "Leave it out: the model has no prompts."
    return NotFound("not found", remedy, field=field, actual=echo(name), reason="PROMPT_NOT_FOUND")


async def count_prompt(
    model: ServedModel, prompt: AppliedPrompt, inputs: int, deadline: float, field: str = "prompt"
) -> int:
    """Return the number of tokens of a prompt, without special tokens.

    Raises `TooLong` if it leaves no room for text, and `RequestTooLarge` if its copies, one per input, have more
    characters than the largest request.
    """
    characters, limit = len(prompt.text) * inputs, model.limits.max_request_bytes
    if characters > limit:
        raise RequestTooLarge(
            f"too many characters for {inputs} inputs", "Shorten it or send fewer inputs.",
            field=field, actual=characters, maximum=limit, reason="TOO_LONG",
        )  # fmt: skip
    if prompt.name is not None and prompt.name in model.prompt_tokens:
        return model.prompt_tokens[prompt.name]
    sources = [TokenizerInput(""), TokenizerInput(prompt.text)]
    empty, tokens = await model.run(len(prompt.text), deadline, model.tokenizer.encode, sources, offsets=False)
    count = len(tokens) - len(empty)
    # A prompt within the limit may still leave no room: `check_length` decides with the text.
    if len(tokens) > model.manifest.max_input_tokens:
        raise no_room(count, model.manifest.max_input_tokens, field)
    if prompt.name is not None:
        model.prompt_tokens[prompt.name] = count
    return count
