"""Every setting of sentence-transformers is applied or rejected: tokens and attributes compared with the library."""

import ast
import inspect
import re
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import cross_encoder, multi_vector_encoder, sentence_transformer, sparse_encoder
from sentence_transformers.base import modules
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.cross_encoder import modules as cross_encoder_modules
from sentence_transformers.multi_vector_encoder import modules as multi_vector_modules
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder import modules as sparse_modules
from torch import Tensor
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint, load_checkpoint
from model.export.parity import pool
from model.heads.multi_vector import PYLATE_KEYS
from model.source.published import HARMLESS, TRANSFORMER_CONFIGS, CheckpointError
from model.source.sentence_transformers import SIMILARITIES
from tests.model.model_files import change_file, write_json
from tests.model.test_sentence_transformers_config import write_modules
from tests.model.tiny_tokenizers import SENTENCES
from tests.model.varlen_inputs import run

TEXTS = (SENTENCES[0], "A Bank", "Bank of the RIVER. " * 4)
LIMITS = st.integers(5, 41)
FLAGS = st.booleans()
TOKENIZER = {
    "model_max_length": LIMITS,
    "truncation_side": st.sampled_from(["left", "right"]),
    "do_lower_case": FLAGS,
    "padding_side": st.sampled_from(["left", "right"]),
}
TRANSFORMER: dict[str, st.SearchStrategy[Any]] = {
    "max_seq_length": st.none() | LIMITS,
    "do_lower_case": FLAGS,
    "tokenizer_args": st.fixed_dictionaries({}, optional=TOKENIZER),
    "model_args": st.fixed_dictionaries({}, optional={"attn_implementation": st.just("eager")}),
    "config_args": st.fixed_dictionaries({}, optional={"hidden_act": st.sampled_from(["relu", "silu"])}),
    "processing_kwargs": st.fixed_dictionaries(
        {},
        optional={
            "text": st.fixed_dictionaries({}, optional={"max_length": LIMITS, "padding": st.just("longest")}),
            "common": st.fixed_dictionaries({}, optional={"max_length": LIMITS}),
        },
    ),
    "query_length": st.none() | LIMITS,
    "document_length": st.none() | LIMITS,
    "unpad_inputs": st.none() | FLAGS,
}
MODEL: dict[str, st.SearchStrategy[Any]] = {
    "truncate_dim": st.none() | st.integers(1, 30),
    "similarity_fn_name": st.none() | st.sampled_from([*SIMILARITIES, "maxsim", "other"]),
    "prompts": st.just({"query": "find: ", "document": "Doc: "}),
    "default_prompt_name": st.none(),
    "__version__": st.just({"sentence_transformers": "5.0.0"}),
    "model_type": st.just("SentenceTransformer"),
}
SAVED = {
    "model_type": "SentenceTransformer", "prompts": {"query": "find: ", "other": "the river: "},
    "default_prompt_name": "other", "truncate_dim": 11, "similarity_fn_name": "euclidean",
}  # fmt: skip
OLD_AND_NEW = {
    "tokenizer_args": "processor_kwargs", "model_args": "model_kwargs", "config_args": "config_kwargs",
}  # fmt: skip


ONLY_IN_KINDS = {"activation_fn", "max_active_dims"} | PYLATE_KEYS
"""Keys that only cross-encoders, sparse encoders or ColBERT models read: elsewhere, a warning names them."""
READ_BY_MODULE = {
    "Pooling": {"pooling_mode", "include_prompt"},
    "Dense": {"activation_function", "module_input_name", "module_output_name", "use_residual"},
    "Normalize": {"module_input_name", "module_output_name"},
    "SpladePooling": {"pooling_strategy", "activation_function"},
    "SparseStaticEmbedding": {"path"},
    "MultiVectorMask": {"skiplist_words", "skiplist_tasks", "keep_only_token_ids"},
    "LogitScore": {"true_token_id", "false_token_id", "module_input_name"},
}
ARGUMENTS_OF_CALLERS = {"gguf_file", "tokenizer_object", "tokenizer_class", "vocab", "merges", "tokenizer_truncation",
                        "tokenizer_padding", "post_processor", "tokenizer"}  # fmt: skip
"""Arguments of transformers that its own code passes, and the class, which selects how other keys are read."""
FILE = re.compile(r"[\w.-]+\.(json|jinja|metadata|txt|model)")
KNOWN_FILES = {
    *TRANSFORMER_CONFIGS, "modules.json", "config_sentence_transformers.json", "router_config.json", "config.json",
    "artifact.metadata", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json",
    "chat_template.jinja", "adapter_config.json",
    # Of modules that modules.json may not name, and of a key that is refused:
    "cnn_config.json", "lstm_config.json", "wordembedding_config.json", "whitespacetokenizer_config.json",
    "phrasetokenizer_config.json", "idf.json",
}  # fmt: skip


