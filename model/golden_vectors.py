"""Golden vectors: what the encoder computes in float32 for a few texts, to check each backend at every start.

The texts are fixed, so that two exports of one model can be compared. They have 3 to about 60 tokens, in several
languages, with digits and rare words, because rounding errors depend on the activations.
"""

import base64

import numpy as np
import torch

from model.encoder import Encoder
from model.manifest import Precision
from model.measurements import GoldenVectors
from model.parity import make_sequence
from model.tokenized_input import TokenizerInput
from model.tokenizer import Tokenizer

TEXTS = (
    "bank",
    "The bank of the river is steep.",
    "She opened an account at the bank.",
    "Red, green and blue.",
    "How do I reset my password?",
    "Reset your password in the settings under Security.",
    "2 + 2 = 4, and 17 is prime.",
    "On 3 March 1998 the temperature fell to -12.5 degrees.",
    "The committee has not yet decided whether the proposal will be accepted.",
    "Whether the proposal will be accepted, the committee has not yet decided.",
    "An encoder reads a whole sentence at once, so that each word can depend on the words before and after it.",
    "Der Zug nach Hamburg hat heute eine halbe Stunde Verspätung.",
    "Le marché ouvre à sept heures, sauf le dimanche.",
    "El perro duerme al sol delante de la casa.",
    "La nave parte domani mattina presto dal porto vecchio.",
    "Кошка спит на тёплом подоконнике.",
    "今日は天気がいいので、公園を散歩しました。",
    "图书馆周一不开放。",
    "Photosynthesis converts carbon dioxide and water into glucose and oxygen.",
    "def add(a, b): return a + b",
    "SELECT name FROM users WHERE age > 30 ORDER BY name;",
    "https://example.org/path?query=1#fragment",
    "No.",
    "Is it?",
    "It was raining, it was dark, and nobody had remembered to bring the key.",
    "Heat the oil, add the onions, and stir until they are soft and golden.",
    "The defendant shall pay the costs of the proceedings, including those of the appeal, within thirty days.",
    "Antidisestablishmentarianism is a long word; floccinaucinihilipilification is longer.",
    "aaaa bbbb cccc dddd eeee ffff",
    "Once upon a time there was a mill by a stream, and in the mill lived an old man, his three daughters and a gray "
    "cat that caught no mice, but sat by the window all day long and watched the water turn the wheel.",
    "Kaip sekasi? Hvordan går det? Jak się masz? Πώς είσαι;",
    "The patient, aged 54, reported chest pain; ECG and troponin were normal, and she was discharged with aspirin.",
)

MIN_COSINE: dict[Precision, float] = {"float32": 0.99999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.99}
"""Smallest cosine allowed per precision. Measured for the default model: 0.99997 in bfloat16, 0.997 to 0.9986 in int8.
"""


def compute_golden_vectors(encoder: Encoder, tokenizer: bytes, max_input_tokens: int) -> GoldenVectors:
    """Run each text alone in float32, and return the means of its last hidden states, (N, D)."""
    vectors = []
    for tokens in Tokenizer(tokenizer).encode([TokenizerInput(text) for text in TEXTS], offsets=False):
        kept = tokens.truncate(max_input_tokens, "right")
        types = kept.token_type_ids if encoder.config.type_vocab_size > 1 else [0] * len(kept)
        sequence = make_sequence(kept.input_ids, types)
        with torch.inference_mode():
            hidden = encoder(**{name: torch.from_numpy(values) for name, values in sequence.items()})
        vectors.append(hidden[0].mean(dim=0).numpy())
    data = np.stack(vectors).astype("<f4").tobytes()
    return GoldenVectors(texts=TEXTS, vectors=base64.b64encode(data).decode(), min_cosine=MIN_COSINE)
