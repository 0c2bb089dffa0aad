"""Tokenization: parity with transformers, offsets, special tokens and token ids."""

import random
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path

import pytest
import tokenizers
from sentence_transformers import SentenceTransformer

from model.artifact.files import Artifact
from model.artifact.manifest import PairTemplateRecord
from model.artifact.tokenizer import NO_SEGMENT, Side, Tokenizer, TokenizerInput
from model.source.hub import locate
from tests.model.tokenizer_inputs import ORDINARY, edge_case_texts, encode_one


def test_truncation_and_padding_of_tokenizer_file_are_ignored(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    """The file asks for truncation and padding to 7 tokens."""
    assert len(encode_one(tokenizer_by_kind["wordpiece"], "a")) == 3
    assert len(encode_one(tokenizer_by_kind["wordpiece"], "the bank " * 50)) == 102
    assert len(encode_one(tokenizer_by_kind["default"], "the bank " * 500)) == 1002


def test_default_tokenizer_equals_sentence_transformers(
    tokenizer_by_kind: dict[str, Tokenizer], default_artifact: Path
) -> None:
    oracle = SentenceTransformer(str(locate("default").directory), device="cpu")
    limit = Artifact.open(default_artifact).manifest.max_input_tokens
    for text in (*ORDINARY, "the bank " * 500):
        expected = oracle.preprocess([text])
        tokens = encode_one(tokenizer_by_kind["default"], text).truncate(limit, "right")
        assert tokens.input_ids == expected["input_ids"][0].tolist()
        assert tokens.token_type_ids == expected["token_type_ids"][0].tolist()


@pytest.mark.parametrize("text", ["[CLS] [SEP] [MASK] [PAD]", "a[SEP]b", "<s></s><mask><pad>", "a </s> b <mask>"])
def test_spelled_special_tokens_are_ordinary_text(tokenizer: Tokenizer, text: str) -> None:
    tokens = encode_one(tokenizer, text)
    special_ids = {
        number for number, special in zip(tokens.input_ids, tokens.special_tokens_mask, strict=True) if special
    }
    content_ids = [
        number for number, special in zip(tokens.input_ids, tokens.special_tokens_mask, strict=True) if not special
    ]
    first, last = split_special(tokenizer)
    assert tokens.special_tokens_mask == [*first, *[False] * len(content_ids), *last]
    assert not special_ids & set(content_ids)
    covered = {index for start, end in tokens.offsets for index in range(start, end)}
    assert covered >= {index for index, letter in enumerate(text) if letter != " "}


def split_special(tokenizer: Tokenizer) -> tuple[list[bool], list[bool]]:
    """Return the flags of the special tokens before and after a text."""
    mask = encode_one(tokenizer, "a").special_tokens_mask
    content = mask.index(False)
    return mask[:content], mask[content + 1 :]


def test_offsets_are_ordered_trimmed_ranges_of_edge_case_texts(tokenizer: Tokenizer) -> None:
    """Slices must equal the token texts."""
    for text in edge_case_texts(1000, seed=41):
        tokens = encode_one(tokenizer, text)
        content = [
            offset for offset, special in zip(tokens.offsets, tokens.special_tokens_mask, strict=True) if not special
        ]
        assert all(0 <= start <= end <= len(text) for start, end in content), repr(text)
        assert all(first[0] <= second[0] for first, second in pairwise(content)), repr(text)
        slices = [text[start:end] for start, end in content]
        assert all(item == item.strip() or not item.strip() for item in slices), repr(text)
        first, last = split_special(tokenizer)
        assert tokenizer.token_texts(tokens)[len(first) : -len(last)] == slices


def test_offsets_cover_every_letter_and_digit(tokenizer: Tokenizer) -> None:
    for text in ORDINARY:
        tokens = encode_one(tokenizer, text)
        covered = {index for start, end in tokens.offsets for index in range(start, end)}
        assert all(index in covered for index, letter in enumerate(text) if letter.isalnum()), repr(text)


def test_ascii_slice_equals_vocabulary_entry(tokenizer_by_kind: dict[str, Tokenizer], default_artifact: Path) -> None:
    """Compares the lower-cased slice with the entry, without its ## prefix."""
    vocabulary = tokenizers.Tokenizer.from_file(str(default_artifact / "tokenizer.json"))
    rng = random.Random(43)
    for _ in range(200):
        text = "".join(rng.choices("abcdeinorstABC ,.-'(19)", k=rng.randint(1, 40)))
        tokens = encode_one(tokenizer_by_kind["default"], text)
        names = [(vocabulary.id_to_token(number) or "") for number in tokens.input_ids]
        plain = [name if name == "##" or len(name) < 3 else name.removeprefix("##") for name in names]
        assert [item.lower() for item in tokenizer_by_kind["default"].token_texts(tokens)][1:-1] == plain[1:-1]


def test_special_tokens_have_vocabulary_text_and_no_offsets(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    tokens = encode_one(tokenizer_by_kind["bytelevel"], "a", "b")
    assert tokenizer_by_kind["bytelevel"].token_texts(tokens) == ["<s>", "a", "</s>", "</s>", "b", "</s>"]
    assert tokens.offsets == [(0, 0), (0, 1), (0, 0), (0, 0), (0, 1), (0, 0)]
    assert tokens.segment == [NO_SEGMENT, 0, NO_SEGMENT, NO_SEGMENT, 1, NO_SEGMENT]
    assert tokens.special_tokens_mask == [True, False, True, True, False, True]


def test_unknown_token_replaces_text_that_the_vocabulary_lacks(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    names = {}
    for kind, tokenizer in tokenizer_by_kind.items():
        number = tokenizer.unknown_token_id
        text = None if number is None else tokenizer.vocabulary_texts([number])[0]
        names[kind] = text if number in encode_one(tokenizer, "a \u16a0").input_ids else None
    assert {kind: name for kind, name in names.items() if name} == {
        "wordpiece": "[UNK]",
        "swapped": "[UNK]",
        "default": "[UNK]",
        "metaspace": "<unk>",
        "t5": "<unk>",
    }


def test_empty_text_has_no_content(tokenizer: Tokenizer) -> None:
    assert all(encode_one(tokenizer, "").special_tokens_mask)
    assert (encode_one(tokenizer, "").has_content, encode_one(tokenizer, "a").has_content) == (False, True)


def test_token_ids_get_special_tokens_of_text(tokenizer: Tokenizer) -> None:
    for text in ORDINARY:
        tokens = encode_one(tokenizer, text)
        bare = tuple(
            number for number, special in zip(tokens.input_ids, tokens.special_tokens_mask, strict=True) if not special
        )
        from_ids = tokenizer.encode([TokenizerInput(token_ids=bare)])[0]
        assert (from_ids.input_ids, from_ids.token_type_ids, from_ids.special_tokens_mask) == (
            tokens.input_ids,
            tokens.token_type_ids,
            tokens.special_tokens_mask,
        )
        assert from_ids.segment == tokens.segment


def test_token_ids_have_vocabulary_text_and_no_offsets(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    from_ids = tokenizer_by_kind["default"].encode([TokenizerInput(token_ids=(2769, 2924, 2314))])[0]
    assert tokenizer_by_kind["default"].token_texts(from_ids) == ["[CLS]", "money", "bank", "river", "[SEP]"]
    assert from_ids.offsets == [(0, 0)] * 5
    assert from_ids.truncate(4, "right").input_ids == [101, 2769, 2924, 102]
    assert from_ids.truncate(4, "left").input_ids == [101, 2924, 2314, 102]
    assert from_ids.truncate(4, "left").kept_characters[0] == (0, 0)


def test_encode_keeps_order_of_texts_pairs_and_token_ids(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    sources = [
        TokenizerInput("money"),
        TokenizerInput(token_ids=(2924,)),
        TokenizerInput("river", "bank"),
        TokenizerInput(token_ids=()),
        TokenizerInput(""),
    ]
    ids = [tokens.input_ids for tokens in tokenizer_by_kind["default"].encode(sources)]
    assert ids == [[101, 2769, 102], [101, 2924, 102], [101, 2314, 102, 2924, 102], [101, 102], [101, 102]]
    assert tokenizer_by_kind["default"].encode([]) == []


def test_encode_without_offsets_returns_same_tokens(tokenizer: Tokenizer) -> None:
    sources = [TokenizerInput(text) for text in edge_case_texts(300, seed=47)] + [TokenizerInput("river", "bank")]
    prompted = [TokenizerInput(text, prompt="find: ") for text in ORDINARY] + [TokenizerInput("river")]
    for batch in (sources, prompted):
        for full, fast in zip(tokenizer.encode(batch), tokenizer.encode(batch, offsets=False), strict=True):
            for name in ("input_ids", "token_type_ids", "special_tokens_mask", "segment", "prompt_range"):
                assert getattr(full, name) == getattr(fast, name), name
            assert batch is prompted or set(fast.offsets) == {(0, 0)}  # offsets are how the end of a prompt is found


def test_tokenizer_is_thread_safe(tokenizer: Tokenizer) -> None:
    texts = edge_case_texts(60, seed=53)
    expected = token_id_lists(tokenizer, texts)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: token_id_lists(tokenizer, texts), range(24))) == [expected] * 24


def token_id_lists(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [tokens.input_ids for tokens in tokenizer.encode([TokenizerInput(text) for text in texts])]


def test_tokenizer_without_tokens_is_rejected() -> None:
    empty = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str().encode()
    with pytest.raises(ValueError, match="produces no token for the text 'a'"):
        Tokenizer(empty)


@pytest.mark.parametrize(("offsets", "prompt"), [(False, ""), (True, ""), (True, "find: ")])
def test_text_that_is_tokenized_once_gives_the_same_pairs(tokenizer: Tokenizer, offsets: bool, prompt: str) -> None:
    texts = ["river", "The bank  of déjà vu", "漢字 hello", "a", " grows ", "</s> [SEP]"]
    for text in texts:
        expected = tokenizer.encode([TokenizerInput(text, pair, prompt=prompt) for pair in texts], offsets=offsets)
        pairs = tokenizer.encode_pairs(text, texts, prompt=prompt, offsets=offsets)
        for own, other in zip(pairs, expected, strict=True):
            for limit, side in product((1000, 7, 5), SIDES):
                pair, reference = own.truncate(limit, side), other.truncate(limit, side)
                names = ["input_ids", "token_type_ids", "segment", "special_tokens_mask", "has_content", "prompt_range"]
                for name in [*names, "offsets", "kept_characters"] if offsets else names:
                    assert getattr(pair, name) == getattr(reference, name), (text, name, limit, side)


SIDES: tuple[Side, ...] = ("right", "left")
TEMPLATE = PairTemplateRecord(prefix_ids=(1,), head="a", middle="b", tail="", suffix_ids=())


@pytest.mark.parametrize("kind", ["texts", "pairs with a text", "pairs of long texts", "template"])
def test_long_inputs_take_the_memory_of_their_kept_tokens(
    tokenizer_by_kind: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("model.artifact.tokenizer.GROUP_CHARACTERS", 2**16)  # four of the texts
    tokenizer, text, others = tokenizer_by_kind["default"], "a " * 8192, ["b"] * 80
    before = resident_bytes()
    encoded = {
        "texts": tokenizer.encode_each([TokenizerInput(text)] * len(others)),
        "pairs with a text": tokenizer.encode_pairs(text, others),
        "pairs of long texts": tokenizer.encode_pairs("b", [text] * len(others)),
        "template": tokenizer.encode_template(TEMPLATE, text, others),
    }[kind]  # generators
    kept = [tokens.truncate(64, "right") for tokens in encoded]
    assert [len(tokens) for tokens in kept] == [64] * len(others)
    assert resident_bytes() - before < 5e7  # untruncated, they would take 100 MB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
