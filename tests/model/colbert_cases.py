"""Tiny ColBERT models in the three formats that they are published in."""

import json
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file

from tests.model.family_cases import FAMILY_CASES, FamilyCase
from tests.model.model_files import change_json, read_json, write_chain, write_json
from tests.model.retriever_cases import MULTI_VECTOR_SIZE, bert_masked_lm
from tests.model.tiny_tokenizers import BERT_TOKENS, BUILDERS

MAX_INPUT_TOKENS = 64
BERT = replace(bert_masked_lm("Bert"), architecture="BertModel")
BPE_SPECIAL = {
    "pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>",
}  # fmt: skip


@dataclass(frozen=True)
class ColbertCase:
    """A model of transformers, its tokenizer, and the function that adds the files of a format."""

    case: FamilyCase
    special: dict[str, str]
    tokenizer: Callable[[], bytes]
    add_files: Callable[[Path, torch.Tensor], None]

    def publish(self, directory: Path) -> None:
        """Write all files."""
        self.case.publish(directory, self.tokenizer())
        (directory / "modules.json").unlink(missing_ok=True)
        options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_INPUT_TOKENS, **self.special}
        write_json(directory / "tokenizer_config.json", options)
        size = read_json(directory / "config.json")["hidden_size"]
        weight = torch.randn(MULTI_VECTOR_SIZE, size, generator=torch.Generator().manual_seed(3))
        self.add_files(directory, weight)


def with_unused_tokens() -> bytes:
    """Return a WordPiece tokenizer with [unused0] and [unused1], as in BERT."""
    values = json.loads(BUILDERS["wordpiece"]().to_str())
    vocabulary = values["model"]["vocab"]
    for name in ("[unused0]", "[unused1]"):
        vocabulary[name] = len(vocabulary)
    return json.dumps(values).encode()


def with_added_markers(kind: str, *, special: bool) -> bytes:
    """Return a tokenizer with the markers of PyLate, added after training."""
    tokenizer = tokenizers.Tokenizer.from_str(BUILDERS[kind]().to_str())
    tokenizer.add_tokens(
        [tokenizers.AddedToken(name, special=special, normalized=not special) for name in ("[Q] ", "[D] ")]
    )
    return tokenizer.to_str().encode()


def add_stanford(directory: Path, weight: torch.Tensor) -> None:
    """Write the format of Stanford's ColBERTv2."""
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(tensors | {"linear.weight": weight}, directory / "model.safetensors", {"format": "pt"})
    change_json(directory / "config.json", architectures=["HF_ColBERT"])
    options = {"query_maxlen": 14, "doc_maxlen": 20, "mask_punctuation": True, "attend_to_mask_tokens": False}
    write_json(directory / "artifact.metadata", options)


def add_chain(directory: Path, weight: torch.Tensor, kinds: dict[str, str]) -> None:
    """Write modules.json and a dense layer."""
    write_chain(directory, kinds)
    options = {
        "in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }  # fmt: skip
    write_json(directory / "1_Dense" / "config.json", options)
    save_file({"linear.weight": weight}, directory / "1_Dense" / "model.safetensors")


def pylate(**changes: Any) -> Callable[[Path, torch.Tensor], None]:
    """Return the function that writes the format of PyLate before version 4."""

    def add_files(directory: Path, weight: torch.Tensor) -> None:
        chain = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
        add_chain(directory, weight, chain)
        options: dict[str, Any] = {
            "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim",
            "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 14, "document_length": 20,
            "attend_to_expansion_tokens": False, "skiplist_words": list(string.punctuation),
        }  # fmt: skip
        write_json(directory / "config_sentence_transformers.json", options | changes)
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": 19, "do_lower_case": False})

    return add_files


def native(similarity: str, prompts: dict[str, str], **options: Any) -> Callable[[Path, torch.Tensor], None]:
    """Return the function that writes the format of sentence-transformers."""

    def add_files(directory: Path, weight: torch.Tensor) -> None:
        base = "sentence_transformers.base.modules"
        mask = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
        kinds = {
            "": f"{base}.transformer.Transformer", "1_Dense": f"{base}.dense.Dense", "2_MultiVectorMask": mask,
            "3_Normalize": f"{base}.normalize.Normalize",
        }  # fmt: skip
        add_chain(directory, weight, kinds)
        change_json(directory / "1_Dense" / "config.json", module_input_name="token_embeddings")
        for name, values in (
            ("2_MultiVectorMask", {"skiplist_words": [",", "a"]}),
            ("3_Normalize", {"module_input_name": "token_embeddings"}),
        ):
            write_json(directory / name / "config.json", values)
        config = {"model_type": "MultiVectorEncoder", "prompts": prompts, "similarity_fn_name": similarity}
        write_json(directory / "config_sentence_transformers.json", config)
        write_json(directory / "sentence_bert_config.json", options)

    return add_files


COLBERT_CASES: dict[str, ColbertCase] = {
    "stanford": ColbertCase(BERT, BERT_TOKENS, with_unused_tokens, add_stanford),
    "pylate": ColbertCase(BERT, BERT_TOKENS, lambda: with_added_markers("wordpiece", special=False), pylate()),
    "pylate, attended": ColbertCase(
        FAMILY_CASES["modernbert"],
        BPE_SPECIAL,
        lambda: with_added_markers("bytelevel", special=False),
        pylate(attend_to_expansion_tokens=True, skiplist_words=[]),
    ),
    "pylate, no expansion": ColbertCase(
        BERT, BERT_TOKENS, lambda: with_added_markers("wordpiece", special=False), pylate(do_query_expansion=False)
    ),
    "native, minimum": ColbertCase(
        replace(FAMILY_CASES["modernbert"], options={**FAMILY_CASES["modernbert"].options, "local_attention": 32}),
        BPE_SPECIAL,
        lambda: with_added_markers("bytelevel", special=True),
        native(
            "maxsim", {"query": "[Q] ", "document": "[D] "}, document_length=20, query_length=18,
            query_expansion={"strategy": "min", "attend": False, "length": 14, "token": None},
        ),
    ),
    "native, causal": ColbertCase(
        FAMILY_CASES["qwen3"],
        {key: value for key, value in BPE_SPECIAL.items() if key in ("pad_token", "unk_token")},
        lambda: with_added_markers("bytelevel", special=True),
        native("maxsim", {"query": "[Q] ", "document": "[D] "}, document_length=20, query_length=18),
    ),
    "native, text prompts": ColbertCase(
        BERT,
        BERT_TOKENS,
        lambda: BUILDERS["wordpiece"]().to_str().encode(),
        native("meanmaxsim", {"query": "query: ", "document": ""}, query_expansion=None),
    ),
}  # fmt: skip
