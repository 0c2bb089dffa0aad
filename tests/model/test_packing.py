"""Packing: which texts share a row, and how the row is laid out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.packing import RowLengths, choose, lay_out
from service.engine.backends.select import FEW_LENGTHS, MANY_LENGTHS
from service.engine.batcher import WINDOW

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=WINDOW)
TEXTS = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=40), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 8), st.integers(1, 300))
def test_a_row_has_the_oldest_and_fits(sizes: list[int], free: int, shared: int) -> None:
    """The oldest text is always chosen, none twice, and the rest only where there is room."""
    chosen = choose(sizes, free, shared=shared)
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    assert sum(sizes[index] for index in chosen) <= max(shared, sizes[0])


@given(SIZES, st.integers(1, 8), st.integers(1, 300))
def test_choosing_again_and_again_takes_every_text_once(sizes: list[int], free: int, shared: int) -> None:
    """Nothing is lost or doubled, and rows run out."""
    waiting, taken = list(enumerate(sizes)), []
    while waiting:
        chosen = set(choose([size for _, size in waiting], free, shared=shared))
        taken += [number for at, (number, _) in enumerate(waiting) if at in chosen]
        waiting = [entry for at, entry in enumerate(waiting) if at not in chosen]
    assert sorted(taken) == list(range(len(sizes)))


def test_free_workers_share_what_waits() -> None:
    """With two workers free the first takes half, not all."""
    assert choose([4, 4, 4, 4], 2, shared=256) == [0, 1]
    assert choose([4, 4, 4, 4], 1, shared=256) == [0, 1, 2, 3]


def test_smaller_texts_fill_the_gap() -> None:
    """A text that does not fit is passed over for one that does."""
    assert choose([100, 200, 28], 1, shared=128) == [0, 2]


@pytest.mark.parametrize("short", [FEW_LENGTHS, MANY_LENGTHS], ids=["few", "many"])
@pytest.mark.parametrize("shared", [1, 128, 256, 1000])
@pytest.mark.parametrize("max_tokens", [16, 100, 256, 512, 8192])
def test_lengths_hold_every_text_and_every_shared_row(max_tokens: int, shared: int, short: tuple[int, ...]) -> None:
    """They ascend, none is longer than need be, and `fit` is the shortest that holds the tokens."""
    rows = RowLengths.up_to(max_tokens, shared, short)
    assert list(rows.lengths) == sorted(set(rows.lengths))
    assert rows.lengths[-1] >= max(max_tokens, rows.shared)
    assert rows.shared <= shared
    for shorter, length in zip((0, *rows.lengths), rows.lengths, strict=False):
        assert [rows.fit(tokens) for tokens in (shorter + 1, length)] == [length, length]


def test_default_lengths_are_the_few_that_are_warmed() -> None:
    """About ten shapes for a model of 256 tokens, and a step of 128 above."""
    assert RowLengths.up_to(256, 256, FEW_LENGTHS).lengths == (16, 32, 48, 64, 96, 128, 160, 192, 256)
    assert RowLengths.up_to(512, 256, FEW_LENGTHS).lengths[-3:] == (256, 384, 512)


@given(TEXTS, st.integers(0, 50))
def test_a_row_lays_texts_end_to_end(texts: list[list[int]], padding: int) -> None:
    """Positions restart, segments number the texts from 1, and what is left is segment 0."""
    length = sum(map(len, texts)) + padding
    row = lay_out([(text, None) for text in texts], length)
    ids, positions, types, segments = (row.inputs[name][0] for name in ("ids", "positions", "types", "segments"))
    assert (row.length, row.tokens, row.sizes) == (length, length - padding, [len(text) for text in texts])
    for number, (start, text) in enumerate(zip(row.starts, texts, strict=True), start=1):
        here = slice(start, start + len(text))
        assert ids[here].tolist() == text
        assert positions[here].tolist() == list(range(len(text)))
        assert np.flatnonzero(segments == number).tolist() == list(range(start, start + len(text)))
    assert not segments[row.tokens :].any()
    assert not types.any()


def test_types_are_laid_where_given() -> None:
    """A pair's second text keeps its type beside texts that have none."""
    row = lay_out([([5], None), ([6, 7], [0, 1])], 4)
    assert row.inputs["types"].tolist() == [[0, 0, 1, 0]]


def test_positions_of_a_very_long_text() -> None:
    """Longer than the table of positions that is kept."""
    row = lay_out([([1] * 8192, None)], 8192)
    assert row.inputs["positions"][0].tolist() == list(range(8192))


def sentence_lengths(count: int) -> list[int]:
    """Lengths spread as those of real sentences: quantiles 8, 13, 18, 30, 53 at 10, 25, 50, 75, 90 %."""
    chances = np.random.default_rng(11).random(count)
    lengths = np.interp(chances, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1], [4, 8, 13, 18, 30, 53, 128])
    return [int(length) for length in lengths]


@pytest.mark.parametrize(("shared", "short"), [(128, MANY_LENGTHS), (256, FEW_LENGTHS)])
def test_little_of_a_row_is_padding_under_load(shared: int, short: tuple[int, ...]) -> None:
    """The reason for packing, counted: with everything waiting, under 8 % of what runs is padding."""
    waiting, rows = sentence_lengths(2000), RowLengths.up_to(256, shared, short)
    tokens, run, count = sum(waiting), 0, 0
    while waiting:
        chosen = set(choose(waiting[:WINDOW], 1, shared=shared))
        run += rows.fit(sum(waiting[at] for at in chosen))
        waiting = [size for at, size in enumerate(waiting) if at not in chosen]
        count += 1
    print(f"shared {shared}: {1 - tokens / run:.1%} padding, {count} rows")
    assert 1 - tokens / run < 0.08
    assert count <= 1.1 * tokens / shared + 1
