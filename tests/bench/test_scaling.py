"""Texts of an exact length, and attention's share."""

from pathlib import Path

import pytest

from model.artifact import TOKENIZER
from model.tokenizer import Source, Tokenizer
from tests.bench.growth import texts_of, without_attention

LONG = " ".join(
    f"The river bank number {number} was unbelievably overgrown in spring, they said." for number in range(90)
)


@pytest.mark.parametrize("length", [8, 256])
def test_texts_have_exactly_the_length_asked_for(default_artifact: Path, length: int) -> None:
    tokenizer = Tokenizer((default_artifact / TOKENIZER).read_bytes())
    texts = texts_of(length, LONG, tokenizer)
    assert texts
    assert {len(found) for found in tokenizer.encode([Source(text) for text in texts])} == {length}


def test_attention_costs_what_its_multiplications_do() -> None:
    row, width = 256, 384
    linear, attention = 24 * width**2, 4 * row * width
    assert without_attention(row, width) == pytest.approx((linear + attention) / linear)
