"""Tokens: the ids that the published tokenizer gives, and offsets a caller can trust."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import tokenizers
import transformers

from model.source import locate
from model.tokenizer import NO_SEGMENT, Side, Source, Tokenizer, Tokens

KINDS = ("default", "wordpiece", "bytelevel", "untrimmed", "metaspace")
PIECES = (
    "river", "Bank", "LÄUFT", "déjà", "vu", "money,", "don't", "x" * 150, "a-b", "42", "3.14",
    "...", "?!", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea", "\u200b", "e\u0301\u0323", "\u0301", "שלום", "مرحبا", "\u202eabc\u202c",
    "\ufdfa", "漢字", "かな", "한국어", "ไทย", "नमस्ते", "ﬁ", "İ", "ß", "Ω", "\x00", "\t", "\n", "\r\n",
    "\u00a0", "\u3000", "  ", "\ufeff", "\ufffd", "[CLS]", "[SEP]", "</s>", "<mask>", "\U0001d54f",
    "\u1100\u1161\u11a8", "½", "①", "\x7f", "\u2028",
)  # fmt: skip
ORDINARY = (
    "The river bank flows past the old mill.",
    "Seven small boats wait; one (the red one) leaves at 5:30!",
    "Ein kleiner Hund läuft über die Brücke, déjà vu.",
    "unbelievably antidisestablishmentarian wordsmithing",
    "漢字 and emoji \U0001f469\u200d\U0001f467 side by side",
    "  blanks   on every side \t and a line\nbreak  ",
)


@pytest.fixture(scope="session")
def made(definitions: dict[str, bytes], default_artifact: Path) -> dict[str, Tokenizer]:
    """One tokenizer of each kind, and that of the default model."""
    default = (default_artifact / "tokenizer.json").read_bytes()
    return {name: Tokenizer(definition) for name, definition in {**definitions, "default": default}.items()}


@pytest.fixture(params=KINDS)
def tokenizer(made: dict[str, Tokenizer], request: pytest.FixtureRequest) -> Tokenizer:
    """Each tokenizer in turn."""
    kind: str = request.param
    return made[kind]


def one(tokenizer: Tokenizer, text: str, pair: str | None = None) -> Tokens:
    return tokenizer.encode([Source(text, pair)])[0]


def odd_texts(count: int, seed: int) -> list[str]:
    """Texts of one to nine pieces, with and without blanks between."""
    rng = random.Random(seed)
    return [rng.choice(["", " ", "  "]).join(rng.choices(PIECES, k=rng.randint(1, 9))) for _ in range(count)]


def test_truncation_and_padding_of_the_file_are_stripped(made: dict[str, Tokenizer]) -> None:
    """A file that says 7 tokens, no more and no less, gives as many as the text has."""
    assert len(one(made["wordpiece"], "a")) == 3
    assert len(one(made["wordpiece"], "the bank " * 50)) == 102
    assert len(one(made["default"], "the bank " * 500)) == 1002


def test_the_default_model_gives_the_ids_of_transformers(made: dict[str, Tokenizer]) -> None:
    """Of the published files, read by AutoTokenizer, as sentence-transformers does."""
    oracle = transformers.AutoTokenizer.from_pretrained(locate("default").directory)
    for text in ORDINARY:
        expected = oracle(text, truncation=False, padding=False)
        assert one(made["default"], text).ids == expected["input_ids"]
        assert one(made["default"], text).types == expected["token_type_ids"]


def test_the_default_model_gives_the_ids_of_sentence_transformers(made: dict[str, Tokenizer]) -> None:
    """The same, through the whole of sentence-transformers, for a text within its limit."""
    from sentence_transformers import SentenceTransformer

    oracle = SentenceTransformer(str(locate("default").directory), device="cpu")
    for text in ORDINARY:
        assert one(made["default"], text).ids == oracle.preprocess([text.strip()])["input_ids"][0].tolist()


@pytest.mark.parametrize("kind", ["bytelevel", "metaspace"])
def test_the_other_kinds_give_the_ids_of_transformers(
    made: dict[str, Tokenizer], definitions: dict[str, bytes], kind: str
) -> None:
    """Pairs too."""
    whole = tokenizers.Tokenizer.from_str(definitions[kind].decode())
    oracle = transformers.PreTrainedTokenizerFast(tokenizer_object=whole)  # type: ignore[no-untyped-call]
    for text in ORDINARY:
        assert one(made[kind], text).ids == oracle(text)["input_ids"]
        assert one(made[kind], text, "money").ids == oracle(text, "money")["input_ids"]


@pytest.mark.parametrize("text", ["[CLS] [SEP] [MASK] [PAD]", "a[SEP]b", "<s></s><mask><pad>", "a </s> b <mask>"])
def test_a_text_that_spells_special_tokens_is_only_a_text(tokenizer: Tokenizer, text: str) -> None:
    """Only the frame is special: none of its ids is inside, and the offsets cover the text."""
    tokens = one(tokenizer, text)
    frame = {number for number, special in zip(tokens.ids, tokens.special, strict=True) if special}
    inside = [number for number, special in zip(tokens.ids, tokens.special, strict=True) if not special]
    assert tokens.special == [True, *[False] * len(inside), True]
    assert not frame & set(inside)
    covered = {place for start, end in tokens.offsets for place in range(start, end)}
    assert covered >= {place for place, letter in enumerate(text) if letter != " "}


def test_offsets_are_ranges_of_the_text(tokenizer: Tokenizer) -> None:
    """For a thousand odd texts: inside the text, in order, without blanks at their edges, and the surface's own."""
    for text in odd_texts(1000, seed=41):
        tokens = one(tokenizer, text)
        content = [offset for offset, special in zip(tokens.offsets, tokens.special, strict=True) if not special]
        assert all(0 <= start <= end <= len(text) for start, end in content), repr(text)
        assert all(first[0] <= second[0] for first, second in pairwise(content)), repr(text)
        slices = [text[start:end] for start, end in content]
        assert all(piece == piece.strip() or not piece.strip() for piece in slices), repr(text)
        assert tokenizer.surfaces(tokens)[1:-1] == slices


