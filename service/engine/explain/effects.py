"""The effect of a unit: how much a score falls if the text lacks the unit.

`leave_one_out` pools the token vectors of the whole text without the unit's tokens. `occlusion` encodes the text again
without the tokens of the unit, so that the other tokens do not attend to it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Pooling
from model.artifact.tokenizer import TokenizedInput
from service.engine.encode.sides import SidedInput
from service.engine.schema.tasks import OccludedSequence


def occlude(tokens: TokenizedInput, kept: NDArray[np.intp]) -> OccludedSequence:
    """Return the tokens at the given indices."""
    places = kept.tolist()
    if isinstance(tokens, SidedInput):
        return tokens.select(places)
    ids, types = tokens.input_ids, tokens.token_type_ids
    return OccludedSequence([ids[place] for place in places], [types[place] for place in places], side=tokens.side)


def pool_without_units(
    hidden: NDArray[Any], unit_of_token: NDArray[np.intp], units: int, pooling: Pooling, pool_from: int
) -> NDArray[np.float64]:
    """Return the pooled vector of a text without each of its units, (U, D); zeros if no token remains.

    Arguments are as in `unit_terms`; pooling is "mean" or "max". The tokens of a unit are contiguous.
    """
    hidden = hidden[pool_from:].astype(np.float64)
    unit_of_token = unit_of_token[pool_from:]
    membership = unit_of_token == np.arange(units)[:, None]
    counts = membership.sum(axis=1, keepdims=True)
    remaining = len(hidden) - counts
    if pooling == "mean":
        sums = hidden.sum(axis=0) - membership.astype(np.float64) @ hidden
        pooled: NDArray[np.float64] = sums / np.maximum(1, remaining)
    else:
        first = np.where(counts[:, 0] > 0, membership.argmax(axis=1), 0)
        last = first + counts[:, 0]
        lowest = np.full((1, hidden.shape[1]), -np.inf)
        before = np.concatenate([lowest, np.maximum.accumulate(hidden)])
        after = np.concatenate([np.maximum.accumulate(hidden[::-1])[::-1], lowest])
        pooled = np.maximum(before[first], after[last])
    pooled[remaining[:, 0] == 0] = 0
    return pooled
