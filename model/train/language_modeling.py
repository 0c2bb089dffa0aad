"""Language modeling: prediction of masked tokens, or of the next token if attention is causal."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.encoder import Encoder
from model.packing import BatchShape
from model.train.batches import Item, TrainingBatch, pack
from model.train.config import MaskingOptions
from model.train.tokenizers import MASK, SPECIAL_TOKENS

IGNORED = -100


class LanguageModel(nn.Module):
    """BERT's language model (Devlin et al. 2019); its output layer is the table of token embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum of the cross-entropy of the predicted tokens, in nats."""
        labels = batch.targets["labels"]
        hidden = self.encoder(**batch.inputs)  # (R, T, D)
        is_target = labels != IGNORED
        targets = self.norm(F.gelu(self.transform(hidden[is_target])))  # (N, D), predicted tokens only
        logits = F.linear(targets, self.encoder.embeddings.word_embeddings.weight, self.bias)  # (N, V)
        return F.cross_entropy(logits.float(), labels[is_target], reduction="sum")


@dataclass(frozen=True)
class Masking:
    """Selection of the tokens to predict (Devlin et al. 2019, section 3.1).

    A selected token becomes [MASK] or a random token with the probabilities of `options`, or stays. At least one is
    selected per sequence.
    """

    options: MaskingOptions
    vocab_size: int

    def __call__(
        self, items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
    ) -> TrainingBatch:
        """Return a batch with masked tokens. `labels` (R, T) are their original ids, and IGNORED elsewhere."""
        pairs = [self.mask(ids, draw) for item in items for ids in item.sequences]
        return _labeled([ids for ids, _ in pairs], [labels for _, labels in pairs], shape, starts)

    def mask(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        """Return the masked ids and the labels of one sequence."""
        masked, labels = list(ids), [IGNORED] * len(ids)
        content = [index for index, token in enumerate(ids) if token >= len(SPECIAL_TOKENS)]
        selected = [index for index in content if draw.random() < self.options.probability]
        for index in selected or draw.sample(content, min(1, len(content))):
            labels[index] = ids[index]
            kind = draw.random()
            if kind < self.options.mask_share:
                masked[index] = SPECIAL_TOKENS.index(MASK)
            elif kind < self.options.mask_share + self.options.random_share:
                masked[index] = draw.randrange(len(SPECIAL_TOKENS), self.vocab_size)
        return masked, labels


def predict_next(items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random) -> TrainingBatch:
    """Return a batch whose `labels` (R, T) are the id of the next token of the sequence; IGNORED at its last."""
    sequences = [ids for item in items for ids in item.sequences]
    return _labeled(sequences, [[*ids[1:], IGNORED] for ids in sequences], shape, starts)


def _labeled(
    sequences: Sequence[list[int]], labels: Sequence[list[int]], shape: BatchShape, starts: Sequence[int]
) -> TrainingBatch:
    placed = torch.full((shape.tokens,), IGNORED, dtype=torch.int64)
    for row, start in zip(labels, starts, strict=True):
        placed[start : start + len(row)] = torch.tensor(row)
    targets = {"labels": placed.view(shape.rows, shape.length)}
    count = int((placed != IGNORED).sum())
    return TrainingBatch(pack(sequences, shape, starts), targets, (), count, sum(map(len, sequences)))
