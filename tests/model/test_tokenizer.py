"""Tokenization, compared with the tokenizers library, transformers and sentence-transformers."""

import json
import random
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from model.artifact.files import Artifact
from model.artifact.manifest import PairTemplateRecord
from model.artifact.tokenizer import NO_SEGMENT, Encoding, Side, TokenizedInput, Tokenizer, TokenizerInput
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.cuda import pool_sequences
from model.export.parity import make_sequence
from model.source.hub import locate
from tests.model.conftest import Publish
from tests.model.family_cases import HIDDEN_SIZE
from tests.model.tiny_tokenizers import BUILDERS

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


def encode_one(tokenizer: Tokenizer, text: str, pair: str | None = None, *, prompt: str = "") -> TokenizedInput:
    return tokenizer.encode([TokenizerInput(text, pair, prompt=prompt)])[0]


def edge_case_texts(count: int, seed: int) -> list[str]:
    """Return texts of one to nine pieces, with and without spaces in between."""
    rng = random.Random(seed)
    return [rng.choice(["", " ", "  "]).join(rng.choices(PIECES, k=rng.randint(1, 9))) for _ in range(count)]


def truncate_by_library(tokenizer: Tokenizer, text: str, pair: str | None, limit: int, side: Side) -> Encoding:
    """Return the encoding that the tokenizers library truncates itself; special tokens always remain."""
    library = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    library.encode_special_tokens = True
    fewest = len(library.encode("", None if pair is None else "").ids)
    library.enable_truncation(max(limit, fewest), strategy="longest_first", direction=side)
    encoding: Encoding = library.encode(text, pair) if pair is not None else library.encode(text)
    return encoding


# Tokenization: parity with transformers, offsets, special tokens and token ids.


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


# Truncation of tokenized inputs.

PAIRS = [None, "", "a b", "the river", "seven small boats wait at the bank", "one two three four five six seven",
         "the bank " * 15]  # fmt: skip


@pytest.mark.parametrize("side", get_args(Side))
@pytest.mark.parametrize("pair", PAIRS)
def test_truncation_equals_the_library(tokenizer: Tokenizer, side: Side, pair: str | None) -> None:
    """Special tokens must never be dropped."""
    text = "seven small boats wait at the bank"
    tokens = encode_one(tokenizer, text, pair)
    special_count = sum(tokens.special_tokens_mask)
    for limit in range(len(tokens) + 2):
        truncated = tokens.truncate(limit, side)
        assert truncated.input_ids == truncate_by_library(tokenizer, text, pair, limit, side).ids
        assert sum(truncated.special_tokens_mask) == special_count
        assert (len(truncated), truncated.truncated) == (
            max(special_count, min(limit, len(tokens))),
            limit < len(tokens),
        )


@pytest.mark.parametrize("side", get_args(Side))
def test_truncation_keeps_lists_aligned(tokenizer: Tokenizer, side: Side) -> None:
    def rows(tokens: TokenizedInput) -> list[tuple[object, ...]]:
        texts = tokenizer.token_texts(tokens)
        return list(zip(tokens.input_ids, tokens.offsets, tokens.segment, tokens.token_type_ids, texts, strict=True))

    tokens = encode_one(tokenizer, "seven small boats wait", "at the river bank")
    truncated = rows(tokens.truncate(8, side))
    assert len(truncated) == 8
    assert [row for row in rows(tokens) if row in truncated] == truncated


@pytest.mark.parametrize(("prompt", "size"), [("", 0), ("money: ", 2)])
def test_kept_characters_exclude_truncated_text_and_the_prompt(
    tokenizer_by_kind: dict[str, Tokenizer], prompt: str, size: int
) -> None:
    tokens = encode_one(tokenizer_by_kind["default"], "seven  small  boats", prompt=prompt)
    assert tokens.kept_characters[0] == (0, 19)
    assert tokens.truncate(size + 4, "right").kept_characters[0] == (0, 14)
    assert tokens.truncate(size + 4, "left").kept_characters[0] == (5, 19)
    assert tokens.truncate(size + 2, "right").kept_characters[0] == (0, 0)
    assert tokens.truncate(size + 2, "left").kept_characters[0] == (19, 19)


