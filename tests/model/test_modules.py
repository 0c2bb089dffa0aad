"""What comes after the encoder is read from the sentence-transformers files, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model.checkpoint import load_checkpoint
from model.published import CheckpointError


def modules(directory: Path, *names: str) -> None:
    """Write modules.json: the encoder, then each named module in a folder of its own."""
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for place, name in enumerate(names, 1):
        listed.append({"path": f"{place}_{name}", "type": f"sentence_transformers.models.{name}"})
    (directory / "modules.json").write_text(json.dumps(listed))
    for module in listed:
        (directory / module["path"]).mkdir(exist_ok=True)
    if names[:1] == ("Pooling",):
        (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))


def dense(directory: Path, shape: tuple[int, int] = (19, 24), **config: Any) -> None:
    """Write the files of a Dense module."""
    (directory / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": torch.ones(shape)}, directory / "model.safetensors")


def old_pooling(*true: str) -> dict[str, bool]:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    return {f"pooling_mode_{name}": name in true for name in names}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (old_pooling("cls_token"), "cls"),
        (old_pooling("mean_tokens"), "mean"),
        (old_pooling("max_tokens"), "max"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["max"]}, "max"),
    ],
)
def test_pooling_is_read_in_both_spellings(source: Path, config: dict[str, Any], expected: str) -> None:
    """One flag for each mode, as sentence-transformers wrote for years, or the name of the mode, as it writes now."""
    modules(source, "Pooling", "Normalize")
    (source / "1_Pooling" / "config.json").write_text(json.dumps(config))
    found = load_checkpoint(source)
    assert (found.text_vector.pooling, found.text_vector.normalize) == (expected, True)


@pytest.mark.parametrize(
    "config",
    [
        old_pooling("mean_sqrt_len_tokens"),
        old_pooling("cls_token", "mean_tokens"),
        old_pooling(),
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": ["cls", "mean"]},
    ],
)
def test_pooling_we_do_not_have_is_refused(source: Path, config: dict[str, Any]) -> None:
    """Another mode, several at once, or none."""
    modules(source, "Pooling")
    (source / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"Pooling/config\.json: pooling .* is not one of mean, cls, max"):
        load_checkpoint(source)


@pytest.mark.parametrize(("function", "expected"), [("Tanh", "tanh"), ("linear.Identity", "identity")])
def test_dense_layers_are_read_in_order(source: Path, function: str, expected: str) -> None:
    """Each takes the width that the one before it gives."""
    modules(source, "Pooling", "Dense", "Dense")
    dense(source / "2_Dense", (19, 24), activation_function=f"torch.nn.modules.{function}")
    dense(source / "3_Dense", (7, 19), activation_function=f"torch.nn.modules.{function}")
    found = load_checkpoint(source).text_vector.dense
    assert [(tuple(layer.weight.shape), layer.bias, layer.activation) for layer in found] == [
        ((19, 24), None, expected),
        ((7, 19), None, expected),
    ]


@pytest.mark.parametrize("config", [{"activation_function": "torch.nn.GELU"}, {"use_residual": True}])
def test_a_dense_layer_we_do_not_have_is_refused(source: Path, config: dict[str, Any]) -> None:
    """The folder is named."""
    modules(source, "Pooling", "Dense")
    dense(source / "2_Dense", **config)
    with pytest.raises(CheckpointError, match=r"2_Dense/config\.json: only a plain Dense"):
        load_checkpoint(source)


def test_a_dense_layer_of_another_width_is_refused(source: Path) -> None:
    """It must take what the encoder gives."""
    modules(source, "Pooling", "Dense")
    dense(source / "2_Dense", (19, 23))
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors: expected linear\.weight \(\*, 24\)"):
        load_checkpoint(source)


@pytest.mark.parametrize(
    "order",
    [("Pooling", "Normalize", "Dense"), ("Dense",), ("Dense", "Pooling"), ("Pooling", "Pooling"), ("Normalize",)],
)
def test_modules_in_an_order_we_do_not_compute_are_refused(source: Path, order: tuple[str, ...]) -> None:
    """We pool, then map, then normalise: any other order would give other numbers in silence."""
    modules(source, *order)
    for place, name in enumerate(order, 1):
        if name == "Pooling":
            (source / f"{place}_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
        if name == "Dense":
            dense(source / f"{place}_Dense")
    with pytest.raises(CheckpointError, match=r"modules\.json: only"):
        load_checkpoint(source)


def test_a_module_we_do_not_have_is_named(source: Path) -> None:
    """What we cannot compute is refused."""
    modules(source, "LSTM")
    with pytest.raises(CheckpointError, match=r"modules\.json: only .* not Transformer .*LSTM"):
        load_checkpoint(source)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_a_module_outside_the_directory_is_refused(source: Path, path: str) -> None:
    """modules.json may point only inward."""
    (source / "modules.json").write_text(json.dumps([{"path": path, "type": "models.Pooling"}]))
    with pytest.raises(CheckpointError, match="leads out of the model"):
        load_checkpoint(source)


@pytest.mark.parametrize("body", ["{", "7", "{}", "[7]", '[{"type": "models.Pooling"}]'])
def test_a_list_of_modules_that_is_none_is_refused(source: Path, body: str) -> None:
    """Whatever modules.json says, the answer is ours and names it."""
    (source / "modules.json").write_text(body)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        load_checkpoint(source)


def test_lower_casing_outside_the_tokenizer_is_refused(source: Path) -> None:
    """It would change the text behind the offsets."""
    modules(source)
    (source / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(CheckpointError, match="do_lower_case"):
        load_checkpoint(source)


def test_prompts_are_read(source: Path) -> None:
    """They are in config_sentence_transformers.json."""
    (source / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "find: "}}))
    assert load_checkpoint(source).text_vector.prompts == {"query": "find: "}


@pytest.mark.parametrize("prompts", [7, ["find: "], {"query": 7}])
def test_prompts_that_are_none_are_refused(source: Path, prompts: object) -> None:
    """A map of names to texts, or nothing."""
    (source / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    with pytest.raises(CheckpointError, match=r"config_sentence_transformers\.json: prompts"):
        load_checkpoint(source)
