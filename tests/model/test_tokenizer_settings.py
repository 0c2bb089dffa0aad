"""tokenizer.json with the settings of other files, or made of a BERT vocabulary, compared with transformers."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import load_checkpoint
from model.source import tokenizer_patterns
from model.source.published import CheckpointError, Published
from model.source.sentence_transformers import read_transformer_settings
from model.source.tokenizer import PYTHON_CLASSES, PublishedTokenizer, read_tokenizer
from model.source.tokenizer_patterns import find_slow_pattern, patterns_of
from tests.model.conftest import Publish
from tests.model.model_files import change_file, change_json, read_json, write_json
from tests.model.tiny_tokenizers import BUILDERS, SENTENCES


def load_tokenizer(directory: Path) -> PublishedTokenizer:
    """Return the tokenizer with all its settings."""
    files = Published(directory)
    config = json.loads((directory / "config.json").read_text())
    return read_tokenizer(files, config, read_transformer_settings(files))


# tokenizer.json with the settings of the files beside it, compared with the tokenizers that transformers loads.

TEXTS = (
    *SENTENCES[:4],
    "  DÉJÀ VU, Ünïcödé\u00a0Façade  ",
    "你好 the bank 世界",
    "Bank bank BANK",
    "extra0 the EXTRA0 [TOOL]bank <tool> [MASK]",
)


def build_unigram() -> tokenizers.Tokenizer:
    """Return a tokenizer with the parts that transformers gives XLM-R tokenizers."""
    tokenizer = tokenizers.Tokenizer.from_str(BUILDERS["metaspace"]().to_str())
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    tokenizer.model = models.Unigram([tuple(piece) for piece in pieces], 3)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return tokenizer


def build_mpnet() -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer with the special tokens of MPNet."""
    values = json.loads(BUILDERS["wordpiece"]().to_str())
    names = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    vocabulary = {names.get(piece, piece): number for piece, number in values["model"]["vocab"].items()}
    values["model"]["vocab"] = vocabulary
    for token in values["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    values["post_processor"] = None
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2), True, False)
    return tokenizer


STYLES: dict[str, tuple[Callable[[], tokenizers.Tokenizer], tuple[str, ...], tuple[str | None, ...]]] = {
    "wordpiece": (BUILDERS["wordpiece"], ("bert", "distilbert", "electra", "nomic_bert"),
                  (None, "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizerFast", "ElectraTokenizerFast")),
    "mpnet": (build_mpnet, ("mpnet",), (None, "MPNetTokenizer", "MPNetTokenizerFast")),
    "bytelevel": (BUILDERS["bytelevel"], ("roberta",), (None, "RobertaTokenizer", "RobertaTokenizerFast")),
    "unigram": (build_unigram, ("xlm-roberta", "gte", "bert"), ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast")),
    "generic": (BUILDERS["wordpiece"], ("bert", "modernbert", "xlm-roberta", "mpnet"),
                ("PreTrainedTokenizerFast", "TokenizersBackend")),
    "generic bytes": (BUILDERS["bytelevel"], ("modernbert", "eurobert"), (None, "PreTrainedTokenizerFast")),
}  # fmt: skip
"""Builder of tokenizer.json, values of `model_type`, and values of `tokenizer_class`."""
FLAGS = st.booleans()
TOKENS = st.sampled_from(["extra0", "[TOOL]", "<tool>", "the"])
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "do_lower_case": FLAGS,
    "strip_accents": st.sampled_from([None, True, False]),
    "tokenize_chinese_chars": FLAGS,
    "add_prefix_space": FLAGS,
    "truncation_side": st.sampled_from(["right", "left"]),
    "padding_side": st.sampled_from(["right", "left"]),
    "model_max_length": st.sampled_from([9, 512, int(1e30)]),
    "model_input_names": st.sampled_from(
        [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]]
    ),
    "additional_special_tokens": st.lists(TOKENS, max_size=2, unique=True),
    "extra_special_tokens": st.lists(TOKENS, max_size=2, unique=True),
    "split_special_tokens": FLAGS,
    "clean_up_tokenization_spaces": FLAGS,
    "add_bos_token": FLAGS,
    "add_eos_token": FLAGS,
    "never_split": st.just(["bank"]),
    "do_basic_tokenize": FLAGS,
}
ADDED = st.builds(
    lambda content, special, normalized, lstrip: {
        "content": content, "special": special, "normalized": normalized, "lstrip": lstrip, "rstrip": False,
        "single_word": False,
    },
    st.sampled_from(["extra0", "[TOOL]", "<tool>"]), FLAGS, FLAGS, FLAGS,
)  # fmt: skip
"""An entry of `added_tokens_decoder`."""
FILE_FLAGS = st.fixed_dictionaries({"lowercase": FLAGS, "strip_accents": st.none() | FLAGS, "prefix": FLAGS})


