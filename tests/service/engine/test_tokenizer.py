"""The server's tokenizer: decoding, and token ids with special tokens."""

from pathlib import Path

import pytest

from model.artifact.files import TOKENIZER
from model.artifact.tokenizer import TokenizerInput
from service.engine.tokenizer import ServingTokenizer


@pytest.fixture(scope="module")
def tokenizer(default_artifact: Path) -> ServingTokenizer:
    return ServingTokenizer((default_artifact / TOKENIZER).read_bytes())


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
    tokenizer: ServingTokenizer, token_ids: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tokenizer.content_ids(token_ids) == expected
    assert tokenizer.content_ids(list(token_ids)) == expected


def test_content_ids_encode_to_the_same_input(tokenizer: ServingTokenizer) -> None:
    (whole,) = tokenizer.encode([TokenizerInput("money bank grows")])
    content = tokenizer.content_ids(whole.input_ids)
    (framed,) = tokenizer.encode([TokenizerInput(token_ids=content)])
    assert framed.input_ids == whole.input_ids


def test_decode_returns_text_with_or_without_special_tokens(tokenizer: ServingTokenizer) -> None:
    token_ids = (101, 2769, 2924, 102)
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "money bank"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "[CLS] money bank [SEP]"
