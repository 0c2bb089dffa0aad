"""Model families and random sequences for the varlen encoder tests."""

import numpy as np
import torch

from model.encoder import Encoder
from model.export.parity import Inputs, make_sequence

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")


def run_alone(encoder: Encoder, sequences: list[Inputs]) -> list[torch.Tensor]:
    """Return the last hidden states (T, D) of each sequence."""
    with torch.inference_mode():
        return [encoder(**{name: torch.from_numpy(values) for name, values in item.items()})[0] for item in sequences]


def random_sequences(encoder: Encoder, lengths: tuple[int, ...]) -> list[Inputs]:
    rng = np.random.default_rng(lengths)
    config = encoder.config
    return [
        make_sequence(
            rng.integers(5, config.vocab_size, length).tolist(),
            rng.integers(0, max(1, config.type_vocab_size), length).tolist(),
        )
        for length in lengths
    ]
