"""Words against an independent reading of the rule in API.md, and tokens to words against brute force."""

import random
import unicodedata
from collections.abc import Iterator
from functools import cache

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from model.tokenizer import Offsets, Side, Source, Tokenizer, Tokens
from service.engine.encode.alignment import describe_tokens, find_words, is_cut_off, overlapping_tokens, words_of
from service.engine.model_loader import LoadedModel

JOINERS = "'’-‐‑"
PIECES = (
    *"abzÄß019 \t\n\x00\x1c.,;:!?()[]#@_$€+'’-‐‑",
    *"\u0301\u0308\ufe0f\u200d\u200b\u202e\u00a0\u3000",
    *"漢字一㐀ひらカナ한글〇々",
    *"אבגأبجकषि๐กำ½²Ⅷªﷺ",
    *"👩💻😀🇩🇪",
    "👩‍💻",
    "don't",
    "well-known",
    "x" * 300,
    "é",
)


def in_run(character: str) -> bool:
    """A letter, digit or mark, and no CJK ideograph."""
    ideograph = "IDEOGRAPH" in unicodedata.name(character, "") and character not in "々〻"
    return unicodedata.category(character)[0] in "LNM" and not ideograph


def reference_words(text: str) -> Iterator[Offsets]:
    """The rule, one character at a time."""
    at = 0
    while at < len(text):
        end = at + 1
        if in_run(text[at]):
            while end < len(text) and (
                in_run(text[end]) or (text[end] in JOINERS and in_run(text[end + 1 : end + 2] or " "))
            ):
                end += 1
        if not text[at].isspace():
            yield at, end
        at = end


def odd_texts(count: int) -> list[str]:
    chance = random.Random(23)
    return ["".join(chance.choices(PIECES, k=chance.randint(0, 25))) for _ in range(count)]


def test_words_follow_the_rule_on_odd_texts() -> None:
    """Emoji with joiners, combining marks, right to left, CJK, NUL, tabs, very long words."""
    for text in odd_texts(1000):
        assert list(find_words(text)) == list(reference_words(text)), ascii(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("money bank grows", ["money", "bank", "grows"]),
        ("don't re-enter 'quoted' rock-’n’-roll", ["don't", "re-enter", "'", "quoted", "'", "rock", "-", "’", "n",
                                                    "’", "-", "roll"]),
        ("3.14 is π²", ["3", ".", "14", "is", "π²"]),
        ("漢字 and かな", ["漢", "字", "and", "かな"]),
        ("", []),
        (" \t\n", []),
    ],
)  # fmt: skip
def test_words_of_examples(text: str, words: list[str]) -> None:
    """As a reader of API.md would cut them."""
    assert [text[start:end] for start, end in find_words(text)] == words


