"""Word boundaries against a second implementation of the rule in docs/api.md, and alignment against brute force."""

import random
import unicodedata
from collections.abc import Iterator
from functools import cache

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from model.artifact.tokenizer import Offsets, Side, TokenizedInput, Tokenizer, TokenizerInput
from service.engine.model_loader import LoadedModel
from service.operations.units import describe_tokens, find_words, is_removed_by_truncation, overlapping_tokens, words_of

JOINERS = "'’-‐‑·‧׳״"
EMOJI, FLAG = {*"👩💻😀"}, {*"🇩🇪"}
PIECES = (
    *"abzÄß019 \t\n\x00\x1c.,;:!?()[]#@_$€+'’-‐‑·״\"",
    *"\u0301\u0308\ufe0f\u200c\u200d\u200b\u202e\u00ad\u00a0\u3000",
    *"漢字一㐀ひらカナ한글〇々",
    *"אבגأبجकषि๐กำ½²Ⅷªﷺ",
    *"👩💻😀🏽🇩🇪",
    "👩‍💻",
    "don't",
    "well-known",
    "x" * 300,
    "é",
)


def in_run(character: str) -> bool:
    """Return whether a character is a letter, digit or mark, but not a CJK ideograph."""
    ideograph = "IDEOGRAPH" in unicodedata.name(character, "") and character not in "々〻"
    return unicodedata.category(character)[0] in "LNM" and not ideograph


def skip_joiners(text: str, at: int) -> int:
    """Return the index after an apostrophe or hyphen, or after format characters, that may join two runs."""
    around = text[at - 1], text[at + 1 : at + 2] or " "
    is_gershayim = text[at] == '"' and all("HEBREW" in unicodedata.name(character, "") for character in around)
    if text[at] in JOINERS or is_gershayim:
        return at + 1
    while at < len(text) and unicodedata.category(text[at]) == "Cf" and text[at] != "\u200b":
        at += 1
    return at


def emoji_end(text: str, at: int) -> int:
    """Return where an emoji sequence ends, whose first character is before `at`."""
    while at < len(text) and (unicodedata.category(text[at])[0] == "M" or text[at] == "🏽"):
        at += 1
    if text[at : at + 1] == "\u200d" and text[at + 1 : at + 2] in EMOJI:
        return emoji_end(text, at + 2)
    return at


def reference_words(text: str) -> Iterator[Offsets]:
    """Apply the rule one character at a time."""
    at = 0
    while at < len(text):
        end = at + 1
        if in_run(text[at]):
            while end < len(text) and in_run(text[skip_joiners(text, end) :][:1] or " "):
                end = skip_joiners(text, end) + 1
        elif text[at] in FLAG:
            end += text[end : end + 1] in FLAG
        elif text[at] in EMOJI:
            end = emoji_end(text, end)
        if not text[at].isspace():
            yield at, end
        at = end


def edge_case_texts(count: int) -> list[str]:
    chance = random.Random(23)
    return ["".join(chance.choices(PIECES, k=chance.randint(0, 25))) for _ in range(count)]


def test_find_words_follows_the_rule_on_edge_case_texts() -> None:
    """The texts mix emoji with joiners, combining marks, right-to-left text, CJK, NUL, tabs and very long words."""
    for text in edge_case_texts(1000):
        assert list(find_words(text)) == list(reference_words(text)), ascii(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("money bank grows", ["money", "bank", "grows"]),
        ("don't re-enter 'quoted' rock-’n’-roll", ["don't", "re-enter", "'", "quoted", "'", "rock", "-", "’", "n",
                                                    "’", "-", "roll"]),
        ("3.14 is π²", ["3", ".", "14", "is", "π²"]),
        ("漢字 and かな", ["漢", "字", "and", "かな"]),
        ("col·lecció צה״ל · ״א״", ["col·lecció", "צה״ל", "·", "״", "א", "״"]),
        ('צה"ל "אב" a"b ק"מ"', ['צה"ל', '"', "אב", '"', "a", '"', "b", 'ק"מ', '"']),
        ("👩‍👩‍👧👍🏽❤️ 🇩🇪🇫🇷!", ["👩‍👩‍👧", "👍🏽", "❤️", "🇩🇪", "🇫🇷", "!"]),
        ("می\u200cخواهم ශ\u200dරී foot\xadball", ["می\u200cخواهم", "ශ\u200dරී", "foot\xadball"]),
        ("ភាសា\u200bខ្មែរ \u200fשלום\u200e", ["ភាសា", "\u200b", "ខ្មែរ", "\u200f", "שלום", "\u200e"]),
        ("", []),
        (" \t\n", []),
    ],
)  # fmt: skip
def test_find_words_splits_text(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in find_words(text)] == words


@cache
def byte_level() -> Tokenizer:
    """Return a RoBERTa-style byte-level BPE tokenizer."""
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
    """A WordPiece tokenizer and a byte-level tokenizer."""
    return model.tokenizer if request.param == "wordpiece" else byte_level()


