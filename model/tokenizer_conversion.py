"""The conversion of BERT's vocab.txt to a tokenizer.json."""

import shlex
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.artifact import TOKENIZER
from model.checkpoint_files import CheckpointError, read_json, read_optional_json

WORDPIECE_TYPES = ("bert", "distilbert", "electra")
"""Values of `model_type` whose tokenizers differ only in the settings read here."""
TOKENIZER_CLASSES = tuple(
    f"{name}Tokenizer{suffix}" for name in ("Bert", "DistilBert", "Electra") for suffix in ("", "Fast")
)
CONVERSION = (
    "import sys, transformers; transformers.AutoTokenizer.from_pretrained(sys.argv[1])"
    f".backend_tokenizer.save(sys.argv[1] + '/{TOKENIZER}')"
)
"""A program for `python -c "..." DIRECTORY`: no character of it is special within the double quotes of a shell."""
VOCABULARIES = (("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
"""Patterns of the files that hold a vocabulary. Without one, transformers makes a tokenizer of special tokens only."""
SPECIAL_TOKENS = {name: f"[{name.partition('_')[0].upper()}]" for name in
                  ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")}  # fmt: skip


def convert_tokenizer(directory: Path) -> str:
    """Return the equivalent tokenizer.json of a model with a BERT vocabulary.

    Raises:
        CheckpointError: there is no such vocabulary, or a setting that cannot be converted.
    """
    path = directory / TOKENIZER
    if not any(all(any(directory.glob(name)) for name in names) for names in VOCABULARIES):
        raise CheckpointError(
            f"{path}: missing, and there is no vocabulary. Download {TOKENIZER} from the model's page, or its "
            "vocabulary: vocab.txt, vocab.json with merges.txt, sentencepiece.bpe.model, or tokenizer.model."
        )
    problem = _find_obstacle(directory)
    if problem is not None:
        raise CheckpointError(
            f"{path}: missing, and {problem}. Run: pip install transformers sentencepiece protobuf && "
            f'python -c "{CONVERSION}" {shlex.quote(str(directory))}'
        )
    return str(_convert_wordpiece(directory).to_str())


def _find_obstacle(directory: Path) -> str | None:
    """Return why the tokenizer cannot be converted here; None if it can. Raises CheckpointError without vocab.txt."""
    config, model_config = _read_config(directory), read_json(directory / "config.json")
    kind = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if model_config.get("model_type") not in WORDPIECE_TYPES or (kind is not None and kind not in TOKENIZER_CLASSES):
        return f"only tokenizers of BERT are converted here (not {kind or model_config.get('model_type')})"
    if not (directory / "vocab.txt").is_file():
        raise CheckpointError(
            f"{directory / TOKENIZER}: missing, and so is vocab.txt. Download either from the model's page."
        )
    if config.get("do_basic_tokenize") is False or config.get("never_split"):
        return "tokenizer_config.json has do_basic_tokenize or never_split"
    expected = set(_special_tokens(config).values())
    decoder = config.get("added_tokens_decoder") or {}
    added = [*read_optional_json(directory / "added_tokens.json"), *(config.get("additional_special_tokens") or ())]
    added += [token.get("content") for token in decoder.values()]
    if any(_content(token) not in expected for token in added):
        return "it has added tokens"
    flagged = [token for token in (*config.values(), *decoder.values()) if isinstance(token, dict)]
    if any(token.get(flag) for token in flagged for flag in ("lstrip", "rstrip", "single_word")):
        return "special tokens have options"
    missing = expected - _read_vocabulary(directory).keys()
    return f"vocab.txt has no {min(missing)}" if missing else None


def _convert_wordpiece(directory: Path) -> Tokenizer:
    """Return the tokenizer that transformers makes of the same files (`BertTokenizer`)."""
    config, vocabulary = _read_config(directory), _read_vocabulary(directory)
    special = _special_tokens(config)
    cls, sep = special["cls_token"], special["sep_token"]
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(special.values()))
    return tokenizer


def _read_config(directory: Path) -> dict[str, Any]:
    """Return the settings of the tokenizer; settings of the newer file take precedence."""
    return read_optional_json(directory / "special_tokens_map.json") | read_optional_json(
        directory / "tokenizer_config.json"
    )


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    return {name: _content(config.get(name) or default) for name, default in SPECIAL_TOKENS.items()}


def _content(token: Any) -> str:
    """Return the text of a token, which is a string or an object with options."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _read_vocabulary(directory: Path) -> dict[str, int]:
    """Return the id of each token, which is its line number, from 0."""
    path = directory / "vocab.txt"
    try:
        return dict(models.WordPiece.read_file(str(path)))
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception
        raise CheckpointError(f"{path}: not a vocabulary ({error}). Download the model again.") from None