def published_ids(checkpoint: Checkpoint, text: str, role: str | None) -> list[int]:
    """Return the token ids of a text as the artifact of a checkpoint makes the server read it."""
    (tokens,) = Tokenizer(checkpoint.tokenizer).encode([TokenizerInput(text)])
    limit = checkpoint.role_max_tokens.get(role, checkpoint.max_input_tokens)  # type: ignore[call-overload]
    return tokens.truncate(limit, checkpoint.truncation_side).input_ids


@given(data=st.data())
def test_settings_equal_sentence_transformers(published: Path, data: st.DataObject) -> None:
    transformer = data.draw(st.fixed_dictionaries({}, optional=TRANSFORMER))
    if data.draw(FLAGS):
        transformer = {OLD_AND_NEW.get(key, key): value for key, value in transformer.items()}
    config = data.draw(st.fixed_dictionaries({}, optional=MODEL))
    tokenizer = data.draw(st.fixed_dictionaries({}, optional=TOKENIZER))
    names = data.draw(st.lists(st.sampled_from(TRANSFORMER_CONFIGS), min_size=1, max_size=2, unique=True))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "model"
        shutil.copytree(published, root)
        write_modules(root, "Pooling", *(["Normalize"] if data.draw(FLAGS) else []))
        for name in names:
            write_json(root / name, transformer if name == names[0] else {"max_seq_length": 7})
        write_json(root / "config_sentence_transformers.json", config)
        write_json(root / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **tokenizer})
        oracle = sentence_transformers.SentenceTransformer(str(root), device="cpu")
        checkpoint = load_checkpoint(root)
        for role in (None, "query", "document"):
            for text in TEXTS:
                expected = oracle.preprocess([text], task=role)["input_ids"][0].tolist()
                assert published_ids(checkpoint, text, role) == expected[: checkpoint.encoder.config.vocab_size]
    embedding = checkpoint.embedding_config
    assert embedding.similarity == oracle.similarity_fn_name
    size = oracle.truncate_dim or 10**6
    assert (embedding.truncate_dim or checkpoint.encoder.config.hidden_size) == min(
        size, checkpoint.encoder.config.hidden_size
    )
    transformer_config: Any = oracle[0].config
    assert checkpoint.encoder.config.hidden_act == transformer_config.hidden_act
    unknown = [warning for warning in checkpoint.warnings if "similarity_fn_name" not in warning]
    assert unknown == []


def embed(checkpoint: Checkpoint, text: str) -> Tensor:
    """Return the vector of a text with the default prompt."""
    config = checkpoint.embedding_config
    prompt = "" if config.default_prompt_name is None else config.prompts[config.default_prompt_name]
    (tokens,) = checkpoint.text_tokenizer().encode([TokenizerInput(text, prompt=prompt)])
    tokens = tokens.truncate(checkpoint.max_input_tokens, checkpoint.truncation_side)
    hidden = run(checkpoint, torch.tensor([tokens.input_ids]))
    first = 0 if config.include_prompt else tokens.prompt_range[1]
    with torch.inference_mode():
        vector = pool(hidden[first:], config.pooling)
        for layer in config.dense:
            vector = layer(vector)
    vector = torch.nn.functional.normalize(vector, dim=0) if config.normalize else vector
    return vector[: config.truncate_dim]


MODEL_FILES = (
    "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json",
    "2_Dense/config.json", "3_Normalize/config.json",
)  # fmt: skip
VALUES = (
    "query", "mean", "cls", "lasttoken", "dot", "manhattan", "fill-mask", "sentence_embedding", "token_embeddings",
    "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU", "1_Pooling", "SparseEncoder", "none",
)  # fmt: skip


@given(data=st.data())
def test_changed_key_is_applied_rejected_or_named(labse: Path, data: st.DataObject) -> None:
    """If sentence-transformers rejects a value, the vectors do not matter."""
    with tempfile.TemporaryDirectory() as directory:
        root = shutil.copytree(labse, Path(directory) / "model")
        write_json(root / "config_sentence_transformers.json", SAVED)
        name, path = data.draw(change_file(root, MODEL_FILES, VALUES))
        try:
            checkpoint = load_checkpoint(root)
        except CheckpointError:
            return
        try:
            oracle = sentence_transformers.SentenceTransformer(str(root), device="cpu")
            expected = [oracle.encode(text, convert_to_tensor=True) for text in TEXTS]
        except Exception:  # noqa: BLE001  # the library raises exceptions of many types
            return
    if checkpoint.warnings or (name, *path) == ("config_sentence_transformers.json", "model_type"):
        return
    for text, vector in zip(TEXTS, expected, strict=True):
        torch.testing.assert_close(embed(checkpoint, text), vector, rtol=0, atol=1e-4)
    assert checkpoint.embedding_config.similarity == oracle.similarity_fn_name