def publish(directory: Path, style: str, model_type: str, flags: dict[str, Any], **files: Any) -> None:
    """Write a tokenizer.json whose flags are `flags`, and JSON files with these names."""
    values = json.loads(STYLES[style][0]().to_str())
    normalizer = values["normalizer"] or {}
    if normalizer.get("type") == "BertNormalizer":
        normalizer |= {"lowercase": flags["lowercase"], "strip_accents": flags["strip_accents"]}
    if (values["pre_tokenizer"] or {}).get("type") == "ByteLevel":
        values["pre_tokenizer"]["add_prefix_space"] = flags["prefix"]
    values["truncation"] = values["padding"] = None
    write_json(directory / "tokenizer.json", values)
    write_json(directory / "config.json", {"model_type": model_type})
    for name, content in files.items():
        write_json(directory / f"{name}.json", content)


def check_equal(directory: Path) -> None:
    """Compare ids and token types of texts and pairs, and the sides of truncation and padding, with transformers."""
    compare(load_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory))


def compare(published: PublishedTokenizer, expected: Any) -> None:
    sides = (published.truncation_side, published.padding_side)
    assert sides == (expected.truncation_side, expected.padding_side)
    actual = tokenizers.Tokenizer.from_str(published.definition.decode())
    actual.no_truncation()
    actual.no_padding()
    actual.encode_special_tokens = expected.split_special_tokens
    for first, second in zip(TEXTS, reversed(TEXTS), strict=True):
        assert actual.encode(first).ids == expected(first)["input_ids"], first
        pair, oracle = actual.encode(first, second), expected(first, second)
        assert pair.ids == oracle["input_ids"]
        assert pair.type_ids == oracle.get("token_type_ids", [0] * len(pair.ids))


@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_settings_equal_transformers(style: str, data: st.DataObject) -> None:
    _, types, classes = STYLES[style]
    model_type, name = data.draw(st.sampled_from(types)), data.draw(st.sampled_from(classes))
    settings = data.draw(st.fixed_dictionaries({}, optional=SETTINGS))
    if name is not None:
        settings["tokenizer_class"] = name
    size = STYLES[style][0]().get_vocab_size()
    files: dict[str, Any] = {"tokenizer_config": settings}
    if data.draw(FLAGS):
        special = json.loads(STYLES[style][0]().to_str())["added_tokens"]
        entries = {str(token.pop("id")): token for token in special}
        settings["added_tokens_decoder"] = entries | {str(size): data.draw(ADDED)}
    elif data.draw(FLAGS):
        files["special_tokens_map"] = {"additional_special_tokens": data.draw(st.lists(TOKENS, max_size=2))}
    with tempfile.TemporaryDirectory() as directory:
        publish(Path(directory), style, model_type, data.draw(FILE_FLAGS), **files)
        check_equal(Path(directory))


def build_t5() -> tokenizers.Tokenizer:
    """Return a tokenizer with the parts and the ids of T5."""
    tokenizer = tokenizers.Tokenizer.from_str(build_unigram().to_str())
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    renamed = tokenizers.Tokenizer(models.Unigram([*special, *map(tuple, pieces[5:])], 2))
    renamed.pre_tokenizer = tokenizer.pre_tokenizer
    renamed.add_special_tokens([name for name, _ in special])
    renamed.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return renamed


def build_deberta() -> tokenizers.Tokenizer:
    """Return a tokenizer with the parts that transformers gives tokenizers of DeBERTa."""
    definition = build_unigram().to_str()
    names = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
    for old, new in names.items():
        definition = definition.replace(old, new)
    tokenizer = tokenizers.Tokenizer.from_str(definition)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 0), ("[SEP]", 2)]
    )
    return tokenizer