@cache
def byte_level() -> Tokenizer:
    """As RoBERTa publishes it, over bytes alone, trimming offsets or not."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the bank of the river", "the money in the bank"], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return Tokenizer(tokenizer.to_str().encode())


@pytest.fixture(params=["wordpiece", "bytelevel"])
def tokenizer(request: pytest.FixtureRequest, model: LoadedModel) -> Tokenizer:
    """Two families that cut texts very differently."""
    return model.tokenizer if request.param == "wordpiece" else byte_level()


def best_word(tokens: Tokens, index: int, words: list[tuple[int, Offsets]]) -> int | None:
    """The word that shares most characters with a token; the earlier one when two tie."""
    start, end = tokens.offsets[index]
    shared = [
        min(end, last) - max(start, first) if segment == tokens.segment[index] else 0
        for segment, (first, last) in words
    ]
    most = max(shared, default=0)
    return shared.index(most) if most > 0 else None


def test_a_token_belongs_to_the_word_it_overlaps_most(tokenizer: Tokenizer) -> None:
    """Against brute force, on pairs of odd texts."""
    texts = [text for text in odd_texts(300) if not (text.isspace() or not text)]
    for tokens in tokenizer.encode([Source(a, b) for a, b in zip(texts, reversed(texts), strict=True)]):
        words = words_of(tokens)
        plain = [(word.segment, (word.start, word.end)) for word in words]
        found = describe_tokens(tokens, tokenizer.surfaces(tokens), words)
        assert [token.word for token in found] == [best_word(tokens, at, plain) for at in range(len(tokens))]


def test_words_are_the_same_whatever_the_tokenizer(model: LoadedModel) -> None:
    """A search index can change models without its words moving."""
    sources = [Source(text or "a", "and a pair") for text in odd_texts(200)]
    pairs = zip(model.tokenizer.encode(sources), byte_level().encode(sources), strict=True)
    assert all(words_of(one) == words_of(other) for one, other in pairs)


def test_words_of_a_pair_are_numbered_through(tokenizer: Tokenizer) -> None:
    """The second text's words come after the first's, with offsets into their own text."""
    (tokens,) = tokenizer.encode([Source("the bank", "money, money")])
    assert [(word.text, word.start, word.segment) for word in words_of(tokens)] == [
        ("the", 0, 0), ("bank", 4, 0), ("money", 0, 1), (",", 5, 1), ("money", 7, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("side", ["right", "left"])
def test_words_that_are_wholly_cut_are_left_out(tokenizer: Tokenizer, side: str) -> None:
    """And no word is left without a token."""
    text = "the bank of the river, the money in the bank"
    (whole,) = tokenizer.encode([Source(text)])
    for limit in range(3, len(whole) + 1):
        tokens = whole.truncate(limit, "right" if side == "right" else "left")
        words = words_of(tokens)
        ranges = overlapping_tokens(tokens, [(0, (word.start, word.end)) for word in words])
        assert all(first < last for first, last in ranges)
        expected = [span for span in find_words(text) if any(s < span[1] and e > span[0] for s, e in content(tokens))]
        assert [(word.start, word.end) for word in words] == expected


def content(tokens: Tokens) -> list[Offsets]:
    return [offsets for offsets, special in zip(tokens.offsets, tokens.special, strict=True) if not special]


def test_nothing_is_cut_off_without_truncation(tokenizer: Tokenizer) -> None:
    """Not even an empty range at the end."""
    (tokens,) = tokenizer.encode([Source("the bank")])
    assert not any(is_cut_off(tokens, 0, (start, 8)) for start in range(8))


def test_tokens_of_spans_against_brute_force(tokenizer: Tokenizer) -> None:
    """Every range of a text, one that covers only blanks included."""
    text = "the  bank, 漢字 don't 😀"
    (tokens,) = tokenizer.encode([Source(text)])
    spans = [(start, end) for start in range(len(text)) for end in range(start + 1, len(text) + 1)]
    for span, (first, last) in zip(spans, overlapping_tokens(tokens, [(0, span) for span in spans]), strict=True):
        hits = [
            index
            for index, (start, end) in enumerate(tokens.offsets)
            if not tokens.special[index] and start < span[1] and end > span[0] and start < end
        ]
        assert [first, last] == ([hits[0], hits[-1] + 1] if hits else [0, 0]), span


def test_given_ids_have_no_words(model: LoadedModel) -> None:
    """There are no characters."""
    (tokens,) = model.tokenizer.encode([Source(token_ids=(2769, 2924))])
    assert words_of(tokens) == []
    assert [token.text for token in describe_tokens(tokens, model.tokenizer.surfaces(tokens), [])][1] == "money"


class CountingEncoding:
    """An encoding of one long text that counts how often its offsets are rebuilt."""

    def __init__(self, words: int) -> None:
        self.offsets_read = 0
        self._words = words

    @property
    def ids(self) -> list[int]:
        return [101, *[2769] * self._words, 102]

    @property
    def type_ids(self) -> list[int]:
        return [0] * (self._words + 2)

    @property
    def special_tokens_mask(self) -> list[int]:
        return [1, *[0] * self._words, 1]

    @property
    def sequence_ids(self) -> list[int | None]:
        return [None, *[0] * self._words, None]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        self.offsets_read += 1
        return [(0, 0), *[(index, index + 1) for index in range(self._words)], (0, 0)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_offsets_of_a_truncated_text_are_read_a_fixed_number_of_times(side: Side) -> None:
    """Each read rebuilds a list as long as the untruncated text, so reads per word would be quadratic."""
    encoding = CountingEncoding(5000)
    tokens = Tokens(Source("\u4e00" * 5000), encoding).truncate(256, side)
    assert len(words_of(tokens)) == 254
    assert not any(is_cut_off(tokens, 0, span) for span in tokens.offsets[1:-1])
    assert overlapping_tokens(tokens, [(0, span) for span in tokens.offsets[1:-1]]).tolist() == [
        [index, index + 1] for index in range(1, 255)
    ]
    assert encoding.offsets_read <= 2
