"""What the tests of the flat encoder share: its families, and random texts."""

import numpy as np

from model.encoder import Encoder
from model.parity import Row, make_text

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")


def random_texts(encoder: Encoder, lengths: tuple[int, ...]) -> list[Row]:
    """Texts of these lengths, without padding ids."""
    rng = np.random.default_rng(lengths)
    config = encoder.config
    return [
        make_text(rng.integers(5, config.vocab_size, length).tolist(), rng.integers(0, config.types, length).tolist())
        for length in lengths
    ]
