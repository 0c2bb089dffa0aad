"""The tokenizer.json that is made of a BERT vocabulary, compared with transformers."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError, Published
from model.source.sentence_transformers import read_transformer_settings
from model.source.tokenizer import PYTHON_CLASSES, read_tokenizer
from tests.model.conftest import Publish
from tests.model.model_files import change_json, read_json, write_json
from tests.model.published_tokenizers import load_tokenizer
from tests.model.tiny_tokenizers import BUILDERS, SENTENCES

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = (
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
    characters = sorted({character for text in TEXTS for character in text + text.lower() if character.isprintable()})
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
    texts = [text for text in TEXTS if text]  # transformers ignores an empty second text
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
    for text in TEXTS:
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
    assert [converted.encode(text).ids for text in TEXTS] == [expected(text)["input_ids"] for text in TEXTS]


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