CHANGED: dict[str, tuple[Callable[[], tokenizers.Tokenizer], str, str | None]] = {
    "bert": (BUILDERS["wordpiece"], "bert", None),
    "mpnet": (build_mpnet, "mpnet", "MPNetTokenizer"),
    "roberta": (BUILDERS["bytelevel"], "roberta", "RobertaTokenizerFast"),
    "xlm-roberta": (build_unigram, "xlm-roberta", None),
    "t5": (build_t5, "t5", None),
    "mt5": (build_t5, "mt5", None),
    "deberta-v2": (build_deberta, "deberta-v2", "DebertaV2TokenizerFast"),
    "gemma3_text": (BUILDERS["byte fallback"], "gemma3_text", "GemmaTokenizerFast"),
    "llama": (BUILDERS["byte fallback"], "llama", "PreTrainedTokenizerFast"),
    "mistral": (BUILDERS["byte fallback"], "mistral", "LlamaTokenizer"),
    "qwen3": (BUILDERS["appended"], "qwen3", None),
    "modernbert": (BUILDERS["bytelevel"], "modernbert", "PreTrainedTokenizerFast"),
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def is_sensible(path: tuple[Any, ...]) -> bool:
    """Return whether a path is a setting or a whole part of tokenizer.json.

    Wrong tokens around a text, or another vocabulary, have no meaning, and dropout makes tokens random.
    """
    if path[0] in ("normalizer", "pre_tokenizer", "post_processor"):
        return len(path) == 1 or path[-1] == "type"
    excluded = {"added_tokens", "version", "cls_token", "sep_token", "bos_token", "eos_token"}
    return path[0] not in excluded and path[1:2] not in [(key,) for key in ("vocab", "merges", "type", "dropout")]


def publish_roles(directory: Path, kind: str) -> None:
    """Write the files of a tokenizer as transformers 4 saves them."""
    build, model_type, name = CHANGED[kind]
    tokenizer = build()
    tokenizer.enable_truncation(9)
    tokenizer.enable_padding()
    (directory / "tokenizer.json").write_text(tokenizer.to_str())
    added = {token["content"]: token for token in read_json(directory / "tokenizer.json")["added_tokens"]}
    texts = {"cls": "[CLS] <s>", "sep": "[SEP] </s>", "unk": "[UNK] <unk>", "pad": "[PAD] <pad>",
             "mask": "[MASK] <mask>", "bos": "<bos> <s>", "eos": "<eos> </s>"}  # fmt: skip
    roles = {f"{role}_token": text for role, names in texts.items() for text in names.split() if text in added}
    decoder = {str(token.pop("id")): token for token in added.values()}
    options = {"model_max_length": 40, "added_tokens_decoder": decoder} | ({"tokenizer_class": name} if name else {})
    write_json(directory / "config.json", {"model_type": model_type})
    write_json(directory / "tokenizer_config.json", roles | options)
    write_json(directory / "special_tokens_map.json", roles)


@pytest.mark.parametrize("kind", CHANGED)
@given(data=st.data())
def test_changed_key_is_applied_rejected_or_named(kind: str, data: st.DataObject) -> None:
    """If transformers rejects a value, the tokens do not matter."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        publish_roles(directory, kind)
        data.draw(change_file(directory, FILES, ("a", "[MASK]", "left", "right", "true"), is_sensible))
        try:
            files = Published(directory)
            published = read_tokenizer(files, read_json(directory / "config.json"), read_transformer_settings(files))
        except CheckpointError:
            return
        try:
            Tokenizer(published.definition).encode([TokenizerInput(text) for text in TEXTS])  # the export does the same
            expected = transformers.AutoTokenizer.from_pretrained(directory)
            _ = [expected(first, second) for first, second in zip(TEXTS, reversed(TEXTS), strict=True)]
        except Exception:  # noqa: BLE001  # both libraries raise exceptions of many types
            return
        if not any("differ from those of" in warning for warning in files.warnings()):
            compare(published, expected)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("qwen3", {}, []),
        ("qwen3", {"normalizer": None}, ["normalizer"]),
        ("qwen3", {"pre_tokenizer": BYTE_LEVEL}, ["pre_tokenizer"]),
        ("roberta", {"normalizer": {"type": "NFC"}}, ["normalizer"]),
    ],
)
def test_byte_level_parts_that_transformers_replaces_are_named(
    tmp_path: Path, kind: str, changes: dict[str, Any], named: list[str]
) -> None:
    publish_roles(tmp_path, kind)
    change_json(tmp_path / "tokenizer.json", **changes)
    files = Published(tmp_path)
    read_tokenizer(files, read_json(tmp_path / "config.json"), read_transformer_settings(files))
    assert [warning.split()[1] for warning in files.warnings()] == named


@pytest.mark.parametrize("kind", CHANGED)
@given(kept=st.sets(st.sampled_from(["<tool>", "river"])), special=FLAGS)
def test_added_tokens_that_transformers_drops_are_named(kind: str, kept: set[str], special: bool) -> None:
    """transformers 5 drops those that its file of added tokens lacks, but not for every class."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        publish_roles(directory, kind)
        tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text in ("<tool>", "river")])
        tokenizer.save(str(directory / "tokenizer.json"))
        added = read_json(directory / "tokenizer.json")["added_tokens"]
        dropped = {"<tool>", "river"} - kept
        decoder = {str(token.pop("id")): token for token in added if token["content"] not in dropped}
        change_json(directory / "tokenizer_config.json", added_tokens_decoder=decoder)
        files = Published(directory)
        published = read_tokenizer(files, read_json(directory / "config.json"), read_transformer_settings(files))
        actual = tokenizers.Tokenizer.from_str(published.definition.decode())
        actual.no_truncation()
        actual.no_padding()
        expected = transformers.AutoTokenizer.from_pretrained(directory)
        texts = ("a <tool> bank", "riverbank<tool>")
        equal = [actual.encode(text).ids for text in texts] == [expected(text)["input_ids"] for text in texts]
        is_named = any("added_tokens differ from those of" in warning for warning in files.warnings())
        assert is_named is not equal
        assert equal or dropped


