"""Several ways to score a text's words by their effect on its similarity to another text.

Each method returns one score per word. Its inputs are the text's last hidden states `hidden` (T, D), pooled by the
mean, and the other text's normalized embedding `other` (D).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.encoder import Encoder

Floats = NDArray[Any]
STEPS = 32
PAD, FIRST, LAST = 0, 0, -1


def to_words(per_token: Floats, owners: NDArray[np.intp]) -> Floats:
    """Sum token values (T) per word; -1 marks tokens outside of words."""
    return np.bincount(owners[owners >= 0], per_token[owners >= 0], minlength=owners.max() + 1)


def contributions(hidden: Floats, other: Floats) -> Floats:
    """Return each token's contribution to the cosine, (T)."""
    mean = hidden.mean(axis=0)
    result: Floats = hidden @ other / (len(hidden) * np.linalg.norm(mean))
    return result


def gradient_times_vector(hidden: Floats, other: Floats) -> Floats:
    """Return each token vector times the gradient of the cosine with respect to it, (T)."""
    mean = hidden.mean(axis=0)
    length = np.linalg.norm(mean)
    unit = mean / length
    result: Floats = hidden @ (other - (unit @ other) * unit) / (len(hidden) * length)
    return result


def carried_to_input(hidden: Floats, other: Floats, attention: Floats) -> Floats:
    """Distribute each token's contribution over the tokens it attends to, using a map (T, T) whose rows sum to 1."""
    result: Floats = contributions(hidden, other) @ attention
    return result


@dataclass(frozen=True)
class IntegratedGradients:
    """Integrated gradients (Sundararajan et al. 2017) of the cosine with respect to the embedding layer's output.

    The baseline keeps the special tokens and replaces all others with [PAD].
    """

    encoder: Encoder

    def __call__(self, ids: list[int], other: Floats) -> Floats:
        """Return each token's attribution, (T)."""
        padded = [ids[FIRST], *[PAD] * (len(ids) - 2), ids[LAST]]
        with torch.no_grad():
            text, baseline = (self._embed(tokens) for tokens in (ids, padded))
        weights = (torch.arange(STEPS) + 0.5)[:, None, None] / STEPS
        x = (baseline + weights * (text - baseline)).requires_grad_()
        self._cosines(x, torch.from_numpy(other.astype(np.float32))).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        attributions: Floats = ((text - baseline) * x.grad.mean(dim=0)).sum(dim=-1)[0].numpy()
        return attributions

    def _embed(self, ids: list[int]) -> torch.Tensor:
        input_ids = torch.tensor([ids])
        positions = torch.arange(len(ids))[None]
        embedded: torch.Tensor = self.encoder.embeddings(input_ids, positions, torch.zeros_like(input_ids))
        return embedded

    def _cosines(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1]).expand(x.shape[:2])
        for block, layer in zip(self.encoder.blocks, self.encoder.config.layers, strict=True):
            x = block(x, self.encoder.positions(layer, positions * 0, positions))
        return torch.nn.functional.cosine_similarity(x.mean(dim=1), other, dim=-1)
