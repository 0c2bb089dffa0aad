"""Texts, units and random maps for the unit tests."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from attendant_client.types import AttendRequest, Input, SpecialTokens
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact.tokenizer import Offsets, TokenizedInput, Tokenizer
from service.operations.inputs import tokenizer_inputs
from service.operations.units import Units, find_units

Floats = NDArray[Any]
CHEQUE = "He cashed a check at the bank."
WORDS = ("bank", "cashed", "embankment's", "re-enters", ".", "unfathomable", "a", "naïve", "42nd", "漢", "!?", "x")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
SPECIALS: tuple[SpecialTokens, ...] = ("keep", "drop", "renormalize")


@dataclass
class TokensAndUnits:
    """An input's tokens and units."""

    tokens: TokenizedInput
    units: Units

    @property
    def texts(self) -> list[str]:
        return [unit.text for unit in self.units.units]


def make_units(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    spans: tuple[Offsets, ...] = (),
    limit: int | None = None,
    **fields: Any,
) -> TokensAndUnits:
    """Return a text's tokens and units, truncating it to `limit` tokens on the right."""
    item = Input(text, pair, spans)
    tokens = tokenizer.encode(tokenizer_inputs([item]))[0]
    if limit is not None:
        tokens = tokens.truncate(limit, "right")
    request = AttendRequest((item,), **fields)
    return TokensAndUnits(tokens, find_units(item, tokens, tokenizer.token_texts(tokens), request, "inputs[0]"))


def random_probs(count: int, maps: int = 3) -> Floats:
    """Return uneven maps whose rows sum to 1."""
    exponentials = np.exp(2 * np.random.default_rng(count).standard_normal((maps, count, count)))
    probs: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probs
