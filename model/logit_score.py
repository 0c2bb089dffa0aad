"""Rerankers that are causal language models, such as Qwen3-Reranker: the logit of "yes" less the logit of "no".

The files are those of `CrossEncoder` with the module LogitScore of sentence-transformers, and a chat template with the
roles "query" and "document".
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from torch import Tensor

from model.checkpoint_files import CheckpointError, require_finite
from model.config_files import TOKENIZER_CONFIG, ModelFiles, Module
from model.head_records import PairTemplateRecord
from model.heads import Classifier, HeadLayout, RowHead, read_activation

MODULE = "LogitScore"
TEMPLATE = "chat_template.jinja"
QUERY, DOCUMENT = "\ue000query\ue000", "\ue000document\ue000"
"""Texts in private-use characters, which no template contains."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def find_logit_score(files: ModelFiles) -> Module | None:
    """Return the module LogitScore; None if the model has none."""
    return next((module for module in files.modules if module.kind == MODULE), None)


def read_logit_score(
    module: Module, files: ModelFiles, config: Mapping[str, Any], output: Tensor, tokenizer: bytes
) -> Classifier:
    """Return the reranker as a classifier of one label, which reads the last token.

    `output` (V, D) are the weights of the language model's head, and `tokenizer` is a tokenizer.json.

    Raises:
        CheckpointError: a file is invalid, or the chat template cannot be split at query and document.
    """
    values = files.module_config(module)
    values.require("module_input_name", "causal_logits")
    true_id, false_id = values.get("true_token_id"), values.get("false_token_id")
    for name, number in (("true_token_id", true_id), ("false_token_id", 0 if false_id is None else false_id)):
        if type(number) is not int or not 0 <= number < len(output):
            raise CheckpointError(f"{values.name}: {name} is not a token id ({number!r}). Correct it.")
    vector = output[true_id].float() - (0.0 if false_id is None else output[false_id].float())
    require_finite(vector, "lm_head.weight")
    head = RowHead(HeadLayout("score"), {"score.weight": vector[None]}, output.shape[1])
    options = files.sentence_transformers
    template = _read_template(files, options, tokenizers.Tokenizer.from_str(tokenizer.decode()))
    return Classifier(head, "last", None, ("LABEL_0",), read_activation(config, options, 1), template)


def _read_template(
    files: ModelFiles, options: Mapping[str, Any], tokenizer: tokenizers.Tokenizer
) -> PairTemplateRecord:
    """Return the parts of the chat template, with the model's default prompt as its instruction."""
    special = files.read(files.transformer / TOKENIZER_CONFIG)
    path = files.transformer / TEMPLATE
    source = path.read_text(encoding="utf-8") if path.is_file() else special.get("chat_template")
    if not isinstance(source, str):
        raise CheckpointError(f"{TEMPLATE}: missing. A reranker that is a language model needs its chat template.")
    prompt = (options.get("prompts") or {}).get(options.get("default_prompt_name"))
    text = _render(source, prompt, {name: _content(special.get(name)) for name in SPECIAL_TOKENS})
    before, _, rest = text.partition(QUERY)
    middle, _, after = rest.partition(DOCUMENT)
    added = sorted((token.content for token in tokenizer.get_added_tokens_decoder().values()), key=len, reverse=True)
    if any(content in middle for content in added):
        raise CheckpointError(f"{TEMPLATE}: unsupported: there is a special token between query and document.")
    start = max((before.rfind(content) + len(content) for content in added if content in before), default=0)
    end = min((after.find(content) for content in added if content in after), default=len(after))
    prefix, suffix = (
        tuple(tokenizer.encode(part, add_special_tokens=False).ids) for part in (before[:start], after[end:])
    )
    return PairTemplateRecord(
        prefix_ids=prefix, head=before[start:], middle=middle, tail=after[:end], suffix_ids=suffix
    )


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _render(source: str, prompt: str | None, special: Mapping[str, str]) -> str:
    """Render a conversation of query and document, which appear once each. Templates are code, and run in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    texts = [("system", prompt)] * (prompt is not None) + [("query", QUERY), ("document", DOCUMENT)]
    for structured in (False, True):  # content as a text, or as a list of parts
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if structured else text} for role, text in texts
        ]
        try:
            rendered = environment.from_string(source).render(messages=messages, **special)
        except TemplateError as error:
            raise CheckpointError(f"{TEMPLATE}: cannot be rendered ({error}). Correct it.") from None
        if rendered.count(QUERY) == rendered.count(DOCUMENT) == 1 and rendered.find(QUERY) < rendered.find(DOCUMENT):
            return rendered
    raise CheckpointError(f"{TEMPLATE}: does not render one query, then one document, by their roles. Correct it.")
