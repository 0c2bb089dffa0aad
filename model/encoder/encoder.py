"""The encoder: embeddings, blocks and, in pre-norm and sandwich encoders, a final norm."""

import torch
from torch import Tensor, nn

from model.encoder.attention import MAX_DENSE_TOKENS, attention_mask, build_mask
from model.encoder.config import EncoderConfig, LayerConfig
from model.encoder.layers import (
    AlibiBias,
    AttentionInputs,
    Block,
    DistanceEmbeddings,
    Embeddings,
    RelativeBias,
    RotaryEmbedding,
    make_norm,
)


class Encoder(nn.Module):
    """The encoder; its forward pass returns the last hidden state."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.positions = PositionInputs(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in config.layers)
        self.norm = make_norm(config, config.hidden_size) if config.norms_first else nn.Identity()

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Return the last hidden state (R, T, D) for four integer tensors (R, T).

        `position_ids` restart at 0 in each sequence and increase within it.
        """
        return self.hidden_states(input_ids, position_ids, token_type_ids, sequence_ids)[-1]

    def hidden_states(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor
    ) -> list[Tensor]:
        """Return L+1 tensors (R, T, D): the input of each layer, then the last layer's output after the final norm."""
        inputs = {
            layer: self.positions(layer, sequence_ids, position_ids)
            for layer in dict.fromkeys(map(attention_options, self.config.layers))
        }
        x = self.embeddings(input_ids, position_ids, token_type_ids)
        hidden_states = [x]
        for block, layer in zip(self.blocks, self.config.layers, strict=True):
            x = block(x, inputs[attention_options(layer)])
            hidden_states.append(x)
        hidden_states[-1] = self.norm(x)
        return hidden_states


def attention_options(layer: LayerConfig) -> LayerConfig:
    """Return the layer options that determine mask and rotation."""
    return LayerConfig(layer.window, layer.rotary)


class PositionInputs(nn.Module):
    """The masks, rotations and relative position biases of an encoder's layers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.causal = config.causal
        has_dense_bias = config.relative_bias is not None or config.disentangled is not None
        self.long_rows = config.max_position_embeddings > MAX_DENSE_TOKENS and not has_dense_bias
        self.bias: RelativeBias | AlibiBias | None = None
        if config.relative_bias is not None:
            self.bias = RelativeBias(config.relative_bias, config.num_attention_heads)
        elif config.alibi:
            self.bias = AlibiBias(config.num_attention_heads)
        self.distances = (
            None
            if config.disentangled is None
            else DistanceEmbeddings(
                config.disentangled, config.hidden_size, config.norm_eps, config.max_position_embeddings
            )
        )
        self.rotary_configs = list(dict.fromkeys(layer.rotary for layer in config.layers if layer.rotary is not None))
        self.rotary = nn.ModuleList(
            RotaryEmbedding(rotary, config.head_size, config.max_position_embeddings) for rotary in self.rotary_configs
        )

    def forward(self, layer: LayerConfig, sequence_ids: Tensor, position_ids: Tensor) -> AttentionInputs:
        """Return the attention inputs of a layer for two integer tensors (R, T)."""
        rotary = self.find_rotary(layer)
        rotation = None if rotary is None else rotary(position_ids)
        if self.long_rows and holds_one_sequence(sequence_ids):
            slopes = self.bias.slopes(position_ids.device) if isinstance(self.bias, AlibiBias) else None
            mask = build_mask(position_ids, sequence_ids, layer.window, causal=self.causal, slopes=slopes)
            return AttentionInputs(mask, rotation)
        additive = attention_mask(sequence_ids, position_ids, causal=self.causal, window=layer.window)
        if self.bias is not None:
            additive = additive + self.bias(position_ids)
        return AttentionInputs(additive, rotation, None if self.distances is None else self.distances(position_ids))

    def find_rotary(self, layer: LayerConfig) -> nn.Module | None:
        """Return the rotary position embeddings of a layer."""
        return None if layer.rotary is None else self.rotary[self.rotary_configs.index(layer.rotary)]


def holds_one_sequence(sequence_ids: Tensor) -> bool:
    """Return whether rows are long and each contains a single sequence followed by padding. Exported graphs assume so.

    Training batches contain long rows with several sequences.
    """
    if torch.compiler.is_exporting():
        return True
    if sequence_ids.shape[1] <= MAX_DENSE_TOKENS:
        return False
    return bool(((sequence_ids == sequence_ids[:, :1]) | (sequence_ids == 0)).all())


class HiddenStatesEncoder(nn.Module):
    """The encoder with all hidden states as its output, (L+1, R, T, D), embeddings first."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor, sequence_ids: Tensor) -> Tensor:
        """Return (L+1, R, T, D)."""
        return torch.stack(self.encoder.hidden_states(input_ids, position_ids, token_type_ids, sequence_ids))