def best_word(tokens: TokenizedInput, index: int, words: list[tuple[int, Offsets]]) -> int | None:
    """Return the word that shares the most characters with a token, or the earlier one on a tie."""
    start, end = tokens.offsets[index]
    shared = [
        min(end, last) - max(start, first) if segment == tokens.segment[index] else 0
        for segment, (first, last) in words
    ]
    most = max(shared, default=0)
    return shared.index(most) if most > 0 else None


def test_word_index_is_the_word_with_the_largest_overlap(tokenizer: Tokenizer) -> None:
    """Compares with brute force on pairs of edge-case texts."""
    texts = [text for text in edge_case_texts(300) if not (text.isspace() or not text)]
    for tokens in tokenizer.encode([TokenizerInput(a, b) for a, b in zip(texts, reversed(texts), strict=True)]):
        words = words_of(tokens)
        ranges = [(word.segment, (word.start, word.end)) for word in words]
        described = describe_tokens(tokens, tokenizer.token_texts(tokens), words)
        expected = [best_word(tokens, index, ranges) for index in range(len(tokens))]
        assert [token.word_index for token in described] == expected


def test_words_do_not_depend_on_the_tokenizer(model: LoadedModel) -> None:
    """A search index that stores word offsets must stay valid when the model changes."""
    sources = [TokenizerInput(text or "a", "and a pair") for text in edge_case_texts(200)]
    pairs = zip(model.tokenizer.encode(sources), byte_level().encode(sources), strict=True)
    assert all(words_of(left) == words_of(right) for left, right in pairs)


def test_words_of_a_pair_have_offsets_into_their_own_text(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.encode([TokenizerInput("the bank", "money, money")])
    assert [(word.text, word.start, word.segment) for word in words_of(tokens)] == [
        ("the", 0, 0), ("bank", 4, 0), ("money", 0, 1), (",", 5, 1), ("money", 7, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("side", ["right", "left"])
def test_words_removed_by_truncation_are_omitted(tokenizer: Tokenizer, side: str) -> None:
    """Every remaining word must overlap at least one token."""
    text = "the bank of the river, the money in the bank"
    (untruncated,) = tokenizer.encode([TokenizerInput(text)])
    for limit in range(3, len(untruncated) + 1):
        tokens = untruncated.truncate(limit, "right" if side == "right" else "left")
        words = words_of(tokens)
        ranges = overlapping_tokens(tokens, [(0, (word.start, word.end)) for word in words])
        assert all(first < last for first, last in ranges)
        expected = [span for span in find_words(text) if any(s < span[1] and e > span[0] for s, e in content(tokens))]
        assert [(word.start, word.end) for word in words] == expected


def content(tokens: TokenizedInput) -> list[Offsets]:
    return [offsets for offsets, special in zip(tokens.offsets, tokens.special_tokens_mask, strict=True) if not special]


def test_untruncated_text_has_no_range_cut_off(tokenizer: Tokenizer) -> None:
    """The ranges include an empty one at the end."""
    (tokens,) = tokenizer.encode([TokenizerInput("the bank")])
    assert not any(is_removed_by_truncation(tokens, 0, (start, 8)) for start in range(8))


def test_overlapping_tokens_match_brute_force(tokenizer: Tokenizer) -> None:
    """Covers every range of a text, including whitespace-only ones."""
    text = "the  bank, 漢字 don't 😀"
    (tokens,) = tokenizer.encode([TokenizerInput(text)])
    spans = [(start, end) for start in range(len(text)) for end in range(start + 1, len(text) + 1)]
    for span, (first, last) in zip(spans, overlapping_tokens(tokens, [(0, span) for span in spans]), strict=True):
        expected = [
            index
            for index, (start, end) in enumerate(tokens.offsets)
            if not tokens.special_tokens_mask[index] and start < span[1] and end > span[0] and start < end
        ]
        assert [first, last] == ([expected[0], expected[-1] + 1] if expected else [0, 0]), span


def test_token_ids_input_has_no_words(model: LoadedModel) -> None:
    (tokens,) = model.tokenizer.encode([TokenizerInput(token_ids=(2769, 2924))])
    assert words_of(tokens) == []
    assert [token.text for token in describe_tokens(tokens, model.tokenizer.token_texts(tokens), [])][1] == "money"


class CountingEncoding:
    """The encoding of one long text, which counts how often its offsets are read."""

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
def test_offsets_of_a_truncated_text_are_read_at_most_twice(side: Side) -> None:
    """A read rebuilds a list as long as the untruncated text, so one read per word would be quadratic."""
    encoding = CountingEncoding(5000)
    tokens = TokenizedInput(TokenizerInput("\u4e00" * 5000), encoding).truncate(256, side)
    assert len(words_of(tokens)) == 254
    assert not any(is_removed_by_truncation(tokens, 0, span) for span in tokens.offsets[1:-1])
    start, end = tokens.kept_characters[0]
    assert is_removed_by_truncation(tokens, 0, (end, end + 1) if side == "right" else (start - 1, start))
    assert overlapping_tokens(tokens, [(0, span) for span in tokens.offsets[1:-1]]).tolist() == [
        [index, index + 1] for index in range(1, 255)
    ]
    assert encoding.offsets_read <= 2
