"""The attention of one layer with its weights as inputs, from which attention maps are computed."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from model.encoder.attention import attention_mask
from model.encoder.block import Block
from model.encoder.encoder import Encoder

OUTPUTS = ("scores", "probs", "values")


class _ScoresAndValues(nn.Module):
    """The parts of a layer from its input to the scores and values of its attention."""

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__()
        block, layer = encoder.blocks[index], encoder.config.layers[index]
        assert isinstance(block, Block)
        self.causal, self.window = encoder.config.causal, layer.window
        self.norm = block.attention_norm if block.norm_before_attention else nn.Identity()
        self.attention = block.attention
        self.bias = encoder.positions.bias
        self.rotary = encoder.positions.find_rotary(layer)

    def forward(self, hidden_state: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask(position_ids * 0, position_ids, causal=self.causal, window=self.window)
        if self.bias is not None:
            mask = mask + self.bias(position_ids)
        rotation = None if self.rotary is None else self.rotary(position_ids)
        q, k, v = self.attention.project(self.norm(hidden_state), rotation)
        return self.attention.scores(q, k, mask), v


class LayerAttention(nn.Module):
    """Scores, probabilities and values of one layer in one sequence.

    Layers with the same options compute the same function of their weights, so one graph serves them all. Linear
    weights are (in, out), as in exported graphs.
    """

    def __init__(self, encoder: Encoder, index: int) -> None:
        super().__init__()
        self._parts = _ScoresAndValues(encoder, index)
        self._linear = {
            f"{name}.weight" for name, module in self._parts.named_modules() if isinstance(module, nn.Linear)
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the layer and its tables of positions, by name."""
        tensors = {**dict(self._parts.named_parameters()), **dict(self._parts.named_buffers())}
        return {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in tensors.items()
            if not name.startswith("attention.output.")
        }

    def forward(self, hidden_state: Tensor, position_ids: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probs (H, T, T), and values (H, T, d).

        Args:
            hidden_state: The input of the layer, (1, T, D).
            position_ids: 0 to T-1, (1, T).
            weights: The weights of a layer with the same options, in the order of `weights()`.
        """
        state = {
            name: tensor.T if name in self._linear else tensor
            for name, tensor in zip(self.weights(), weights, strict=True)
        }
        scores, values = functional_call(self._parts, state, (hidden_state, position_ids))
        return scores[0], torch.softmax(scores[0], dim=-1), values[0]
