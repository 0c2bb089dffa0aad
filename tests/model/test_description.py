"""Embedding settings as `export` and `verify` print them."""

from dataclasses import replace

import pytest

from model.description import EmbeddingSettings
from model.manifest import ASSUMED

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


@pytest.mark.parametrize(
    ("assumed", "expected"),
    [
        (("pooling", "normalize"), "assumed mean pooling and no normalization (no modules.json)"),
        (("pooling",), "assumed mean pooling (no modules.json)"),
        (("normalize",), "assumed no normalization (no modules.json)"),
    ],
)
def test_warning_names_assumed_settings_and_options(assumed: tuple[str, ...], expected: str) -> None:
    warning = replace(SETTINGS, origins=dict.fromkeys(assumed, ASSUMED)).warning()
    assert warning is not None
    assert expected in warning
    assert ("--pooling" in warning, "--normalize" in warning) == ("pooling" in assumed, "normalize" in assumed)


def test_no_warning_without_assumptions() -> None:
    assert SETTINGS.warning() is None