def test_kept_characters_of_pair_are_per_segment(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    """Tokens of the longer segment are dropped first."""
    tokens = encode_one(tokenizer_by_kind["default"], "bank", "seven small boats")
    right, left = tokens.truncate(6, "right"), tokens.truncate(6, "left")
    assert right.kept_characters == ((0, 4), (0, 12))
    assert left.kept_characters == ((0, 4), (5, 17))


# Special tokens in texts and in the model's prompts, compared with the tokenizers library.

PARTS = st.lists(st.sampled_from(["the river", " bank", "Money ", " ", ",", "MASK", "SEP"]), max_size=5)
SEPARATORS = {"wordpiece": "[SEP]", "swapped": "[SEP]", "byte fallback": "<eos>"}


def special_texts(kind: str) -> tuple[str, str]:
    """Return two special tokens of a tokenizer, the first one for masks."""
    return ("[MASK]" if kind in ("wordpiece", "swapped") else "<mask>"), SEPARATORS.get(kind, "</s>")


def fill(parts: list[str], kind: str) -> str:
    """Return a text in which MASK and SEP are special tokens."""
    mask, separator = special_texts(kind)
    return "".join({"MASK": mask, "SEP": separator}.get(part, part) for part in parts)


def load(kind: str, **options: object) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Return a tokenizer and the one of the library, which recognizes special tokens."""
    definition = BUILDERS[kind]().to_str()
    raw = tokenizers.Tokenizer.from_str(definition)
    raw.no_truncation()
    raw.no_padding()
    return Tokenizer(definition.encode(), **options), raw  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BUILDERS)
@given(parts=PARTS, pair=st.none() | PARTS)
def test_texts_can_contain_special_tokens(kind: str, parts: list[str], pair: list[str] | None) -> None:
    tokenizer, raw = load(kind, special_tokens_in_text=True)
    text, other = fill(parts, kind), None if pair is None else fill(pair, kind)
    (tokens,) = tokenizer.encode([TokenizerInput(text, other)])
    expected = raw.encode(text, other) if other is not None else raw.encode(text)
    assert (tokens.input_ids, tokens.token_type_ids) == (expected.ids, expected.type_ids)
    content = [segment != -1 for segment in tokens.segment]
    assert content == [not flag for flag in tokens.special_tokens_mask]


@pytest.mark.parametrize("kind", BUILDERS)
@given(prompt=PARTS, parts=PARTS, pair=st.none() | PARTS)
def test_own_prompts_contain_special_tokens_and_texts_do_not(
    kind: str, prompt: list[str], parts: list[str], pair: list[str] | None
) -> None:
    own = fill(["MASK", *prompt], kind)
    tokenizer, raw = load(kind, prompts=[own, "plain"])
    text, other = fill(parts, kind), None if pair is None else fill(pair, kind)
    (tokens,) = tokenizer.encode([TokenizerInput(text, other, prompt=own)])
    if not {"MASK", "SEP"} & {*parts, *(pair or ())}:
        expected = raw.encode(own + text, other) if other is not None else raw.encode(own + text)
        assert (tokens.input_ids, tokens.token_type_ids) == (expected.ids, expected.type_ids)
    # The same prompt in a tokenizer without prompts is plain text.
    plain = load(kind)[0].encode([TokenizerInput(text, other, prompt=own)])[0]
    frame = load(kind)[0].encode([TokenizerInput("", None if other is None else "")])[0]
    special = {token["id"] for token in json.loads(raw.to_str())["added_tokens"] if token["special"]}
    unknown = raw.token_to_id("[UNK]" if kind in ("wordpiece", "swapped") else "<unk>")
    counted = special - {unknown}
    assert sum(number in counted for number in plain.input_ids) == sum(number in counted for number in frame.input_ids)
    in_prompt = sum(part in ("MASK", "SEP") for part in ["MASK", *prompt])
    found = sum(number in counted for number in tokens.input_ids)
    assert found == in_prompt + sum(number in counted for number in frame.input_ids)
    for (start, end), segment in zip(tokens.offsets, tokens.segment, strict=True):
        assert 0 <= start <= end <= len((text, other or "")[max(0, segment)])


# Prompts: token ids, prompt ranges and pooling compared with sentence-transformers, offsets, and truncation.


SPECIAL_TOKENS = {
    "bert": ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    "roberta": ("<unk>", "<s>", "</s>", "<pad>", "<mask>"),
    "xlm-roberta": ("<unk>", "<s>", "</s>", "<pad>", "<mask>"),
}
PROMPTS = ("query: ", "query:", "find\n", " find ", "a", "?", "  ", "rain")
TEXTS = ("river bank", " river", "lamps", "\nbread: 42", "s", "it! mills", "\u0301 river")


@dataclass
class Oracle:
    """A tokenizer and an encoder, plus the same model in sentence-transformers with include_prompt=False."""

    tokenizer: Tokenizer
    published: tokenizers.Tokenizer
    encoder: Encoder
    model: SentenceTransformer

    def preprocess(self, text: str, prompt: str) -> tuple[list[int], int]:
        """Return the token ids and prompt length that sentence-transformers computes."""
        features: dict[str, Any] = self.model.preprocess([text], prompt=prompt)
        return features["input_ids"][0].tolist(), features["prompt_length"]


@pytest.fixture(scope="module", params=sorted(SPECIAL_TOKENS))
def oracle(request: pytest.FixtureRequest, publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Return tiny models with a WordPiece, a byte-level BPE and a unigram tokenizer."""
    source = publish(request.param)
    definition = (source / "tokenizer.json").read_bytes()
    published = tokenizers.Tokenizer.from_str(definition.decode())
    published.no_truncation()
    published.no_padding()
    names = ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token")
    special = dict(zip(names, SPECIAL_TOKENS[request.param], strict=True))
    directory = tmp_path_factory.mktemp("prompts") / "model"
    transformers.AutoModel.from_pretrained(source).save_pretrained(directory)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=published, **special)  # type: ignore[no-untyped-call]
    wrapped.save_pretrained(directory)
    modules = [Transformer(str(directory)), Pooling(HIDDEN_SIZE, "mean", include_prompt=False)]
    model = SentenceTransformer(modules=modules, device="cpu")
    return Oracle(Tokenizer(definition), published, load_checkpoint(source).encoder, model)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_prompt_range_equal_sentence_transformers(oracle: Oracle, prompt: str, text: str) -> None:
    """If the end of the prompt merges with the start of the text, the range covers the tokens of the prompt alone."""
    tokens = encode_one(oracle.tokenizer, text, prompt=prompt)
    input_ids, prompt_length = oracle.preprocess(text, prompt)
    assert tokens.input_ids == input_ids
    prompt_ids = encode_one(oracle.tokenizer, prompt).input_ids[:-1]
    offsets = oracle.published.encode(prompt + text).offsets
    merged = any(start < len(prompt) < end for start, end in offsets) or input_ids[: len(prompt_ids)] != prompt_ids
    own = sum(end <= len(prompt) for _, end in offsets[1:-1])
    assert tokens.prompt_range == (1, 1 + own if merged else prompt_length)


