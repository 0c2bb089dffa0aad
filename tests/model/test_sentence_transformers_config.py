"""Reading the sentence-transformers configuration, and rejecting unsupported settings."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model.checkpoint import load_checkpoint
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions, assume_pooling
from tests.model.model_files import change_json, write_chain, write_json


def write_modules(directory: Path, *names: str) -> None:
    """Write modules.json with the encoder, then each named module in its own directory."""
    paths = {"": "Transformer"} | {f"{index}_{name}": name for index, name in enumerate(names, 1)}
    write_chain(directory, {path: f"sentence_transformers.models.{name}" for path, name in paths.items()})
    for path in paths:
        (directory / path).mkdir(exist_ok=True)
    if names[:1] == ("Pooling",):
        options = {"embedding_dimension": 24, "pooling_mode": "mean"}
        write_json(directory / "1_Pooling" / "config.json", options)


def write_dense(directory: Path, shape: tuple[int, int] = (19, 24), **config: Any) -> None:
    write_json(directory / "config.json", config)
    save_file({"linear.weight": torch.ones(shape)}, directory / "model.safetensors")


def legacy_pooling_config(*enabled: str) -> dict[str, bool]:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    return {f"pooling_mode_{name}": name in enabled for name in names}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (legacy_pooling_config("cls_token"), "cls"),
        (legacy_pooling_config("mean_tokens"), "mean"),
        (legacy_pooling_config("max_tokens"), "max"),
        (legacy_pooling_config("lasttoken"), "last"),
        (legacy_pooling_config(), "mean"),
        (legacy_pooling_config("lasttoken", "mean_tokens", "max_tokens"), "max+mean+last"),
        ({"pooling_mode": ["weightedmean", "cls"]}, "weighted_mean+cls"),
        ({}, "mean"),
        ({"pooling_mode": ["max"]}, "max"),
    ],
)
def test_pooling_is_read_from_legacy_and_current_config(source: Path, config: dict[str, Any], expected: str) -> None:
    """Older versions have one flag per mode, newer ones the name of the mode."""
    write_modules(source, "Pooling", "Normalize")
    write_json(source / "1_Pooling" / "config.json", config)
    embedding = load_checkpoint(source).embedding_config
    assert (embedding.pooling, embedding.normalize) == (expected, True)


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ((), SettingOptions(), "last"),
        ((), SettingOptions(pooling="max"), "max"),
        (("Pooling",), SettingOptions(), "mean"),
        (("Pooling",), SettingOptions(normalize=True), "mean"),
    ],
)
def test_causal_models_have_last_pooling_unless_it_is_set(
    source: Path, files: tuple[str, ...], options: SettingOptions, expected: str
) -> None:
    if files:
        write_modules(source, *files)
    embedding = load_checkpoint(source, options).embedding_config
    assert assume_pooling(embedding, causal=True).pooling == expected
    assert assume_pooling(embedding, causal=False) == embedding


@pytest.mark.parametrize(("function", "expected"), [("Tanh", "tanh"), ("linear.Identity", "identity")])
def test_dense_layers_are_read_in_order(source: Path, function: str, expected: str) -> None:
    write_modules(source, "Pooling", "Dense", "Dense")
    write_dense(source / "2_Dense", (19, 24), activation_function=f"torch.nn.modules.{function}")
    write_dense(source / "3_Dense", (7, 19), activation_function=f"torch.nn.modules.{function}")
    layers = load_checkpoint(source).embedding_config.dense
    assert [(tuple(layer.weight.shape), layer.bias, layer.activation) for layer in layers] == [
        ((19, 24), None, expected),
        ((7, 19), None, expected),
    ]


def test_origins_name_the_file_of_each_setting(labse: Path) -> None:
    checkpoint = load_checkpoint(labse)
    assert checkpoint.embedding_config.origins == {
        "pooling": "1_Pooling/config.json",
        "normalize": "modules.json",
        "dense": "modules.json",
        "prompts": "config_sentence_transformers.json",
        "max_input_tokens": "tokenizer_config.json",
    }


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"sentence_bert_config": 20, "tokenizer_config": 10}, (20, "sentence_bert_config.json")),
        ({"tokenizer_config": 10}, (10, "tokenizer_config.json")),
        ({"tokenizer_config": 10**30}, (41, "config.json")),
        ({}, (41, "config.json")),
    ],
)
def test_maximum_length_has_an_origin(source: Path, limits: dict[str, int], expected: tuple[int, str]) -> None:
    keys = {"sentence_bert_config": "max_seq_length", "tokenizer_config": "model_max_length"}
    for name, limit in limits.items():
        write_json(source / f"{name}.json", {keys[name]: limit})
    checkpoint = load_checkpoint(source)
    assert (checkpoint.max_input_tokens, checkpoint.embedding_config.origins["max_input_tokens"]) == expected


def test_options_replace_settings_of_files(labse: Path) -> None:
    checkpoint = load_checkpoint(labse, SettingOptions("max", normalize=False, max_input_tokens=7))
    embedding = checkpoint.embedding_config
    assert (embedding.pooling, embedding.normalize, checkpoint.max_input_tokens) == ("max", False, 7)
    assert len(embedding.dense) == 1
    origins = [embedding.origins[name] for name in ("pooling", "normalize", "max_input_tokens")]
    assert origins == ["--pooling", "--no-normalize", "--max-input-tokens"]


@pytest.mark.parametrize("limit", [0, 42])
def test_maximum_length_beyond_the_position_table_is_rejected(source: Path, limit: int) -> None:
    with pytest.raises(CheckpointError, match=rf"--max-input-tokens: out of range \({limit}, limit 41\)"):
        load_checkpoint(source, SettingOptions(max_input_tokens=limit))


def test_cls_option_is_rejected_for_a_causal_model(source: Path) -> None:
    change_json(source / "config.json", is_decoder=True)
    with pytest.raises(CheckpointError, match="--pooling: cls pooling of a causal model"):
        load_checkpoint(source, SettingOptions(pooling="cls"))


MODULES, SETTINGS, POOLING = "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"
QUERY = {"query": "find: "}
INVALID_POOLINGS: list[dict[str, Any]] = [
    {"pooling_mode_sum_tokens": True},
    {"pooling_mode": "sum"},
    {"pooling_mode": ["cls", "sum"]},
    {"pooling_mode": []},
]
INVALID_MODULES: list[Any] = [7, {}, [7], [{"type": "models.Pooling"}]]


@pytest.mark.parametrize(
    ("order", "name", "body", "message"),
    [
        *(
            ("Pooling", POOLING, config, "Pooling/config.json: unsupported pooling .*Supported: mean, cls, max, last")
            for config in INVALID_POOLINGS
        ),
        *(
            ("Pooling", POOLING, {"include_prompt": value}, "Pooling/config.json: include_prompt is not a boolean")
            for value in (None, 0, "false")
        ),
        *(
            ("Pooling Dense", "2_Dense/config.json", config, "2_Dense/config.json: dense layer: unsupported")
            for config in ({"activation_function": "torch.nn.GELU"}, {"use_residual": True})
        ),
        *(
            (order, POOLING, {"pooling_mode": "mean"}, f"modules.json: modules: unsupported .'Transformer {order}'")
            for order in ("Pooling Normalize Dense", "Dense", "Dense Pooling", "Pooling Pooling", "Normalize", "LSTM")
        ),
        *(
            ("", MODULES, [{"path": path, "type": "models.Pooling"}], "outside of the model")
            for path in ("../elsewhere", "/etc")
        ),
        *(("", MODULES, body, "modules.json") for body in INVALID_MODULES),
        *(("", SETTINGS, {"prompts": value}, f"{SETTINGS}: prompts") for value in (7, ["find: "], {"query": 7})),
        *(
            (
                "",
                SETTINGS,
                {"prompts": QUERY, "default_prompt_name": name},
                f"{SETTINGS}: default_prompt_name .* is not in",
            )
            for name in ("passage", "", 7, ["query"])
        ),
    ],
)
def test_invalid_or_unsupported_setting_is_named(source: Path, order: str, name: str, body: Any, message: str) -> None:
    """The server always computes pooling, dense layers and normalization in this order."""
    write_modules(source, *order.split())
    for path in source.glob("*_Dense"):
        write_dense(path)
    (source / name).parent.mkdir(exist_ok=True)
    write_json(source / name, body)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(source)


def test_dense_layer_with_wrong_input_size_is_rejected(source: Path) -> None:
    write_modules(source, "Pooling", "Dense")
    write_dense(source / "2_Dense", (19, 23))
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors: expected linear\.weight \(\*, 24\)"):
        load_checkpoint(source)
