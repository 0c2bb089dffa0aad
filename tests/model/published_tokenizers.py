"""The tokenizer of a directory of published files, as the export reads it."""

import json
from pathlib import Path

from model.source.published import Published
from model.source.sentence_transformers import read_transformer_settings
from model.source.tokenizer import PublishedTokenizer, read_tokenizer


def load_tokenizer(directory: Path) -> PublishedTokenizer:
    """Return the tokenizer with all its settings."""
    files = Published(directory)
    config = json.loads((directory / "config.json").read_text())
    return read_tokenizer(files, config, read_transformer_settings(files))