MODULE_CLASSES: dict[str, Any] = {
    "Pooling": Pooling,
    "Dense": modules.Dense,
    "Normalize": modules.Normalize,
    "SpladePooling": sparse_modules.SpladePooling,
    "SparseStaticEmbedding": sparse_modules.SparseStaticEmbedding,
    "MultiVectorMask": multi_vector_modules.MultiVectorMask,
    "LogitScore": cross_encoder_modules.LogitScore,
}
NOT_SETTINGS = {"self", "args", "kwargs", "model_name_or_path", "init_weight", "init_bias", "tokenizer", "weight"}
"""Arguments of modules that no file contains."""


def parameters(function: Any) -> set[str]:
    """Return the names of the settings among the arguments of a function."""
    return set(inspect.signature(inspect.unwrap(function)).parameters) - NOT_SETTINGS


def keys_in(function: Any, *names: str) -> set[str]:
    """Return the keys that a function reads from a mapping with one of these names: `x.get(k)`, `x[k]` or `k in x`."""
    keys = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        key: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner, key = node.func.value, node.args[0]
            key = key if node.func.attr in ("get", "pop", "setdefault") else None
        elif isinstance(node, ast.Subscript):
            owner, key = node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            owner, key = node.comparators[0], node.left
        value = key.value if isinstance(key, ast.Constant) else None
        if isinstance(value, str) and isinstance(owner, ast.Name) and owner.id in names:
            keys.add(value)
    return keys


def test_every_key_of_the_module_transformer_is_known(source: Path) -> None:
    keys = parameters(Transformer.__init__) | set(Transformer.config_keys)
    keys |= {"model_args", "tokenizer_args", "config_args"}
    assert {"query_expansion", "modality_config", "tokenizer_name_or_path"} <= keys
    write_modules(source, "Pooling")
    assert [key for key in sorted(keys) if not is_known(source, source / "sentence_bert_config.json", key)] == []


def test_every_key_of_a_model_is_known(source: Path) -> None:
    models = (
        sentence_transformers.SentenceTransformer, sentence_transformers.CrossEncoder,
        sentence_transformers.SparseEncoder, sentence_transformers.MultiVectorEncoder, BaseModel,
    )  # fmt: skip
    keys = {key for model in models for key in keys_in(model._parse_model_config, "model_config")}
    keys |= keys_in(BaseModel._get_model_type, "config") | PYLATE_KEYS
    assert {"truncate_dim", "activation_fn", "max_active_dims", "skiplist_words", "model_type"} <= keys
    write_modules(source, "Pooling")
    write_json(source / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    path = source / "config_sentence_transformers.json"
    assert [key for key in sorted(keys - ONLY_IN_KINDS) if not is_known(source, path, key)] == []


@pytest.mark.parametrize("name", MODULE_CLASSES)
def test_every_key_of_a_module_is_known(name: str) -> None:
    module = MODULE_CLASSES[name]
    keys = parameters(module.__init__) | set(module.config_keys) | set(getattr(module, "config_key_renames", ()))
    assert keys <= READ_BY_MODULE[name] | HARMLESS.get(name, frozenset())


def test_every_key_of_a_tokenizer_is_known(source: Path) -> None:
    classes = [
        getattr(transformers, name)
        for name in ("BertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer",
                     "CamembertTokenizer", "Qwen2Tokenizer", "GemmaTokenizer")
    ]  # fmt: skip
    keys = {key for tokenizer in classes for key in parameters(tokenizer.__init__)}
    for function, names in (
        (PreTrainedTokenizerBase.__init__, ("kwargs",)),
        (PreTrainedTokenizerBase._from_pretrained, ("init_kwargs",)),
        (TokenizersBackend.__init__, ("kwargs",)),
        (TokenizersBackend.convert_to_native_format, ("local_kwargs",)),
    ):
        keys |= keys_in(function, *names)
    assert {"truncation_side", "model_max_length", "added_tokens_decoder", "do_lower_case"} <= keys
    keys -= {key for key in keys if key.startswith("_")} | ARGUMENTS_OF_CALLERS
    assert [key for key in sorted(keys) if not is_known(source, source / "tokenizer_config.json", key)] == []


def test_every_file_is_known() -> None:
    packages = (sentence_transformers.base, cross_encoder, sparse_encoder, multi_vector_encoder, sentence_transformer)
    names = {"tokenizer_config.json", *vars_with_files(transformers.tokenization_utils_base)}
    for package in packages:
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            if "evaluation" in path.parts or "losses" in path.parts or path.stem in ("trainer", "fit_mixin"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and FILE.fullmatch(node.value):
                    names.add(node.value)
    assert names <= KNOWN_FILES


def vars_with_files(module: Any) -> set[str]:
    """Return the constants of a module that are file names."""
    values = vars(module).values()
    return {value for value in values if isinstance(value, str) and FILE.fullmatch(value)}


def is_known(source: Path, file: Path, key: str) -> bool:
    """Return whether an arbitrary value of a key is an error that names it, or known not to change the results."""
    write_json(file, {key: "sentinel"})
    try:
        warnings = load_checkpoint(source).warnings
    except CheckpointError as error:
        return key in str(error)
    finally:
        file.unlink()
    return not any(key in warning for warning in warnings if "unknown settings" in warning)
