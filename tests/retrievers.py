"""Artifacts of tiny sparse and multi-vector models, shared by the tests of every layer."""

import json
from functools import cache
from pathlib import Path

from model.export.export import Variants, export
from model.source.sentence_transformers import FROM_FILES, SettingOptions
from tests.model.colbert_cases import COLBERT_CASES
from tests.model.logit_score_cases import LOGIT_SCORE, publish_logit_score
from tests.model.retriever_cases import (
    BGE_M3,
    SPLADE_CASES,
    publish_bge_m3,
    publish_inference_free,
    publish_splade,
)
from tests.model.tiny_tokenizers import BUILDERS
from tests.scratch import make_directory

SPLADE = "splade"
INFERENCE_FREE = "inference-free-splade"
MASKED_LMS = ("jina_embeddings_v3", "modernbert")
"""Cases of `SPLADE_CASES` to publish without sparse head: with Unigram, and with BPE and a final norm."""
SPECIAL_TOKENS = {
    "wordpiece": {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
    },
    "metaspace": {
        "pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>",
    },
}  # fmt: skip
SPECIAL_TOKENS["bytelevel"] = SPECIAL_TOKENS["metaspace"]
MAX_INPUT_TOKENS = 64


@cache
def publish_retriever(kind: str) -> Path:
    """Write the published files of a retriever or masked language model, once per process; return their directory."""
    directory = make_directory() / "source"
    directory.mkdir()
    if kind in COLBERT_CASES:
        COLBERT_CASES[kind].publish(directory)
        return directory
    if kind == LOGIT_SCORE:
        publish_logit_score(directory)
        return directory
    if kind == BGE_M3:
        tokenizer = "metaspace"
        publish_bge_m3(directory, BUILDERS[tokenizer]().to_str().encode())
    elif kind == INFERENCE_FREE:
        tokenizer = "wordpiece"
        publish_inference_free(directory, BUILDERS[tokenizer]().to_str().encode())
    elif kind == SPLADE:
        tokenizer = "wordpiece"
        publish_splade(SPLADE_CASES["bert"], directory, BUILDERS[tokenizer]().to_str().encode())
    else:
        case = SPLADE_CASES[kind]
        tokenizer = case.tokenizer
        case.publish(directory, BUILDERS[tokenizer]().to_str().encode())
    special = SPECIAL_TOKENS[tokenizer]
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_INPUT_TOKENS, **special}
    for path in (directory, *directory.glob("*_0_*")):  # a Router has a tokenizer per route
        (path / "tokenizer_config.json").write_text(json.dumps(options))
    return directory


@cache
def export_retriever(kind: str, settings: SettingOptions = FROM_FILES) -> Path:
    """Return the directory of the artifact of a model, exported once per process and settings."""
    out = make_directory() / "artifact"
    source = str(publish_retriever(kind))
    variants = Variants(explain=kind not in (*COLBERT_CASES, LOGIT_SCORE))  # their tests need no attention maps
    export(
        source,
        out,
        revision=None,
        name=kind.replace(", ", "-").replace(" ", "-"),
        progress=lambda step: None,
        variants=variants,
        settings=settings,
    )
    return out
