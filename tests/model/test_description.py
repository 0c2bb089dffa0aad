"""Embedding settings as `export` and `verify` print them."""

import shlex
from typing import Literal

import pytest
import torch

from model.__main__ import _parser
from model.artifact.manifest import ASSUMED, TokenClassificationHead
from model.export.description import describe_heads, describe_settings, warn_about_assumptions
from model.source.sentence_transformers import DenseLayer, EmbeddingConfig


def test_settings_show_prompts_and_dense_layers() -> None:
    dense = (DenseLayer(torch.ones(256, 768), None, "tanh"), DenseLayer(torch.ones(64, 256), None, "identity"))
    embedding = EmbeddingConfig(include_prompt=False, dense=dense)
    prompts = {"query": "q: ", "document": "d: ", "empty": ""}
    origins = {"prompts": "config_sentence_transformers.json", "dense": "modules.json"}
    assert list(describe_settings(embedding, prompts, "query", 512, origins)) == [
        "pooling: mean, without the prompt",
        "normalization: no",
        "maximum length: 512 tokens",
        "prompts: query, document; default query (config_sentence_transformers.json)",
        "dense layers: 768 to 256 tanh, 256 to 64 identity (modules.json)",
    ]


def test_settings_omit_a_default_prompt_without_a_text() -> None:
    assert "prompts: none" in list(describe_settings(EmbeddingConfig(), {"document": ""}, "document", 512, {}))


@pytest.mark.parametrize(
    ("assumed", "expected"),
    [
        (("pooling", "normalize"), "assumed mean pooling and no normalization, which no file of the model sets."),
        (("pooling",), "assumed mean pooling, which no file of the model sets."),
        (("normalize",), "assumed no normalization, which no file of the model sets."),
    ],
)
def test_warning_names_assumed_settings_and_the_command_that_sets_them(
    assumed: tuple[Literal["pooling", "normalize"], ...], expected: str
) -> None:
    """`attendant serve`, which also prints the warning, has no such options."""
    assert warn_about_assumptions("mean", {}, "default") is None
    warning = warn_about_assumptions("mean", dict.fromkeys(assumed, ASSUMED), "my models/a", "v1")
    assert warning is not None
    assert expected in warning
    words = shlex.split(warning.rpartition(": ")[2])
    options = _parser().parse_args(words[1:])
    assert (words[0], options.source, options.revision) == ("attendant-model", "my models/a", "v1")
    assert options.pooling == ("mean" if "pooling" in assumed else None)
    assert options.normalize is (False if "normalize" in assumed else None)


def test_other_heads_are_listed() -> None:
    assert list(describe_heads(None, None, {"masked LM": None})) == []
    tokens = TokenClassificationHead(graph="t", labels=("O", "B-PER"))
    assert list(describe_heads(None, tokens, {})) == ["token classifier: 2 labels (O, B-PER)"]
    others = {"sparse vectors": 1, "multi-vector": None, "masked LM": 2}
    assert list(describe_heads(None, None, others)) == ["other heads: sparse vectors, masked LM"]
