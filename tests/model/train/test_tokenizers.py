"""Trained tokenizers: reproducible, with fixed special tokens, and usable by the server."""

import subprocess
import sys

import pytest

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.train.config import TokenizerOptions, TrainError
from model.train.tokenizers import SPECIAL_TOKENS, train_tokenizer
from tests.conftest import ROOT
from tests.model.train.conftest import sentences

OPTIONS = [TokenizerOptions(kind="wordpiece", vocab_size=80), TokenizerOptions(kind="bpe", vocab_size=300)]
IDS = [options.kind for options in OPTIONS]


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_tokenizer_has_fixed_special_tokens_and_the_size(options: TokenizerOptions) -> None:
    tokenizer = train_tokenizer(options, lambda: sentences(300))
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert len(SPECIAL_TOKENS) < tokenizer.get_vocab_size() <= options.vocab_size
    assert [token.content for token in tokenizer.get_added_tokens_decoder().values()] == list(SPECIAL_TOKENS)


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_tokens_cover_the_text(options: TokenizerOptions) -> None:
    trained = train_tokenizer(options, lambda: sentences(300))
    tokenizer = Tokenizer(trained.to_str().encode())
    (tokens,) = tokenizer.encode([TokenizerInput("The river bank.")])
    assert "".join(tokenizer.token_texts(tokens)[1:-1]) == "Theriverbank."
    assert (tokens.input_ids[0], tokens.input_ids[-1]) == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_tokenizer_is_the_same_in_every_process(options: TokenizerOptions) -> None:
    """The trainer's hash maps iterate in a different order in each process."""
    code = (
        "import sys; from model.train.config import TokenizerOptions; from model.train.tokenizers import *; "
        "from tests.model.train.conftest import sentences; "
        f"sys.stdout.write(train_tokenizer(TokenizerOptions(kind={options.kind!r}, vocab_size={options.vocab_size}), "
        "lambda: sentences(300)).to_str())"
    )
    outputs = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True).stdout
               for _ in range(3)}  # fmt: skip
    assert outputs == {train_tokenizer(options, lambda: sentences(300)).to_str().encode()}


def test_too_small_vocabulary_is_an_error() -> None:
    with pytest.raises(TrainError, match=r"tokenizer\.vocab_size: 16, at least"):
        train_tokenizer(TokenizerOptions(vocab_size=16), lambda: sentences(10))
    with pytest.raises(TrainError, match=r"16, at least 261"):
        train_tokenizer(TokenizerOptions(kind="bpe", vocab_size=16), lambda: sentences(10))


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(TrainError, match="too little text"):
        train_tokenizer(TokenizerOptions(), list)
