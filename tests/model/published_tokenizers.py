"""The tokenizer of a directory of published files, as the export reads it."""

import json
from pathlib import Path

from model.config_files import ModelFiles
from model.sentence_transformers_config import read_transformer_settings
from model.tokenizer_settings import PublishedTokenizer, read_tokenizer


def load_tokenizer(directory: Path) -> PublishedTokenizer:
    """Return the tokenizer with all its settings."""
    files = ModelFiles(directory)
    config = json.loads((directory / "config.json").read_text())
    return read_tokenizer(files, config, read_transformer_settings(files))
