"""Prompts: token ids, prompt ranges and pooling compared with sentence-transformers, offsets, and truncation."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from model.artifact.tokenizer import NO_SEGMENT, Side, Tokenizer, TokenizerInput
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.cuda import pool_sequences
from model.export.parity import make_sequence
from tests.model.family_cases import HIDDEN_SIZE
from tests.model.tokenizer_inputs import ORDINARY, edge_case_texts, encode_one, truncate_by_library

Publish = Callable[[str], Path]

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
