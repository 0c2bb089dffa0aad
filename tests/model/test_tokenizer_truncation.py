"""Truncation of tokenized inputs."""

from typing import get_args

import pytest

from model.artifact.tokenizer import Side, TokenizedInput, Tokenizer
from tests.model.tokenizer_inputs import encode_one, truncate_by_library

PAIRS = [None, "", "a b", "the river", "seven small boats wait at the bank", "one two three four five six seven",
         "the bank " * 15]  # fmt: skip


@pytest.mark.parametrize("side", get_args(Side))
@pytest.mark.parametrize("pair", PAIRS)
def test_truncation_equals_the_library(tokenizer: Tokenizer, side: Side, pair: str | None) -> None:
    """Special tokens must never be dropped."""
    text = "seven small boats wait at the bank"
    tokens = encode_one(tokenizer, text, pair)
    special_count = sum(tokens.special_tokens_mask)
    for limit in range(len(tokens) + 2):
        truncated = tokens.truncate(limit, side)
        assert truncated.input_ids == truncate_by_library(tokenizer, text, pair, limit, side).ids
        assert sum(truncated.special_tokens_mask) == special_count
        assert (len(truncated), truncated.truncated) == (
            max(special_count, min(limit, len(tokens))),
            limit < len(tokens),
        )


@pytest.mark.parametrize("side", get_args(Side))
def test_truncation_keeps_lists_aligned(tokenizer: Tokenizer, side: Side) -> None:
    def rows(tokens: TokenizedInput) -> list[tuple[object, ...]]:
        texts = tokenizer.token_texts(tokens)
        return list(zip(tokens.input_ids, tokens.offsets, tokens.segment, tokens.token_type_ids, texts, strict=True))

    tokens = encode_one(tokenizer, "seven small boats wait", "at the river bank")
    truncated = rows(tokens.truncate(8, side))
    assert len(truncated) == 8
    assert [row for row in rows(tokens) if row in truncated] == truncated


@pytest.mark.parametrize(("prompt", "size"), [("", 0), ("money: ", 2)])
def test_kept_characters_exclude_truncated_text_and_the_prompt(
    tokenizer_by_kind: dict[str, Tokenizer], prompt: str, size: int
) -> None:
    tokens = encode_one(tokenizer_by_kind["default"], "seven  small  boats", prompt=prompt)
    assert tokens.kept_characters[0] == (0, 19)
    assert tokens.truncate(size + 4, "right").kept_characters[0] == (0, 14)
    assert tokens.truncate(size + 4, "left").kept_characters[0] == (5, 19)
    assert tokens.truncate(size + 2, "right").kept_characters[0] == (0, 0)
    assert tokens.truncate(size + 2, "left").kept_characters[0] == (19, 19)


def test_kept_characters_of_pair_are_per_segment(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    """Tokens of the longer segment are dropped first."""
    tokens = encode_one(tokenizer_by_kind["default"], "bank", "seven small boats")
    right, left = tokens.truncate(6, "right"), tokens.truncate(6, "left")
    assert right.kept_characters == ((0, 4), (0, 12))
    assert left.kept_characters == ((0, 4), (5, 17))
