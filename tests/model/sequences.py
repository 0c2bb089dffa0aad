"""Random sequences, and their hidden states."""

import torch
from torch import Tensor

from model.checkpoint import Checkpoint

FIRST_ORDINARY_ID = 5


def random_ids(checkpoint: Checkpoint, length: int) -> Tensor:
    """Return the ids (1, T) of a sequence without special tokens."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(FIRST_ORDINARY_ID, checkpoint.encoder.config.vocab_size, (1, length), generator=generator)


def run(checkpoint: Checkpoint, input_ids: Tensor) -> Tensor:
    """Return the hidden states (T, D) of one sequence."""
    positions, zeros = torch.arange(input_ids.shape[1])[None], torch.zeros_like(input_ids)
    with torch.inference_mode():
        hidden: Tensor = checkpoint.encoder(input_ids, positions, zeros, zeros + 1)[0]
    return hidden
