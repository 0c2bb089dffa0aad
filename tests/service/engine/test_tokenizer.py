"""The server's tokenizer: long batches on several threads, decoding, and token ids with special tokens."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.files import TOKENIZER
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from service.engine.model_loader import helper_threads


@pytest.fixture(scope="module")
def tokenizer(default_artifact: Path) -> Tokenizer:
    return Tokenizer((default_artifact / TOKENIZER).read_bytes())


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ((101, 2769, 2924, 102), (2769, 2924)),
        ((2769, 2924), (2769, 2924)),
        ((101, 2769), (101, 2769)),
        ((2769, 102), (2769, 102)),
        ((101, 102), ()),
        ((101,), (101,)),
        ((), ()),
        ((101, 101, 102, 102), (101, 102)),
    ],
)
def test_special_tokens_are_removed_if_both_ends_have_them(
    tokenizer: Tokenizer, token_ids: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tokenizer.content_ids(token_ids) == expected
    assert tokenizer.content_ids(list(token_ids)) == expected


def test_content_ids_encode_to_the_same_input(tokenizer: Tokenizer) -> None:
    (whole,) = tokenizer.encode([TokenizerInput("money bank grows")])
    content = tokenizer.content_ids(whole.input_ids)
    (framed,) = tokenizer.encode([TokenizerInput(token_ids=content)])
    assert framed.input_ids == whole.input_ids


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
inputs = st.builds(
    lambda words, repeats, pair: TokenizerInput(" ".join(words * repeats), pair),
    st.lists(words, max_size=8), st.sampled_from((1, 1, 40, 400)), st.none() | words,
)  # fmt: skip


@given(sources=st.lists(inputs, min_size=1, max_size=40), threads=st.integers(2, 4), offsets=st.booleans())
def test_several_threads_return_what_one_does(
    default_artifact: Path, sources: list[TokenizerInput], threads: int, offsets: bool
) -> None:
    definition = (default_artifact / TOKENIZER).read_bytes()
    one, several = _tokenizer(definition, 1), _tokenizer(definition, threads)
    for expected, actual in zip(
        one.encode(sources, offsets=offsets), several.encode(sources, offsets=offsets), strict=True
    ):
        assert actual.input_ids == expected.input_ids
        assert actual.offsets == expected.offsets
    pairs = [source.text for source in sources]
    expected_pairs = one.encode_pairs("a query", pairs, offsets=offsets)
    assert [item.input_ids for item in several.encode_pairs("a query", pairs, offsets=offsets)] == [
        item.input_ids for item in expected_pairs
    ]


def test_a_long_batch_does_not_wait_for_busy_threads(default_artifact: Path) -> None:
    """Its own thread tokenizes the parts that no other thread has begun."""
    tokenizer = _tokenizer((default_artifact / TOKENIZER).read_bytes(), 2)
    release = threading.Event()
    assert tokenizer.helpers is not None
    busy = tokenizer.helpers.submit(release.wait, 60)
    try:
        tokenized = tokenizer.encode([TokenizerInput("money bank grows " * 1000)] * 4)
    finally:
        release.set()
    assert busy.result()
    assert [len(item) for item in tokenized] == [3002] * 4


class Helpers:
    """Helpers that run every other part at once, and never the others."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, work: Callable[[Any], Any], part: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        if len(self.futures) % 2:
            future.set_running_or_notify_cancel()
            future.set_result(work(part))
        self.futures.append(future)
        return future


def test_parts_keep_their_order_whoever_begins_them(default_artifact: Path) -> None:
    tokenizer, helpers = _tokenizer((default_artifact / TOKENIZER).read_bytes(), 3), Helpers()
    sources = [TokenizerInput("money bank grows " * (600 + number)) for number in range(6)]
    with mock.patch.object(tokenizer, "helpers", helpers):
        tokenized = tokenizer.encode(sources)
    assert len(helpers.futures) == 6
    assert [len(item) for item in tokenized] == [3 * (600 + number) + 2 for number in range(6)]


def test_a_failing_part_leaves_none_for_the_helpers(default_artifact: Path) -> None:
    tokenizer, helpers = _tokenizer((default_artifact / TOKENIZER).read_bytes(), 3), Helpers()
    sources = [*[TokenizerInput("money bank grows " * 600)] * 4, TokenizerInput("\ud800" * 9000)]
    with (
        mock.patch.object(tokenizer, "helpers", helpers),
        pytest.raises((TypeError, UnicodeEncodeError)),
    ):
        tokenizer.encode(sources)
    assert [future.done() for future in helpers.futures] == [True] * 5


@cache
def _tokenizer(definition: bytes, threads: int) -> Tokenizer:
    tokenizer = Tokenizer(definition)
    tokenizer.helpers = helper_threads(threads)
    return tokenizer


def test_decode_returns_text_with_or_without_special_tokens(tokenizer: Tokenizer) -> None:
    token_ids = (101, 2769, 2924, 102)
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "money bank"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "[CLS] money bank [SEP]"
