"""Model families and random sequences for the varlen encoder tests."""

import numpy as np

from model.encoder import Encoder
from model.export.parity import Inputs, make_sequence

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")


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