def test_dropout_is_not_applied(tmp_path: Path) -> None:
    publish_roles(tmp_path, "modernbert")
    values = read_json(tmp_path / "tokenizer.json")
    values["model"]["dropout"] = 0.9
    write_json(tmp_path / "tokenizer.json", values)
    oracle = tokenizers.Tokenizer.from_str(BUILDERS["bytelevel"]().to_str())
    actual = tokenizers.Tokenizer.from_str(load_tokenizer(tmp_path).definition.decode())
    actual.no_truncation()
    assert [actual.encode(text).ids for text in SENTENCES] == [oracle.encode(text).ids for text in SENTENCES]


def test_several_templates_are_refused(tmp_path: Path) -> None:
    """The library would panic."""
    publish_roles(tmp_path, "qwen3")
    values = read_json(tmp_path / "tokenizer.json")
    values["post_processor"]["processors"] *= 2
    write_json(tmp_path / "tokenizer.json", values)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: invalid \(post_processor: too many templates \(2, limit"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
@given(data=st.data())
def test_ends_of_decoders_equal_transformers_4(model_type: str, data: st.DataObject) -> None:
    """The oracle gets the settings as arguments, because transformers 5 does not read them beside tokenizer.json."""
    custom = data.draw(FLAGS)
    settings: dict[str, Any] = data.draw(
        st.fixed_dictionaries({}, optional={"add_bos_token": FLAGS, "add_eos_token": FLAGS})
    )
    named: dict[str, Any] = {"bos_token": "<bos>", "eos_token": "<eos>"}
    style = "byte fallback"
    if model_type == "qwen2":
        named, style = {"eos_token": "</s>", "tokenizer_class": "Qwen2Tokenizer"}, "appended"
    if model_type == "mistral":
        named["tokenizer_class"] = "LlamaTokenizer"
    obeyed = settings and (custom or model_type != "qwen2")
    if custom:
        named["auto_map"] = {"AutoTokenizer": ["tokenization_custom.Custom", None]}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "tokenizer.json").write_text(BUILDERS[style]().to_str())
        write_json(directory / "config.json", {"model_type": model_type})
        write_json(directory / "tokenizer_config.json", named | settings)
        actual = tokenizers.Tokenizer.from_str(load_tokenizer(directory).definition.decode())
        named.pop("auto_map", None)
        write_json(directory / "tokenizer_config.json", named | {"tokenizer_class": "PreTrainedTokenizerFast"})
        defaults = {"add_bos_token": model_type != "qwen2", "add_eos_token": False} if obeyed else {}
        oracle = transformers.AutoTokenizer.from_pretrained(directory, **(defaults | settings if obeyed else {}))
        for first, second in zip(TEXTS, reversed(TEXTS), strict=True):
            assert actual.encode(first).ids == oracle(first)["input_ids"]
            assert actual.encode(first, second).ids == oracle(first, second)["input_ids"]


# The tokenizer.json that is made of a BERT vocabulary, compared with transformers.

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SAMPLES = (
    *SENTENCES,
    "",
    "  Ünïcödé,\tDÉJÀ VU\u00a0İstanbul\u0301 ﬁn\u200b.",
    "Привет, мир! Ёлка и ПОДЪЁМ.",
    "Καλημέρα κόσμε; ΣΊΣΥΦΟΣ",
    "你好，世界。東京タワー가나다",
    "नमस्ते दुनिया, สวัสดีชาวโลก",
    "مرحبا بالعالم، שָׁלוֹם",
    "[CLS] typed [MASK] tokens [SEP]",
    "emoji 👩‍🚀 \ufffd \x00 \x07 end",
    "word" * 60,
)
TOKEN = {
    "__type": "AddedToken",
    "content": "[CLS]",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
}


@pytest.fixture
def vocabulary(published: Path, tmp_path: Path) -> Path:
    """Return a model directory with vocab.txt instead of tokenizer.json; its words are characters and some pieces."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_bytes((published / "config.json").read_bytes())
    tokens = tokenizers.Tokenizer.from_file(str(published / "tokenizer.json")).get_vocab()
    characters = sorted({character for text in SAMPLES for character in text + text.lower() if character.isprintable()})
    characters = [character for character in characters if not character.isspace() and character not in tokens]
    lines = [*sorted(tokens, key=lambda token: tokens[token]), *characters, *(f"##{letter}" for letter in characters)]
    # Vocabularies of many languages contain a line separator, and some repeat a token.
    (directory / "vocab.txt").write_text("\n".join([*lines, "\u2028", "bank"]) + "\n")
    return directory


def configure(directory: Path, **settings: Any) -> None:
    write_json(directory / "tokenizer_config.json", settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": True, "tokenizer_class": "BertTokenizer"},
        {"do_lower_case": False, "tokenizer_class": "DistilBertTokenizer"},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False, "model_max_length": 32},
        {"tokenizer_class": "BertTokenizerFast", "cls_token": TOKEN, "added_tokens_decoder": {"2": TOKEN}},
    ],
)
def test_converted_tokenizer_equals_transformers(vocabulary: Path, settings: dict[str, Any]) -> None:
    configure(vocabulary, **settings)
    expected = transformers.AutoTokenizer.from_pretrained(vocabulary)
    assert expected.is_fast
    converted = tokenizers.Tokenizer.from_str(load_tokenizer(vocabulary).definition.decode())
    texts = [text for text in SAMPLES if text]  # transformers ignores an empty second text
    for first, second in zip(texts, reversed(texts), strict=True):
        for encoded, oracle in (
            (converted.encode(first), expected(first)),
            (converted.encode(first, second), expected(first, second)),
        ):
            assert encoded.ids == oracle["input_ids"]
            assert encoded.tokens == oracle.tokens()
            assert encoded.offsets == oracle.encodings[0].offsets
            assert encoded.type_ids == oracle.get("token_type_ids", [0] * len(encoded.ids))
    if "token_type_ids" in expected.model_input_names:
        own, oracle = (json.loads(tokenizer.to_str()) for tokenizer in (converted, expected.backend_tokenizer))
        assert own | {"post_processor": None} == oracle | {"post_processor": None}  # two kinds with the same results


def test_texts_reach_the_vocabulary_in_every_script(vocabulary: Path) -> None:
    """Otherwise every comparison would be between unknown tokens."""
    converted = tokenizers.Tokenizer.from_str(load_tokenizer(vocabulary).definition.decode())
    for text in SAMPLES:
        tokens = converted.encode(text, add_special_tokens=False).tokens
        assert not text or len([token for token in tokens if token != "[UNK]"]) >= len(tokens) / 2 or "word" in text


def test_other_special_tokens_are_read_from_special_tokens_map(vocabulary: Path) -> None:
    text = (vocabulary / "vocab.txt").read_text()
    (vocabulary / "vocab.txt").write_text(text.replace("[CLS]", "<s>").replace("[UNK]", "<unk>"))
    write_json(vocabulary / "special_tokens_map.json", {"cls_token": "<s>", "unk_token": "<unk>"})
    configure(vocabulary, cls_token="<s>", unk_token="<unk>")
    expected = transformers.AutoTokenizer.from_pretrained(vocabulary)
    (vocabulary / "tokenizer_config.json").unlink()
    converted = tokenizers.Tokenizer.from_str(load_tokenizer(vocabulary).definition.decode())
    assert [converted.encode(text).ids for text in SAMPLES] == [expected(text)["input_ids"] for text in SAMPLES]


def test_special_tokens_map_overrides_tokenizer_config(vocabulary: Path) -> None:
    with (vocabulary / "vocab.txt").open("a") as lines:
        lines.write("<s>\n<mask>\n")
    write_json(vocabulary / "special_tokens_map.json", {"cls_token": "<s>", "mask_token": "<mask>"})
    configure(vocabulary, cls_token="[CLS]", mask_token="[MASK]")
    expected = transformers.AutoTokenizer.from_pretrained(vocabulary)
    converted = tokenizers.Tokenizer.from_str(load_tokenizer(vocabulary).definition.decode())
    for text in ("a [MASK]", "a <mask>"):
        assert converted.encode(text).ids == expected(text)["input_ids"]


def test_checkpoint_has_converted_tokenizer(source: Path) -> None:
    tokens = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab()
    (source / "vocab.txt").write_text("\n".join(sorted(tokens, key=lambda token: tokens[token])))
    (source / "tokenizer.json").unlink()
    converted = tokenizers.Tokenizer.from_str(load_checkpoint(source).tokenizer.decode())
    assert converted.get_vocab() == tokens


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tokenizer_class": "HerbertTokenizer"}, r"only tokenizers of BERT .* \(not HerbertTokenizer\)"),
        ({"do_basic_tokenize": False}, "has do_basic_tokenize or never_split"),
        ({"never_split": ["x"]}, "has do_basic_tokenize or never_split"),
        ({"additional_special_tokens": ["<ent>"]}, "it has added tokens"),
        ({"added_tokens_decoder": {"300": TOKEN | {"content": "<ent>"}}}, "it has added tokens"),
        ({"mask_token": TOKEN | {"content": "[MASK]", "lstrip": True}}, "special tokens have options"),
        ({"cls_token": "<s>"}, "vocab.txt has no <s>"),
    ],
)
def test_other_tokenizers_are_refused(vocabulary: Path, settings: dict[str, Any], problem: str) -> None:
    configure(vocabulary, **settings)
    with pytest.raises(CheckpointError, match=rf"tiny/tokenizer\.json: missing, and .*{problem}\. Run: pip install"):
        load_tokenizer(vocabulary)


@pytest.mark.parametrize(
    ("model_type", "others"),
    [
        ("bert", ()),
        ("roberta", ()),
        ("roberta", ("vocab.json",)),
        ("xlm-roberta", ("merges.txt",)),
        ("gemma3_text", ()),
    ],
)
def test_missing_vocabulary_is_named_without_a_command(
    vocabulary: Path, model_type: str, others: tuple[str, ...]
) -> None:
    """transformers 5 would write a tokenizer of 5 special tokens, which turns every word into [UNK]."""
    (vocabulary / "vocab.txt").unlink()
    change_json(vocabulary / "config.json", model_type=model_type)
    for name in others:
        (vocabulary / name).write_text("{}")
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(vocabulary)
    assert str(raised.value) == (
        f"{vocabulary}/tokenizer.json: missing, and there is no vocabulary. Download tokenizer.json from the model's "
        "page, or its vocabulary: vocab.txt, vocab.json with merges.txt, sentencepiece.bpe.model, or tokenizer.model."
    )


def test_bert_vocabulary_in_another_format_is_rejected(vocabulary: Path) -> None:
    (vocabulary / "vocab.txt").rename(vocabulary / "spiece.model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing, and so is vocab\.txt"):
        load_tokenizer(vocabulary)


def test_vocabulary_in_another_encoding_is_refused(vocabulary: Path) -> None:
    (vocabulary / "vocab.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(CheckpointError, match=r"vocab\.txt: not a vocabulary \(.*stream did not contain valid UTF-8\)"):
        load_tokenizer(vocabulary)


def test_suggested_command_writes_the_tokenizer(publish: Publish, tmp_path: Path) -> None:
    """RoBERTa's vocabulary and merges are files that only transformers converts."""
    directory = tmp_path / "it's tiny"
    directory.mkdir()
    published = publish("roberta")
    definition = read_json(published / "tokenizer.json")["model"]
    (directory / "config.json").write_bytes((published / "config.json").read_bytes())
    write_json(directory / "vocab.json", definition["vocab"])
    (directory / "merges.txt").write_text("\n".join(" ".join(merge) for merge in definition["merges"]))
    with pytest.raises(CheckpointError, match=r"only tokenizers of BERT are converted here \(not roberta\)") as raised:
        load_tokenizer(directory)
    install, _, command = str(raised.value).partition(" Run: ")[2].partition(" && ")
    assert re.fullmatch(r"pip install [a-z ]+", install)
    python = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}'
    subprocess.run(["bash", "-c", f"{python}; {command}"], check=True, capture_output=True)
    converted = tokenizers.Tokenizer.from_str(load_tokenizer(directory).definition.decode())
    oracle = tokenizers.Tokenizer.from_file(str(published / "tokenizer.json"))
    assert [converted.encode(text).ids for text in SENTENCES] == [oracle.encode(text).ids for text in SENTENCES]


