"""Texts of an exact length, and scaling verdicts."""

from pathlib import Path

import pytest

from tests.bench.project import Model
from tests.bench.scaling import IN_FLIGHT, LENGTHS, Scaling
from tests.bench.workloads import texts_of_length

LONG = " ".join(
    f"The river bank number {number} was unbelievably overgrown in spring, they said." for number in range(90)
)


@pytest.mark.parametrize("length", [8, 256])
def test_texts_of_length_have_exactly_that_length(default_artifact: Path, length: int) -> None:
    tokenizer = Model(default_artifact).tokenizer()
    texts = texts_of_length(length, LONG, tokenizer, 16)
    assert texts
    assert set(tokenizer.lengths(texts)) == {length}


def test_four_texts_in_flight_have_a_separate_target() -> None:
    rates = dict.fromkeys(IN_FLIGHT, 1000.0) | {IN_FLIGHT[0]: 760.0}
    verdicts = Scaling(dict.fromkeys(LENGTHS, 1000.0), rates).verdicts()
    assert [(verdict.measured, verdict.passed) for verdict in verdicts] == [(1.0, True), (1.0, True), (0.76, True)]
