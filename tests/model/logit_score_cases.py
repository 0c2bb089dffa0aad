"""A tiny reranker in the format of Qwen3-Reranker: a causal language model, a chat template and two token ids."""

from pathlib import Path
from typing import Any

import tokenizers

from tests.model.family_cases import FAMILY_CASES, FamilyCase
from tests.model.model_files import write_chain, write_json
from tests.model.tiny_tokenizers import BUILDERS

LOGIT_SCORE = "logit-score"
MAX_INPUT_TOKENS = 160
TEMPLATE = """
{%- set ns = namespace(instruct="Find what answers", query="", document="") -%}
{%- for message in messages -%}
{%- if message.role == "system" -%}{%- set ns.instruct = message.content -%}{%- endif -%}
{%- if message.role == "query" -%}{%- set ns.query = message.content -%}{%- endif -%}
{%- if message.role == "document" -%}{%- set ns.document = message.content -%}{%- endif -%}
{%- endfor -%}
<|im_start|>system
Say "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ ns.instruct }}
<Query>: {{ ns.query }}
<Document>: {{ ns.document }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""


CAUSAL_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text, causal")
"""Cases of each architecture of causal language models."""


def publish_logit_score(directory: Path, template: str = TEMPLATE, *, kind: str = "qwen3", **score: Any) -> None:
    """Write the files as sentence-transformers does; `score` are changes of the configuration of LogitScore."""
    tokenizer = tokenizers.Tokenizer.from_str(BUILDERS["bytelevel"]().to_str())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    own = FAMILY_CASES[kind]
    architecture = own.architecture.removesuffix("Model").removesuffix("Text") + "ForCausalLM"
    options = {**own.options, "max_position_embeddings": MAX_INPUT_TOKENS}
    FamilyCase(architecture, own.config, options).publish(directory, tokenizer.to_str().encode())
    special = {"pad_token": "<pad>", "eos_token": "<|im_end|>"}
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_INPUT_TOKENS, **special}
    write_json(directory / "tokenizer_config.json", values)
    (directory / "chat_template.jinja").write_text(template)
    kinds = {
        "": "sentence_transformers.base.modules.transformer.Transformer",
        "1_LogitScore": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    }
    write_chain(directory, kinds)
    ids = {"true_token_id": 17, "false_token_id": 23, "module_input_name": "causal_logits"}
    write_json(directory / "1_LogitScore" / "config.json", ids | score)
    options = {
        "transformer_task": "text-generation",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
        },
        "module_output_name": "causal_logits",
    }
    write_json(directory / "sentence_bert_config.json", options)
    config = {"model_type": "CrossEncoder", "prompts": {"web": "Judge the document"}, "default_prompt_name": "web"}
    write_json(directory / "config_sentence_transformers.json", config)