def test_tokenizers_that_are_python_code_are_named(vocabulary: Path) -> None:
    """They have no tokenizer.json to save, and do not read one."""
    names = [name for name in PYTHON_CLASSES if not hasattr(getattr(transformers, name), "backend_tokenizer")]
    assert names == list(PYTHON_CLASSES)
    write_json(vocabulary / "tokenizer_config.json", {"tokenizer_class": names[0], "word_tokenizer_type": "basic"})
    with pytest.raises(CheckpointError, match="BertJapaneseTokenizer is Python code of transformers, which is not"):
        load_tokenizer(vocabulary)
    tokenizer = BUILDERS["wordpiece"]()
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(vocabulary / "tokenizer.json"))
    library = transformers.AutoTokenizer.from_pretrained(vocabulary)
    assert library("déjà")["input_ids"] != tokenizer.encode("déjà").ids
    files = Published(vocabulary)
    read_tokenizer(files, read_json(vocabulary / "config.json"), read_transformer_settings(files))
    assert "BertJapaneseTokenizer of transformers does not read it" in files.warnings()[0]


# Tokenizer patterns that backtrack forever are detected; usual ones pass.

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(pattern: str, *, normalizes: bool) -> bytes:
    made: Any = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", vocab={"[UNK]": 0, "a": 1}, merges=[]))
    if normalizes:
        made.normalizer = normalizers.Replace(Regex(pattern), "b")
    else:
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated")])
    return str(made.to_str()).encode()


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\s*)*!", r"(?:x|x)*y", r"(_|\w)+\d"])
def test_patterns_that_backtrack_are_found(pattern: str, monkeypatch: pytest.MonkeyPatch, *, normalizes: bool) -> None:
    monkeypatch.setattr(tokenizer_patterns, "TIMEOUT_S", 4)
    problem = find_slow_pattern(tokenizer(pattern, normalizes=normalizes))
    assert problem is not None
    assert problem.startswith("a pattern ")


@pytest.mark.parametrize("pattern", [GPT2, QWEN, r" {2,}", r"\s+"])
def test_usual_patterns_pass(pattern: str) -> None:
    assert find_slow_pattern(tokenizer(pattern, normalizes=False)) is None


def test_tokenizer_without_patterns_starts_no_process(default_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    data = (default_artifact / "tokenizer.json").read_bytes()
    assert patterns_of(json.loads(data)) == []
    assert find_slow_pattern(data) is None
