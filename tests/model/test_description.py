"""Embedding settings as `export` and `verify` print them."""

import shlex
from dataclasses import replace
from typing import Literal

import pytest

from model.__main__ import _parser
from model.artifact.manifest import ASSUMED
from model.export.description import EmbeddingSettings, describe_other_heads

SETTINGS = EmbeddingSettings("mean", True, False, 512, (), None, (), {})


def test_settings_show_prompts_and_dense_layers() -> None:
    settings = replace(
        SETTINGS,
        include_prompt=False,
        prompts=["query", "document"],
        default_prompt_name="query",
        dense=[(768, 256, "tanh"), (256, 64, "identity")],
        origins={"prompts": "config_sentence_transformers.json", "dense": "modules.json"},
    )
    assert list(settings.describe()) == [
        "pooling: mean, without the prompt",
        "normalization: no",
        "maximum length: 512 tokens",
        "prompts: query, document; default query (config_sentence_transformers.json)",
        "dense layers: 768 to 256 tanh, 256 to 64 identity (modules.json)",
    ]


def test_settings_omit_a_default_prompt_without_a_text() -> None:
    lines = list(replace(SETTINGS, default_prompt_name="document").describe())
    assert "prompts: none" in lines


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
    warning = replace(SETTINGS, origins=dict.fromkeys(assumed, ASSUMED)).warning("my models/a", "v1")
    assert warning is not None
    assert expected in warning
    words = shlex.split(warning.rpartition(": ")[2])
    options = _parser().parse_args(words[1:])
    assert (words[0], options.source, options.revision) == ("attendant-model", "my models/a", "v1")
    assert options.pooling == ("mean" if "pooling" in assumed else None)
    assert options.normalize is (False if "normalize" in assumed else None)


def test_other_heads_are_listed() -> None:
    none = {"masked_lm": False, "sparse": False, "multi_vector": False}
    assert list(describe_other_heads(None, **none)) == []
    assert list(describe_other_heads(["O", "B-PER"], **none)) == ["token classifier: 2 labels (O, B-PER)"]
    assert list(describe_other_heads(None, masked_lm=True, sparse=True, multi_vector=False)) == [
        "other heads: sparse vectors, masked LM"
    ]


def test_no_warning_without_assumptions() -> None:
    assert SETTINGS.warning("default") is None
