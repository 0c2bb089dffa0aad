"""tokenizer.json with the settings of the files beside it, compared with the tokenizers that transformers loads."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from tests.model.model_files import write_json
from tests.model.published_tokenizers import load_tokenizer
from tests.model.tiny_tokenizers import BUILDERS, SENTENCES

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
    """Compare ids and token types of texts and pairs, and the side of truncation, with transformers."""
    expected = transformers.AutoTokenizer.from_pretrained(directory)
    published = load_tokenizer(directory)
    assert published.truncation_side == expected.truncation_side
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
