"""Special tokens in texts and in the model's prompts, compared with the tokenizers library."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from tests.model.tiny_tokenizers import BUILDERS

PARTS = st.lists(st.sampled_from(["the river", " bank", "Money ", " ", ",", "MASK", "SEP"]), max_size=5)
SEPARATORS = {"wordpiece": "[SEP]", "swapped": "[SEP]", "byte fallback": "<eos>"}


def special_texts(kind: str) -> tuple[str, str]:
    """Return two special tokens of a tokenizer, the first one for masks."""
    return ("[MASK]" if kind in ("wordpiece", "swapped") else "<mask>"), SEPARATORS.get(kind, "</s>")


def fill(parts: list[str], kind: str) -> str:
    """Return a text in which MASK and SEP are special tokens."""
    mask, separator = special_texts(kind)
    return "".join({"MASK": mask, "SEP": separator}.get(part, part) for part in parts)


def load(kind: str, **options: object) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Return a tokenizer and the one of the library, which recognizes special tokens."""
    definition = BUILDERS[kind]().to_str()
    raw = tokenizers.Tokenizer.from_str(definition)
    raw.no_truncation()
    raw.no_padding()
    return Tokenizer(definition.encode(), **options), raw  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BUILDERS)
@given(parts=PARTS, pair=st.none() | PARTS)
def test_texts_can_contain_special_tokens(kind: str, parts: list[str], pair: list[str] | None) -> None:
    tokenizer, raw = load(kind, special_tokens_in_text=True)
    text, other = fill(parts, kind), None if pair is None else fill(pair, kind)
    (tokens,) = tokenizer.encode([TokenizerInput(text, other)])
    expected = raw.encode(text, other) if other is not None else raw.encode(text)
    assert (tokens.input_ids, tokens.token_type_ids) == (expected.ids, expected.type_ids)
    content = [segment != -1 for segment in tokens.segment]
    assert content == [not flag for flag in tokens.special_tokens_mask]


@pytest.mark.parametrize("kind", BUILDERS)
@given(prompt=PARTS, parts=PARTS, pair=st.none() | PARTS)
def test_own_prompts_contain_special_tokens_and_texts_do_not(
    kind: str, prompt: list[str], parts: list[str], pair: list[str] | None
) -> None:
    own = fill(["MASK", *prompt], kind)
    tokenizer, raw = load(kind, prompts=[own, "plain"])
    text, other = fill(parts, kind), None if pair is None else fill(pair, kind)
    (tokens,) = tokenizer.encode([TokenizerInput(text, other, prompt=own)])
    if not {"MASK", "SEP"} & {*parts, *(pair or ())}:
        expected = raw.encode(own + text, other) if other is not None else raw.encode(own + text)
        assert (tokens.input_ids, tokens.token_type_ids) == (expected.ids, expected.type_ids)
    # The same prompt in a tokenizer without prompts is plain text.
    plain = load(kind)[0].encode([TokenizerInput(text, other, prompt=own)])[0]
    frame = load(kind)[0].encode([TokenizerInput("", None if other is None else "")])[0]
    special = {token["id"] for token in json.loads(raw.to_str())["added_tokens"] if token["special"]}
    unknown = raw.token_to_id("[UNK]" if kind in ("wordpiece", "swapped") else "<unk>")
    counted = special - {unknown}
    assert sum(number in counted for number in plain.input_ids) == sum(number in counted for number in frame.input_ids)
    in_prompt = sum(part in ("MASK", "SEP") for part in ["MASK", *prompt])
    found = sum(number in counted for number in tokens.input_ids)
    assert found == in_prompt + sum(number in counted for number in frame.input_ids)
    for (start, end), segment in zip(tokens.offsets, tokens.segment, strict=True):
        assert 0 <= start <= end <= len((text, other or "")[max(0, segment)])
