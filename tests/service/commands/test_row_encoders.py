"""Row batches: number of rows and of characters."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.commands.embed import row_encoders
from service.commands.embed.row_encoders import BATCH_CHARACTERS, split_batches
from service.commands.row_files import Row

TEXTS = st.none() | st.integers(0, 3 * BATCH_CHARACTERS // 2).map(lambda length: "a" * length)


@given(st.lists(TEXTS, max_size=20), st.integers(1, 5))
def test_batches_have_few_rows_and_few_characters(texts: list[str | None], limit: int) -> None:
    rows = [Row(number, text) for number, text in enumerate(texts, start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_encoders, "BATCH_ROWS", limit)
        batches = list(split_batches(rows))
    assert [row for batch in batches for row in batch] == rows
    for batch in batches:
        assert 1 <= len(batch) <= limit
        assert sum(len(row.text or "") for row in batch[:-1]) <= BATCH_CHARACTERS


def test_batches_are_read_as_they_are_needed() -> None:
    read = []

    def rows() -> Iterator[Row]:
        for number in range(10 * row_encoders.BATCH_ROWS):
            read.append(number)
            yield Row(number, "text")

    batches = split_batches(rows())
    assert len(next(batches)) == row_encoders.BATCH_ROWS
    assert len(read) == row_encoders.BATCH_ROWS