def test_embedding_without_prompt_equals_sentence_transformers(oracle: Oracle) -> None:
    prompt, text = "find:", " the river bank"
    tokens = encode_one(oracle.tokenizer, text, prompt=prompt)
    type_ids = tokens.token_type_ids if oracle.encoder.config.type_vocab_size > 1 else [0] * len(tokens)
    inputs = make_sequence(tokens.input_ids, type_ids)
    with torch.inference_mode():
        hidden = oracle.encoder(**{name: torch.from_numpy(values) for name, values in inputs.items()})[0]
    content = make_sequence(tokens.input_ids[tokens.prompt_range[1] :], type_ids[tokens.prompt_range[1] :])
    embedding = pool_sequences(hidden[tokens.prompt_range[1] :].numpy(), [content], "mean")[0]
    expected = oracle.model.encode([text], prompt=prompt)[0]
    assert abs(embedding - expected).max() < 1e-5


def test_token_across_end_of_prompt_belongs_to_text(tokenizer_by_kind: dict[str, Tokenizer]) -> None:
    """sentence-transformers measures "query: " on its own, where the last token is the space, and so drops the first
    word.
    """
    for kind in ("bytelevel", "untrimmed", "metaspace"):
        tokens = encode_one(tokenizer_by_kind[kind], "river bank", prompt="query: ")
        alone = encode_one(tokenizer_by_kind[kind], "query: ").input_ids[:-1]
        first, last = tokens.prompt_range
        assert (first, last) == (1, len(alone) - 1)
        assert tokens.input_ids[:last] == alone[:last]
        assert tokens.offsets[last][0] == 0
    tokens = encode_one(tokenizer_by_kind["wordpiece"], "er bank", prompt="riv")
    assert tokenizer_by_kind["wordpiece"].token_texts(tokens)[1:3] == ["er", "bank"]
    assert (tokens.prompt_range, tokens.offsets[1]) == ((1, 1), (0, 2))


