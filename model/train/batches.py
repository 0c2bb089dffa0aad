"""Packed batches of texts for training: fixed shapes, filled like the batches of the server, with masked tokens."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.packing import BatchShape, pack_batch
from model.tokenizer import Tokenizer, TokenizerInput
from model.train.config import TrainError
from model.train.corpus import State, TextStream
from model.train.tokenizers import MASK, SPECIAL_TOKENS

POOL_BATCHES = 2
"""Batches of tokens to choose sequences from. More of them fill rows better and take longer to place."""
TOKENIZED_TEXTS = 256
MAX_EMPTY_READS = 100
IGNORED = -100


@dataclass(frozen=True)
class TrainingBatch:
    """A packed batch: the four inputs of the encoder and `labels`, int64 tensors (R, T).

    `labels` are the original ids of masked tokens, and `IGNORED` elsewhere.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    tokens: int

    @property
    def targets(self) -> int:
        """The number of masked tokens."""
        return int((self.labels != IGNORED).sum())


class PackedBatches:
    """An endless stream of packed batches of `shape`, which continues exactly from a saved state."""

    def __init__(self, texts: TextStream, tokenizer: Tokenizer, shape: BatchShape, masking: "Masking") -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._shape = shape
        self._masking = masking
        self._pool: list[list[int]] = []

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self

    def __next__(self) -> TrainingBatch:
        empty_reads = 0
        while sum(map(len, self._pool)) < POOL_BATCHES * self._shape.tokens:
            tokenized = self._tokenize([next(self._texts) for _ in range(TOKENIZED_TEXTS)])
            empty_reads = 0 if tokenized else empty_reads + 1
            if empty_reads > MAX_EMPTY_READS:
                raise TrainError(f"{self._texts}: no text has a token. Check the texts and the tokenizer.")
            self._pool += tokenized
        chosen, starts, self._pool = fill(self._pool, self._shape)
        masked = [self._masking.mask(ids) for ids in chosen]
        packed = pack_batch([(ids, None) for ids, _ in masked], self._shape, starts)
        labels = np.full(self._shape.tokens, IGNORED, dtype=np.int64)
        for (_, row), start in zip(masked, starts, strict=True):
            labels[start : start + len(row)] = row
        inputs = {name: torch.from_numpy(values) for name, values in packed.inputs.items()}
        shaped = torch.from_numpy(labels.reshape(self._shape.rows, self._shape.length))
        return TrainingBatch(inputs, shaped, sum(packed.sizes))

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        tokenized = self._tokenizer.encode([TokenizerInput(text) for text in texts], offsets=False)
        return [item.truncate(self._shape.length, "right").input_ids for item in tokenized if item.has_content]

    def state_dict(self) -> State:
        """Return the position, as values that torch.save stores."""
        return {
            "texts": self._texts.state_dict(), "pool": [list(ids) for ids in self._pool],
            "random": self._masking.random.getstate(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Continue from a position."""
        self._texts.load_state_dict(state["texts"])
        self._pool = [list(ids) for ids in state["pool"]]
        self._masking.random.setstate(state["random"])


def fill(pool: Sequence[list[int]], shape: BatchShape) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Choose sequences for a batch: first fit, in the order of the pool.

    Returns:
        The chosen sequences, the start of each in the R * T tokens, and the rest of the pool.
    """
    used = [0] * shape.rows
    chosen, starts, rest = [], [], []
    for ids in pool:
        for row, filled in enumerate(used):
            if filled + len(ids) <= shape.length:
                chosen.append(ids)
                starts.append(row * shape.length + filled)
                used[row] += len(ids)
                break
        else:
            rest.append(ids)
    return chosen, starts, rest


class Masking:
    """Selection of the tokens to predict (Devlin et al. 2019, section 3.1).

    Of the selected tokens, 80 % become [MASK], 10 % a random token, and 10 % stay. At least one is selected per
    sequence.
    """

    def __init__(self, probability: float, vocab_size: int, seed: int) -> None:
        self._probability = probability
        self._vocab_size = vocab_size
        self.random = random.Random(seed)  # noqa: S311  # not for secrets

    def mask(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the masked ids and the labels of one sequence."""
        draw = self.random
        masked, labels = list(ids), [IGNORED] * len(ids)
        content = [index for index, token in enumerate(ids) if token >= len(SPECIAL_TOKENS)]
        selected = [index for index in content if draw.random() < self._probability]
        for index in selected or draw.sample(content, min(1, len(content))):
            labels[index] = ids[index]
            kind = draw.random()
            if kind < 0.8:
                masked[index] = SPECIAL_TOKENS.index(MASK)
            elif kind < 0.9:
                masked[index] = draw.randrange(len(SPECIAL_TOKENS), self._vocab_size)
        return masked, labels


def to_device(batch: TrainingBatch, device: torch.device) -> TrainingBatch:
    """Return the batch on a device."""
    inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.inputs.items()}
    return TrainingBatch(inputs, batch.labels.to(device, non_blocking=True), batch.tokens)