def test_offsets_leave_out_no_letter(tokenizer: Tokenizer) -> None:
    """Every letter and digit of an ordinary text is in some token, and in order they spell the text."""
    for text in ORDINARY:
        tokens = one(tokenizer, text)
        covered = {place for start, end in tokens.offsets for place in range(start, end)}
        assert all(place in covered for place, letter in enumerate(text) if letter.isalnum()), repr(text)


def test_a_slice_is_its_token_in_ascii(made: dict[str, Tokenizer], default_artifact: Path) -> None:
    """The lower-cased slice is the vocabulary's piece without its ##."""
    vocabulary = tokenizers.Tokenizer.from_file(str(default_artifact / "tokenizer.json"))
    rng = random.Random(43)
    for _ in range(200):
        text = "".join(rng.choices("abcdeinorstABC ,.-'(19)", k=rng.randint(1, 40)))
        tokens = one(made["default"], text)
        names = [(vocabulary.id_to_token(number) or "") for number in tokens.ids]
        plain = [name if name == "##" or len(name) < 3 else name.removeprefix("##") for name in names]
        assert [surface.lower() for surface in made["default"].surfaces(tokens)][1:-1] == plain[1:-1]


def test_special_tokens_have_a_name_and_no_place(made: dict[str, Tokenizer]) -> None:
    """Their offsets are (0, 0), their segment -1, their surface what the vocabulary calls them."""
    tokens = one(made["bytelevel"], "a", "b")
    assert made["bytelevel"].surfaces(tokens) == ["<s>", "a", "</s>", "</s>", "b", "</s>"]
    assert tokens.offsets == [(0, 0), (0, 1), (0, 0), (0, 0), (0, 1), (0, 0)]
    assert tokens.segment == [NO_SEGMENT, 0, NO_SEGMENT, NO_SEGMENT, 1, NO_SEGMENT]
    assert tokens.special == [True, False, True, True, False, True]


def test_the_second_text_of_a_pair_has_the_second_type(made: dict[str, Tokenizer]) -> None:
    """For the families whose tokenizer says so."""
    assert one(made["default"], "a", "b").types == [0, 0, 0, 1, 1]
    assert one(made["bytelevel"], "a", "b").types == [0, 0, 0, 0, 0, 0]


def test_a_text_of_nothing_has_no_content(tokenizer: Tokenizer) -> None:
    """An empty text is the frame alone."""
    assert one(tokenizer, "").special == [True] * 2
    assert (one(tokenizer, "").has_content, one(tokenizer, "a").has_content) == (False, True)


def cut_one_at_a_time(tokens: Tokens, limit: int, side: Side) -> list[int]:
    """The plain way: while too long, drop one token from the side of the longer text (the first when equal)."""
    kept = list(range(len(tokens)))
    while len(kept) > limit:
        texts = [[index for index in kept if tokens.segment[index] == number] for number in (0, 1)]
        longer = texts[0] if len(texts[0]) >= len(texts[1]) else texts[1]
        if not longer:
            break
        kept.remove(longer[-1 if side == "right" else 0])
    return [tokens.ids[index] for index in kept]


@pytest.mark.parametrize("side", get_args(Side))
@pytest.mark.parametrize("pair", [None, "", "a b", "one two three four five six seven", "the bank " * 15])
def test_truncation_is_one_token_at_a_time(tokenizer: Tokenizer, side: Side, pair: str | None) -> None:
    """Down to every limit: from the side asked for, a pair at its longer text first, the frame always kept."""
    tokens = one(tokenizer, "seven small boats wait at the bank", pair)
    frame = sum(tokens.special)
    for limit in range(len(tokens) + 2):
        cut = tokens.truncate(limit, side)
        assert cut.ids == cut_one_at_a_time(tokens, limit, side)
        assert sum(cut.special) == frame
        assert (len(cut), cut.truncated) == (max(frame, min(limit, len(tokens))), limit < len(tokens))


