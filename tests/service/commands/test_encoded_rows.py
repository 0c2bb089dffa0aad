"""Row batches: number of rows and of characters."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from service.commands.embed import CHARACTERS_PER_ROW, split_batches
from service.commands.row_files import Row

TEXTS = st.none() | st.integers(0, 3 * CHARACTERS_PER_ROW).map(lambda length: "a" * length)


@given(st.lists(TEXTS, max_size=20), st.integers(1, 5))
def test_batches_have_few_rows_and_few_characters(texts: list[str | None], limit: int) -> None:
    rows = [Row(number, text) for number, text in enumerate(texts, start=1)]
    batches = list(split_batches(rows, limit))
    assert [row for batch in batches for row in batch] == rows
    for batch in batches:
        assert 1 <= len(batch) <= limit
        assert sum(len(row.text or "") for row in batch[:-1]) <= CHARACTERS_PER_ROW * limit


def test_batches_are_read_as_they_are_needed() -> None:
    read = []

    def rows() -> Iterator[Row]:
        for number in range(100):
            read.append(number)
            yield Row(number, "text")

    batches = split_batches(rows(), 10)
    assert len(next(batches)) == 10
    assert len(read) == 10
