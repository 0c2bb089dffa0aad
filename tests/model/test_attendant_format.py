"""The published format of encoders that match no published architecture: its keys, their checks, and its tensors."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.checkpoint import build_encoder
from model.encoder import ACTIVATIONS, Encoder, EncoderConfig, LayerConfig, RelativeConfig, RotaryConfig
from model.families import FAMILIES
from model.families.attendant import read_config, write_config
from model.families.family import ConfigReader
from model.source.published import CheckpointError

CONFIG = EncoderConfig(
    vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=8,
    max_position_embeddings=10, type_vocab_size=2, norm_eps=1e-6, block="pre", position_table=False, gated=True,
    layers=(LayerConfig(None, RotaryConfig(100.0), attention_norm=False), LayerConfig(3, RotaryConfig(50.0))),
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    """Draw encoders with any of the parts."""
    heads = draw(st.sampled_from([1, 2, 4]))
    layer = st.builds(
        LayerConfig,
        window=st.none() | st.integers(1, 9),
        rotary=st.none() | st.builds(RotaryConfig, st.floats(1.5, 1e6)),
        attention_norm=st.booleans(),
    )
    layers = draw(st.lists(layer, min_size=1, max_size=3))
    flags: dict[str, Any] = {field.name: draw(st.booleans()) for field in fields(EncoderConfig) if field.type is bool}
    relative = draw(st.none() | st.builds(RelativeConfig, st.integers(4, 40), st.integers(11, 200)))
    if flags["causal"] or relative or any(layer.window for layer in layers):
        flags["alibi"] = False
    groups = draw(st.sampled_from([0, 1]))
    if flags["query_key_norm"] or (groups and heads > 1):
        flags["joint_query_key_norm"] = False
    return EncoderConfig(
        vocab_size=9, hidden_size=heads * 6, num_hidden_layers=len(layers), num_attention_heads=heads,
        intermediate_size=5, max_position_embeddings=7, type_vocab_size=draw(st.integers(0, 2)),
        norm_eps=draw(st.floats(1e-12, 1e-3)), hidden_act=draw(st.sampled_from(sorted(ACTIVATIONS))),
        block=draw(st.sampled_from(["post", "double_post", "pre", "sandwich"])),
        norm=draw(st.sampled_from(["layer_norm", "layer_norm_without_bias", "rms_norm"])),
        embedding_size=draw(st.sampled_from([0, 8])), embedding_scale=draw(st.floats(0.1, 10)),
        num_key_value_heads=groups, head_size=draw(st.sampled_from([0, 4])),
        attention_scale=draw(st.sampled_from([0.0, 0.3])), layers=tuple(layers),
        relative_bias=relative, **flags,
    )  # fmt: skip


@given(config=configs())
def test_config_and_weights_of_any_encoder_survive_a_round_trip(config: EncoderConfig) -> None:
    values = json.loads(json.dumps(write_config(config)))
    assert read_config(ConfigReader(values)) == config
    encoder = Encoder(config)
    loaded = build_encoder(FAMILIES["attendant"], values, encoder.state_dict())
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


@pytest.mark.parametrize("has_bias", [False, True])
def test_files_of_earlier_versions_are_read(has_bias: bool) -> None:
    expected = replace(
        CONFIG,
        attention_bias=has_bias,
        attention_output_bias=has_bias,
        relative_bias=RelativeConfig() if has_bias else None,
    )
    values = write_config(expected) | {"relative_bias": has_bias}
    del values["attention_output_bias"]
    assert read_config(ConfigReader(values)) == expected


def test_keys_are_the_fields_of_the_encoder() -> None:
    assert list(write_config(CONFIG)) == [field.name for field in fields(EncoderConfig)]


def test_fields_without_a_value_have_their_defaults() -> None:
    values = write_config(CONFIG)
    del values["embedding_scale"], values["gated"]
    assert read_config(ConfigReader(values)) == replace(CONFIG, gated=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alibi_slopes": [1.0]}, "unknown key alibi_slopes"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 13, "head_size": 0}, r"hidden_size: not a multiple of num_attention_heads"),
        ({"hidden_size": 9, "head_size": 3}, r"rotary positions with an odd head_size \(3\)"),
        ({"num_attention_heads": 0}, "num_attention_heads is not a positive integer"),
        ({"num_key_value_heads": 2}, "num_attention_heads: not a multiple of num_key_value_heads"),
        ({"block": "parallel"}, "block: unsupported \\('parallel'\\). Supported: post, double_post, pre, sandwich"),
        ({"norm": 3}, "norm: unsupported \\(3\\)"),
        ({"hidden_act": "sine"}, "hidden_act: unsupported \\('sine'\\)"),
        ({"gated": "often"}, "gated is not true or false"),
        ({"norm_eps": -1.0}, "norm_eps is not a positive number"),
        ({"layers": None}, "layers is missing"),
        ({"layers": [{}]}, "layers is not a list of num_hidden_layers objects"),
        ({"layers": [{}, {"alibi": 1}]}, "element of layers: unsupported"),
        ({"layers": [{}, {"window": 0}]}, "window is not a positive integer"),
        ({"layers": [{}, {"rope_theta": "large"}]}, "rope_theta is not a positive number"),
    ],
)
def test_invalid_config_is_rejected(changes: dict[str, Any], message: str) -> None:
    encoder = Encoder(CONFIG)
    with pytest.raises(CheckpointError, match=message):
        build_encoder(FAMILIES["attendant"], write_config(CONFIG) | changes, encoder.state_dict())


def test_scaled_rotary_positions_have_no_key() -> None:
    layers = (LayerConfig(rotary=RotaryConfig(100.0, divisor=2.0)),) * 2
    with pytest.raises(ValueError, match="scaled positions have no key"):
        write_config(replace(CONFIG, layers=layers))