@pytest.mark.parametrize("side", get_args(Side))
def test_every_list_is_cut_alike(tokenizer: Tokenizer, side: Side) -> None:
    """Offsets, segments, types and surfaces stay with their ids."""
    tokens = one(tokenizer, "seven small boats wait", "at the river bank")
    whole = list(zip(tokens.ids, tokens.offsets, tokens.segment, tokens.types, tokenizer.surfaces(tokens), strict=True))
    cut = tokens.truncate(8, side)
    parts = list(zip(cut.ids, cut.offsets, cut.segment, cut.types, tokenizer.surfaces(cut), strict=True))
    assert len(parts) == 8
    assert [part for part in whole if part in parts] == parts


def test_kept_characters_are_those_before_or_after_the_cut(made: dict[str, Tokenizer]) -> None:
    """Truncation from the right removes the end of the text; from the left, its start."""
    text = "seven  small  boats"
    tokens = one(made["default"], text)
    assert tokens.kept_characters[0] == (0, 19)
    assert tokens.truncate(4, "right").kept_characters[0] == (0, 14)
    assert tokens.truncate(4, "left").kept_characters[0] == (5, 19)
    assert tokens.truncate(2, "right").kept_characters[0] == (0, 0)
    assert tokens.truncate(2, "left").kept_characters[0] == (19, 19)


def test_kept_characters_of_a_pair_are_per_segment(made: dict[str, Tokenizer]) -> None:
    """The longer segment is cut first."""
    tokens = one(made["default"], "bank", "seven small boats")
    right, left = tokens.truncate(6, "right"), tokens.truncate(6, "left")
    assert right.kept_characters == ((0, 4), (0, 12))
    assert left.kept_characters == ((0, 4), (5, 17))


def test_offsets_lie_within_kept_characters(made: dict[str, Tokenizer]) -> None:
    """For plain texts, at every limit and from both sides."""
    tokens = one(made["wordpiece"], "seven small boats wait at the bank")
    for limit in range(3, len(tokens)):
        right, left = tokens.truncate(limit, "right"), tokens.truncate(limit, "left")
        assert right.offsets[-2][1] <= right.kept_characters[0][1]
        assert left.offsets[1][0] >= left.kept_characters[0][0]


def test_given_ids_get_the_frame_of_a_text(tokenizer: Tokenizer) -> None:
    """A text's own ids, without special tokens, give the same ids, types and flags as the text."""
    for text in ORDINARY:
        tokens = one(tokenizer, text)
        bare = tuple(number for number, special in zip(tokens.ids, tokens.special, strict=True) if not special)
        given = tokenizer.encode([Source(token_ids=bare)])[0]
        assert (given.ids, given.types, given.special) == (tokens.ids, tokens.types, tokens.special)
        assert given.segment == tokens.segment


def test_given_ids_have_names_and_no_offsets(made: dict[str, Tokenizer]) -> None:
    """There is no text to point into; truncation works all the same."""
    given = made["default"].encode([Source(token_ids=(2769, 2924, 2314))])[0]
    assert made["default"].surfaces(given) == ["[CLS]", "money", "bank", "river", "[SEP]"]
    assert given.offsets == [(0, 0)] * 5
    assert given.truncate(4, "right").ids == [101, 2769, 2924, 102]
    assert given.truncate(4, "left").ids == [101, 2924, 2314, 102]
    assert given.truncate(4, "left").kept_characters[0] == (0, 0)


def test_sources_of_all_sorts_keep_their_order(made: dict[str, Tokenizer]) -> None:
    """Texts, pairs and ids in one call."""
    sources = [Source("money"), Source(token_ids=(2924,)), Source("river", "bank"), Source(token_ids=()), Source("")]
    ids = [tokens.ids for tokens in made["default"].encode(sources)]
    assert ids == [[101, 2769, 102], [101, 2924, 102], [101, 2314, 102, 2924, 102], [101, 102], [101, 102]]
    assert made["default"].encode([]) == []


def test_without_offsets_the_tokens_are_the_same(tokenizer: Tokenizer) -> None:
    """Only the offsets are gone."""
    sources = [Source(text) for text in odd_texts(300, seed=47)] + [Source("river", "bank")]
    for full, fast in zip(tokenizer.encode(sources), tokenizer.encode(sources, offsets=False), strict=True):
        assert (full.ids, full.types, full.special, full.segment) == (fast.ids, fast.types, fast.special, fast.segment)
        assert set(fast.offsets) == {(0, 0)}


def test_threads_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    """Many at once give what one gives."""
    texts = odd_texts(60, seed=53)
    expected = ids_of(tokenizer, texts)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: ids_of(tokenizer, texts), range(24))) == [expected] * 24


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [tokens.ids for tokens in tokenizer.encode([Source(text) for text in texts])]


def test_a_tokenizer_that_gives_nothing_is_refused() -> None:
    """It could not frame given ids."""
    empty = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str().encode()
    with pytest.raises(ValueError, match="gives no token for the text 'a'"):
        Tokenizer(empty)
