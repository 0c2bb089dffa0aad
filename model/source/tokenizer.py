"""A published model's tokenizer: tokenizer.json, modified by the settings in the other tokenizer files."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, BertWordPieceTokenizer, Tokenizer, models

from model.artifact.files import TOKENIZER
from model.artifact.manifest import TruncationSide
from model.artifact.tokenizer import check_template, write_definition
from model.source.published import (
    ADDED_TOKENS,
    REDOWNLOAD,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    CheckpointError,
    Published,
    reject_pointer,
)
from model.source.sentence_transformers import TransformerSettings

WORDPIECE_TYPES = ("bert", "distilbert", "electra", "ernie")
"""Values of `model_type` whose tokenizers differ only in the settings read here."""
TOKENIZER_CLASSES = tuple(
    f"{name}Tokenizer{suffix}" for name in ("Bert", "DistilBert", "Electra", "Ernie") for suffix in ("", "Fast")
)
CONVERSION = (
    "import sys, transformers; transformers.AutoTokenizer.from_pretrained(sys.argv[1])"
    f".backend_tokenizer.save(sys.argv[1] + '/{TOKENIZER}')"
)
"""A program for `python -c "..." DIRECTORY`: none of its characters is special in a shell's double quotes."""
PYTHON_CLASSES = ("BertJapaneseTokenizer", "BertweetTokenizer", "ByT5Tokenizer", "PhobertTokenizer")
"""Tokenizers of transformers that are Python code: they neither read nor write tokenizer.json."""
VOCABULARIES = (("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
"""Patterns of vocabulary files. Without one, transformers builds a tokenizer with only special tokens."""
SPECIAL_TOKENS = {name: f"[{name.partition('_')[0].upper()}]" for name in
                  ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")}  # fmt: skip


def convert_tokenizer(options: "TokenizerSettings", model_config: Mapping[str, Any]) -> str:
    """Convert a BERT vocabulary to an equivalent tokenizer.json.

    Raises CheckpointError if there is no such vocabulary, or a setting cannot be converted.
    """
    directory = options.files.transformer
    path = directory / TOKENIZER
    if options.class_name in PYTHON_CLASSES:
        raise CheckpointError(
            f"{path}: missing, and {options.class_name} is Python code of transformers, which is not supported. Use a "
            f"model with {TOKENIZER}."
        )
    if not any(all(any(directory.glob(name)) for name in names) for names in VOCABULARIES):
        raise CheckpointError(
            f"{path}: missing, and there is no vocabulary. Download {TOKENIZER} from the model's page, or its "
            "vocabulary: vocab.txt, vocab.json with merges.txt, sentencepiece.bpe.model, or tokenizer.model."
        )
    problem = _find_obstacle(options, model_config)
    if problem is not None:
        raise CheckpointError(
            f"{path}: missing, and {problem}. Run: pip install transformers sentencepiece protobuf && "
            f'python -c "{CONVERSION}" {shlex.quote(str(directory))}'
        )
    tokenizer = BertWordPieceTokenizer(  # as transformers builds from the same files
        _read_vocabulary(directory),
        **_special_tokens(options),
        **_wordpiece_flags(options),
    )
    return str(tokenizer.to_str())


def _find_obstacle(options: "TokenizerSettings", model_config: Mapping[str, Any]) -> str | None:
    """Return why the tokenizer cannot be converted, or None. Raises CheckpointError if vocab.txt is missing."""
    directory = options.files.transformer
    kind = options.get("tokenizer_class") or model_config.get("tokenizer_class")
    if model_config.get("model_type") not in WORDPIECE_TYPES or (kind is not None and kind not in TOKENIZER_CLASSES):
        return f"only tokenizers of BERT are converted here (not {kind or model_config.get('model_type')})"
    if not (directory / "vocab.txt").is_file():
        raise CheckpointError(f"{directory / TOKENIZER}: missing, and so is vocab.txt. {REDOWNLOAD}")
    if options.get("do_basic_tokenize") is False or options.get("never_split"):
        return "tokenizer_config.json has do_basic_tokenize or never_split"
    expected = set(_special_tokens(options).values())
    added = [*options.added_tokens()]
    if any(token.content not in expected for token in added):
        return "it has added tokens"
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return "special tokens have options"
    missing = expected - _read_vocabulary(directory).keys()
    return f"vocab.txt has no {min(missing)}" if missing else None


def _special_tokens(options: "TokenizerSettings") -> dict[str, str]:
    return {name: _content(options.get(name) or default) for name, default in SPECIAL_TOKENS.items()}


def _content(token: Any) -> str:
    """Return the text of a token, which is a string or an object with options."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _read_vocabulary(directory: Path) -> dict[str, int]:
    """Return the id of each token, its line number from 0."""
    path = directory / "vocab.txt"
    try:
        return dict(models.WordPiece.read_file(str(path)))
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception
        raise CheckpointError(f"{path}: not a vocabulary ({error}). {REDOWNLOAD}") from None


WORDPIECE, BYTE_LEVEL, QWEN, UNIGRAM, DEBERTA, GEMMA, LLAMA, GENERIC = (
    "wordpiece", "byte level", "qwen", "unigram", "deberta", "gemma", "llama", "generic"
)  # fmt: skip
STYLES = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "MPNetTokenizer"), WORDPIECE
    ),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), BYTE_LEVEL),
    "Qwen2Tokenizer": QWEN,
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer", "T5Tokenizer"), UNIGRAM),
    "DebertaV2Tokenizer": DEBERTA,
    "GemmaTokenizer": GEMMA,
    "LlamaTokenizer": LLAMA,
}
"""The settings that each transformers tokenizer class reads. Other classes read the `GENERIC` settings."""
USUAL_PARTS = {
    WORDPIECE: ({"BertNormalizer", "Lowercase"}, {"BertPreTokenizer"}),
    BYTE_LEVEL: (set(), {"ByteLevel"}),
    QWEN: ({"NFC"}, {"Split", "ByteLevel"}),
    UNIGRAM: ({"Precompiled", "Replace", "Strip"}, {"WhitespaceSplit", "Metaspace"}),
    DEBERTA: ({"Lowercase", "Replace", "NFC", "Strip"}, {"Punctuation", "Metaspace"}),
    GEMMA: ({"Replace"}, {"Split"}),
    LLAMA: (set(), {"Metaspace"}),
}
"""Normalizers and pre-tokenizers that (nearly) match the classes of transformers 5."""
OPTIONAL_PARTS = {
    WORDPIECE: {"Lowercase"},
    UNIGRAM: {"Precompiled", "Replace", "Strip", "WhitespaceSplit"},
    DEBERTA: {"Lowercase", "Replace", "Strip", "Punctuation"},
}
"""Parts that may be missing. Without one of the others, a tokenizer differs from its class."""
MERGES: dict[str, Any] = dict.fromkeys(
    ("continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges")
)
USUAL_MODELS: dict[str, dict[str, Any]] = {
    WORDPIECE: {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    **dict.fromkeys((BYTE_LEVEL, QWEN), MERGES),
    **dict.fromkeys((GEMMA, LLAMA), MERGES | {"fuse_unk": True, "byte_fallback": True}),
}
"""Values in `model` that these classes always use; None for false and empty values."""
UNKNOWN = {UNIGRAM: "<unk>", DEBERTA: "[UNK]"}
BERT_FRAME, ROBERTA_FRAME = "[CLS] [SEP] [SEP]", "<s> </s> </s> </s>"
FRAMES: dict[str, tuple[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer"),
        (BERT_FRAME, ("cls_token", "sep_token")),
    ),
    **dict.fromkeys(("MPNetTokenizer", "RobertaTokenizer"), (ROBERTA_FRAME, ("cls_token", "sep_token"))),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), (ROBERTA_FRAME, ("bos_token", "eos_token"))),
    "T5Tokenizer": ("</s> </s>", ("bos_token", "eos_token")),
}
"""The special tokens of a pair, and the keys that replace them, for transformers 5 classes that replace the
post-processor.
"""
DEFAULT_CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie", "nomic_bert"), "BertTokenizer"),
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "gemma3_text": "GemmaTokenizer",
    "llama": "LlamaTokenizer",
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
    "roberta": "RobertaTokenizer",
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
    **dict.fromkeys(("xlm-roberta", "gte", "jina_embeddings_v3"), "XLMRobertaTokenizer"),
}
"""The tokenizer class for each `model_type` if the files name none."""
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
WITH_TOKEN_TYPES = ("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "AlbertTokenizer", "DebertaV2Tokenizer")
"""Classes that return token types unless `model_input_names` says otherwise."""
DEFAULT_TOKENS = {
    "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]",
    "<unk>", "<s>", "</s>", "<pad>", "<mask>", "<bos>", "<eos>", "<|endoftext|>",
}  # fmt: skip
"""Special tokens that classes add even if the files do not name them."""
SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerSettings:
    """Tokenizer settings: tokenizer_config.json and the files beside it, overridden by sentence-transformers."""

    def __init__(self, files: Published, model_config: Mapping[str, Any], settings: TransformerSettings) -> None:
        self.files = files
        directory = files.transformer
        self._layers: list[Mapping[str, Any]] = [settings.tokenizer, files.read(directory / TOKENIZER_CONFIG)]
        if "added_tokens_decoder" not in self._layers[1]:  # with it, transformers ignores the older file
            self._layers.insert(1, files.read(directory / SPECIAL_TOKENS_MAP))
        self.added = dict(files.read(directory / ADDED_TOKENS))  # all keys count as read, even without effect
        named = self.get("tokenizer_class") or model_config.get("tokenizer_class")
        self.class_name = _select_class(named, str(model_config.get("model_type")))
        self.style = STYLES.get(self.class_name, GENERIC)
        if self.style == LLAMA and model_config.get("model_type") == "mistral":  # as in transformers
            self.style = GENERIC
        for key in ("add_prefix_space", "do_lower_case", "strip_accents", "tokenize_chinese_chars"):
            self.get(key)  # classes that do not use a setting ignore it
        if not isinstance(self.get("model_input_names", []), list):
            raise CheckpointError(f"{TOKENIZER_CONFIG}: model_input_names is not a list. Correct it.")
        if not all(type(number) is int for number in self.added.values()):
            raise CheckpointError(f"{ADDED_TOKENS}: not a map of tokens to ids. Correct it.")
        for key in ("init_inputs", "fast_tokenizer_files", "fix_mistral_regex"):
            if self.get(key):
                raise CheckpointError(f"{TOKENIZER_CONFIG}: unsupported {key} ({self.get(key)!r}). Remove it.")
        self._check_tokens()

    def _check_tokens(self) -> None:
        """Raise CheckpointError unless all tokens are strings or objects with a string."""
        decoder = self.get("added_tokens_decoder", {})
        if not isinstance(decoder, dict) or not all(str(number).isdigit() for number in decoder):
            raise CheckpointError(f"{TOKENIZER_CONFIG}: added_tokens_decoder is not a map of token ids. Correct it.")
        tokens: dict[str, Any] = {key: [self.get(key)] for key in SPECIAL_TOKEN_KEYS}
        tokens["added_tokens_decoder"] = list(decoder.values())
        for key in ("extra_special_tokens", "additional_special_tokens"):
            extra = self.get(key, [])
            tokens[key] = list(extra.values()) if isinstance(extra, dict) else extra
        for key, values in tokens.items():
            is_valid = isinstance(values, list) and all(
                token is None or isinstance(token.get("content") if isinstance(token, dict) else token, str)
                for token in values
            )
            if not is_valid:
                raise CheckpointError(f"{TOKENIZER_CONFIG}: {key} is not a token or a list of tokens. Correct it.")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default if it is None or missing. The key counts as read in all files."""
        values = [layer.get(key) for layer in self._layers]
        return next((value for value in values if value is not None), default)

    def is_null(self, key: str) -> bool:
        """Return whether the first file with a key sets it to null or to an empty text."""
        return not next((layer.get(key) for layer in self._layers if key in layer), True)

    def argument(self, key: str) -> Any:
        """Return a value of sentence-transformers' files, which override all others; None if it is missing."""
        return self._layers[0].get(key)

    @property
    def has_token_types(self) -> bool:
        """Whether the model reads token types, which mark a pair's second text."""
        names = self.get("model_input_names")
        return self.class_name in WITH_TOKEN_TYPES if names is None else "token_type_ids" in names

    def _extra_tokens(self) -> list[Any]:
        """Return the special tokens without a role, under the current or the old key of a file."""
        for layer in reversed(self._layers):
            if "extra_special_tokens" in layer or "additional_special_tokens" in layer:
                extra = layer.get("extra_special_tokens") or layer.get("additional_special_tokens") or []
                return list(extra.values() if isinstance(extra, dict) else extra)
        return []

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean. Raises CheckpointError."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise CheckpointError(f"{TOKENIZER_CONFIG}: {key} is not true or false ({value!r}). Correct it.")
        return value

    def side(self, key: str, default: str) -> TruncationSide:
        """Return "left" or "right". Raises CheckpointError."""
        value = self.get(key) or default
        if str(value).lower() not in ("right", "left"):
            raise CheckpointError(f"{TOKENIZER_CONFIG}: unsupported {key} {value!r}. Supported: right or left.")
        return "left" if str(value).lower() == "left" else "right"

    def added_tokens(self) -> Iterator[AddedToken]:
        """Yield the tokens that the settings add to tokenizer.json or change, in id order."""
        named = [token for key in SPECIAL_TOKEN_KEYS if (token := self.get(key))]
        special = [*named, *self._extra_tokens()]
        keys = dict.fromkeys(key for layer in self._layers for key in layer if key.endswith("_token"))
        # Also tokens with roles that only some models define, such as "image_token".
        special += [token for key in keys if isinstance(token := self.get(key), (str, dict))]
        decoder = self.get("added_tokens_decoder") or {}
        for _, token in sorted(decoder.items(), key=lambda item: int(item[0])):
            yield _added_token(token, special=_content(token) in map(_content, named))
        if not decoder:
            for content, _ in sorted(self.added.items(), key=lambda item: int(item[1])):
                is_special = content in map(_content, special)
                yield AddedToken(content, special=is_special, normalized=not is_special)
        yielded = {_content(token) for token in decoder.values()}
        for token in special:
            if _content(token) not in yielded:
                yielded.add(_content(token))
                yield _added_token(token, special=True)


@dataclass(frozen=True)
class PublishedTokenizer:
    """A tokenizer.json with all of a model's settings, and the sides where inputs are truncated and padded."""

    definition: bytes
    truncation_side: TruncationSide
    padding_side: TruncationSide


def read_tokenizer(
    files: Published, model_config: Mapping[str, Any], settings: TransformerSettings
) -> PublishedTokenizer:
    """Return a model's tokenizer. Without tokenizer.json, BERT's vocab.txt is converted.

    Raises:
        CheckpointError: there is neither, or a setting is not supported.
    """
    path = files.transformer / TOKENIZER
    options = TokenizerSettings(files, model_config, settings)
    if path.is_file():
        reject_pointer(path)
        if options.class_name in PYTHON_CLASSES:
            files.warn(
                f"{TOKENIZER} is used, though {options.class_name} of transformers does not read it and may return "
                "other tokens. Compare some vectors with the library that wrote the files."
            )
        definition = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_str(definition.decode())
            check_template(tokenizer)
            values = json.loads(write_definition(tokenizer))  # older files lack types of parts
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  # a panic of the library is not an Exception
            raise CheckpointError(f"{TOKENIZER}: invalid ({error}). {REDOWNLOAD}") from None
    else:
        values = json.loads(convert_tokenizer(options, model_config))
    apply_settings(values, options)
    if settings.do_lower_case:
        _add_first(values, "normalizer", {"type": "Lowercase"})  # as in sentence-transformers
    defaults = {"truncation": "right", "padding": "left" if options.style in (GEMMA, LLAMA) else "right"}
    truncation_side, padding_side = (
        options.side(f"{name}_side", (values.get(name) or {}).get("direction", default))
        for name, default in defaults.items()
    )
    tokenizer = Tokenizer.from_str(json.dumps(values, ensure_ascii=False))
    tokenizer.add_tokens([token for token in options.added_tokens() if token.content])
    return PublishedTokenizer(write_definition(tokenizer).encode(), truncation_side, padding_side)


def apply_settings(values: dict[str, Any], options: TokenizerSettings) -> None:
    """Apply the settings to the corresponding parts of tokenizer.json."""
    _check_parts(values, options)
    if values["model"].get("dropout"):
        values["model"]["dropout"] = None
        options.files.warn(f"{TOKENIZER}: model.dropout, which makes tokens random, is not applied.")
    if options.style == WORDPIECE:
        flags = _wordpiece_flags(options)  # as in transformers, defaults depend on the class
        for part in _parts(values.get("normalizer"), "normalizers", "BertNormalizer"):
            part.update(flags)
    _apply_prefix(values, options)
    if options.style == DEBERTA and options.flag("do_lower_case", False):
        _add_first(values, "normalizer", {"type": "Lowercase"})
    if options.style == DEBERTA and options.flag("split_by_punct", False):
        _add_first(values, "pre_tokenizer", {"type": "Punctuation", "behavior": "Isolated"})
    unknown = options.get("unk_token") if options.style != GENERIC else None
    if values["model"].get("unk_token") is not None and unknown and _content(unknown) in values["model"]["vocab"]:
        values["model"]["unk_token"] = _content(unknown)
    _add_ends(values, options)
    if not options.has_token_types:
        _drop_token_types(values)


def _wordpiece_flags(options: TokenizerSettings) -> dict[str, Any]:
    return {
        "lowercase": options.flag("do_lower_case", True),
        "strip_accents": None if options.get("strip_accents") is None else options.flag("strip_accents", False),
        "handle_chinese_chars": options.flag("tokenize_chinese_chars", True),
    }


def _apply_prefix(values: dict[str, Any], options: TokenizerSettings) -> None:
    """Apply `add_prefix_space`."""
    if options.style in (BYTE_LEVEL, QWEN):
        for part in _parts(values.get("pre_tokenizer"), "pretokenizers", "ByteLevel"):
            part["add_prefix_space"] = options.flag("add_prefix_space", False)
    if options.get("add_prefix_space") is None or options.class_name == "T5Tokenizer":
        return
    if options.style in (UNIGRAM, DEBERTA):
        other = "never" if options.style == UNIGRAM else "first"
        for part in _parts(values.get("pre_tokenizer"), "pretokenizers", "Metaspace"):
            part["prepend_scheme"] = "always" if options.flag("add_prefix_space", True) else other


def _add_ends(values: dict[str, Any], options: TokenizerSettings) -> None:
    """Add start and end tokens according to `add_bos_token` and `add_eos_token`, as in transformers 4.

    This applies to LlamaTokenizer and to tokenizers with custom code, as in e5-mistral and gte-Qwen2, which use the end
    token's vector as the embedding. transformers 5 ignores both settings if tokenizer.json exists.
    """
    keys = {"bos_token": options.class_name == "LlamaTokenizer", "eos_token": False}
    has_code = "AutoTokenizer" in (options.get("auto_map") or {})
    if all(options.get(f"add_{key}") is None for key in keys) or not (keys["bos_token"] or has_code):
        return
    named = [key for key, default in keys.items() if options.flag(f"add_{key}", default)]
    tokens = {key: _content(options.get(key)) for key in named if options.get(key)}
    ids = {token["content"]: token["id"] for token in values.get("added_tokens") or ()}
    vocabulary = values["model"]["vocab"]
    ids |= dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if missing := [token for token in tokens.values() if token not in ids]:
        raise CheckpointError(f"{TOKENIZER}: token {missing[0]} is missing. {REDOWNLOAD}")

    def around(name: str, type_id: int) -> list[dict[str, Any]]:
        ends = (tokens.get("bos_token"), tokens.get("eos_token"))
        pieces = (("SpecialToken", ends[0]), ("Sequence", name), ("SpecialToken", ends[1]))
        return [{kind: {"id": piece, "type_id": type_id}} for kind, piece in pieces if piece is not None]

    single = around("A", 0)
    template = _template(single, single + around("B", 1), {token: ids[token] for token in tokens.values()})
    before = Tokenizer.from_str(json.dumps(values)).encode("").ids
    _set_template(values, template)
    if Tokenizer.from_str(json.dumps(values)).encode("").ids != before:
        places = {"bos_token": "before", "eos_token": "after"}
        ends = [f"{token} {places[key]}" for key, token in tokens.items()]
        options.files.warn(
            f"{TOKENIZER_CONFIG}: {' and '.join(ends) or 'no token around'} each text, as transformers 4 reads "
            f"add_bos_token and add_eos_token. transformers 5 uses the tokens of {TOKENIZER}."
        )


def _check_parts(values: dict[str, Any], options: TokenizerSettings) -> None:
    """Warn if transformers 5 would replace parts of tokenizer.json with the defaults of the tokenizer class."""
    usual = USUAL_PARTS.get(options.style)
    is_byte_level = "ByteLevel" in _kinds(values.get("pre_tokenizer"), "pretokenizers")
    if usual is None or (options.style == LLAMA and is_byte_level):  # transformers 5 also uses all parts
        return
    differ = []
    for part, known in zip(("normalizer", "pre_tokenizer"), usual, strict=True):
        kinds = _kinds(values.get(part), part.replace("_", "") + "s")
        if not known - OPTIONAL_PARTS.get(options.style, set()) <= kinds <= known:
            differ.append(part)
    if (values.get("normalizer") or {}).get("clean_text") is False and "normalizer" not in differ:
        differ.append("normalizer")
    if not _is_usual_model(values["model"], options):
        differ.append("model")
    if options.class_name in FRAMES and values["model"].get("vocab") and not _has_usual_frame(values, options):
        differ.append("post_processor")
    if _has_other_added_tokens(values, options):
        differ.append("added_tokens")
    if differ:
        options.files.warn(
            f"{TOKENIZER}: {', '.join(differ)} differ from those of {options.class_name} and are used, as in "
            "transformers 4. transformers 5 replaces them and returns other tokens. To use its tokens, load the "
            "tokenizer there, save it, and export again."
        )


def _has_other_added_tokens(values: dict[str, Any], options: TokenizerSettings) -> bool:
    """Return whether `added_tokens_decoder` lacks added tokens of tokenizer.json, which transformers 5 then drops."""
    if not options.get("added_tokens_decoder"):
        return False
    kept = DEFAULT_TOKENS | {token.content for token in options.added_tokens()}
    return any(token["content"] not in kept for token in values.get("added_tokens") or ())


def _is_usual_model(model: dict[str, Any], options: TokenizerSettings) -> bool:
    """Return whether `model` has the values of `USUAL_MODELS`, and an unknown token with its name."""
    if any((model.get(key) or None) != value for key, value in USUAL_MODELS.get(options.style, {}).items()):
        return False
    if options.style == DEBERTA and options.is_null("unk_token"):  # then token 1 is the unknown token
        return False
    number, pieces = model.get("unk_id"), model.get("vocab")
    if options.style not in UNKNOWN or not isinstance(pieces, list):
        return True
    return number is not None and pieces[number][0] == _content(options.get("unk_token") or UNKNOWN[options.style])


def _has_usual_frame(values: dict[str, Any], options: TokenizerSettings) -> bool:
    """Return whether a text and a pair get the special tokens in `FRAMES`."""
    frame, keys = FRAMES[options.class_name]
    names = list(dict.fromkeys(frame.split()))  # one or two
    named = {name: _content(options.get(key) or name) for name, key in zip(names, keys[-len(names) :], strict=True)}
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pair = [tokenizer.token_to_id(named[name]) for name in frame.split()]
    return tokenizer.encode("").ids == pair[: len(names)] and tokenizer.encode("", "").ids == pair


def _kinds(component: dict[str, Any] | None, key: str) -> set[str]:
    """Return the types of the parts of a tokenizer.json component."""
    return {part["type"] for part in ((component or {}).get(key) or [component]) if part}


def _add_first(values: dict[str, Any], component: str, step: dict[str, Any]) -> None:
    """Add a step before a normalizer or pre-tokenizer unless it already contains the step."""
    key, existing = component.replace("_", "") + "s", values.get(component)
    steps = [part for part in (existing[key] if existing and existing["type"] == "Sequence" else [existing]) if part]
    if step not in steps:
        values[component] = {"type": "Sequence", key: [step, *steps]}


def _template(
    single: list[dict[str, Any]], pair: list[dict[str, Any]], special_tokens: Mapping[str, int]
) -> dict[str, Any]:
    """Return a post-processor that arranges a text, and a pair, with special tokens of these ids."""
    described = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in special_tokens.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": described}


def _set_template(values: dict[str, Any], template: dict[str, Any]) -> None:
    """Replace the post-processor with a template; only the part that trims offsets is kept."""
    kept = list(_parts(values.get("post_processor"), "processors", "ByteLevel"))
    values["post_processor"] = {"type": "Sequence", "processors": [*kept, template]} if kept else template


def _drop_token_types(values: dict[str, Any]) -> None:
    """Set all token types to 0."""
    if _kinds(values.get("post_processor"), "processors") <= {"ByteLevel"}:  # the library marks the second text
        texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        _set_template(values, _template(texts[:1], texts, {}))
    for part in _parts(values.get("post_processor"), "processors", "TemplateProcessing"):
        for piece in (*part["single"], *part["pair"]):
            for item in piece.values():
                item["type_id"] = 0
    for part in _parts(values.get("post_processor"), "processors", "BertProcessing"):
        (cls, cls_id), (sep, sep_id) = part.pop("cls"), part.pop("sep")
        first, text, pair, last = (
            {kind: {"id": piece, "type_id": 0}}
            for kind, piece in (("SpecialToken", cls), ("Sequence", "A"), ("Sequence", "B"), ("SpecialToken", sep))
        )
        part.update(_template([first, text, last], [first, text, last, pair, last], {cls: cls_id, sep: sep_id}))


def _parts(component: dict[str, Any] | None, key: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of one type in a tokenizer.json component. `key` is the field that lists a sequence's parts."""
    if component is None:
        return
    if component["type"] == kind:
        yield component
    for part in component.get(key) or ():
        yield from _parts(part, key, kind)


def _select_class(named: Any, model_type: str) -> str:
    """Return the class that transformers' AutoTokenizer selects for a model, without "Fast"."""
    default = DEFAULT_CLASSES.get(model_type, GENERIC_CLASSES[0])
    if not named:
        return default
    name = str(named).removesuffix("Fast") if named != GENERIC_CLASSES[0] else str(named)
    if default in GENERIC_CLASSES and model_type in ("modernbert", "eurobert"):
        return default
    return name


def _added_token(token: Any, *, special: bool) -> AddedToken:
    if not isinstance(token, dict):
        return AddedToken(str(token), special=special, normalized=not special)
    options = {key: bool(token[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
    return AddedToken(_content(token), special=special or bool(token.get("special")), **options)
