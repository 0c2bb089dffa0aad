"""What the tests of explanations share."""

from pathlib import Path

import pytest

from model.artifact import TOKENIZER
from model.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(default_artifact: Path) -> Tokenizer:
    """The default model's, without the model."""
    return Tokenizer((default_artifact / TOKENIZER).read_bytes())