def test_prompt_tokens_look_like_special_tokens(tokenizer: Tokenizer) -> None:
    for prompt, text in zip(edge_case_texts(300, seed=59), edge_case_texts(300, seed=61), strict=True):
        tokens, joined = encode_one(tokenizer, text, prompt=prompt), encode_one(tokenizer, prompt + text)
        first, last = tokens.prompt_range
        assert tokens.input_ids == joined.input_ids
        assert tokens.special_tokens_mask == [True] * last + joined.special_tokens_mask[last:]
        assert tokens.segment == [NO_SEGMENT] * last + joined.segment[last:]
        assert tokens.offsets[:last] == [(0, 0)] * last
        assert all(end <= len(prompt) for _, end in joined.offsets[first:last])
        assert tokens.has_content is (last < len(tokens) - 1)
        shift = len(prompt)
        for (start, end), (joined_start, joined_end) in zip(
            tokens.offsets[last:-1], joined.offsets[last:-1], strict=True
        ):
            assert 0 <= start <= end <= len(text)
            assert end == max(0, joined_end - shift) or not text[start:end].strip()
            assert start >= joined_start - shift
            assert text[start:end] == text[start:end].strip() or not text[start:end].strip()
        assert tokenizer.token_texts(tokens)[last:-1] == [text[start:end] for start, end in tokens.offsets[last:-1]]


def test_prompt_is_prepended_to_first_text_of_pair(tokenizer: Tokenizer) -> None:
    for text in ORDINARY:
        tokens = encode_one(tokenizer, text, "river", prompt="find: ")
        joined = encode_one(tokenizer, "find: " + text, "river")
        assert (tokens.input_ids, tokens.token_type_ids) == (joined.input_ids, joined.token_type_ids)
        pair = [index for index, segment in enumerate(joined.segment) if segment == 1]
        assert [tokens.offsets[index] for index in pair] == [joined.offsets[index] for index in pair]
        assert tokens.kept_characters == ((0, len(text)), (0, 5))


@pytest.mark.parametrize("side", get_args(Side))
@pytest.mark.parametrize("pair", [None, "", "the river bank"])
def test_truncation_keeps_prompt(tokenizer: Tokenizer, side: Side, pair: str | None) -> None:
    text = "seven small boats wait"
    tokens = encode_one(tokenizer, text, pair, prompt="find: ")
    prompt = tokens.input_ids[slice(*tokens.prompt_range)]
    count = len(prompt)
    for limit in range(len(tokens) + 2):
        truncated = tokens.truncate(limit, side)
        library = truncate_by_library(tokenizer, "find: " + text, pair, limit, side)
        kept = [number for number in library.sequence_ids if number is not None]
        if kept.count(0) >= count:  # else the library drops tokens of the prompt
            assert [truncated.segment.count(0) + count, truncated.segment.count(1)] == [kept.count(0), kept.count(1)]
            assert side == "left" or truncated.input_ids == library.ids
        assert truncated.input_ids[slice(*truncated.prompt_range)] == prompt
        assert truncated.has_content is (len(truncated) > sum(tokens.special_tokens_mask))
        assert all(
            truncated.kept_characters[segment][0] <= start <= end <= truncated.kept_characters[segment][1]
            for segment, (start, end) in zip(truncated.segment, truncated.offsets, strict=True)
            if segment != NO_SEGMENT
        )


def test_prompt_without_text_has_no_content(tokenizer: Tokenizer) -> None:
    tokens = encode_one(tokenizer, "", prompt="find:")
    assert not tokens.has_content
    first = encode_one(tokenizer, "a").special_tokens_mask.index(False)
    assert tokens.prompt_range == (first, len(tokens) - 1)
    assert all(tokens.special_tokens_mask)


def test_prompt_range_is_empty_without_prompt(tokenizer: Tokenizer) -> None:
    assert encode_one(tokenizer, "river").prompt_range == (0, 0)
    assert tokenizer.encode([TokenizerInput(token_ids=(7, 8))])[0].prompt_range == (0, 0)
