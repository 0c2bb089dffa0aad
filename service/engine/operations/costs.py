"""The cost of work outside of inference, which decides whether it runs on the event loop or in a thread.

One unit is the time to tokenize one character, 0.25 us on AMD Zen 5 and 0.5 us on an AMD EPYC with AVX2
(all-MiniLM-L6-v2). The factors are measured and rounded up: every kind of request within `INLINE_COST` holds the event
loop for at most 2 ms.
"""

from collections.abc import Iterable

from service.engine.admission import count_characters
from service.engine.schema.encode import Input

UNIT_S = 5e-7
INLINE_COST = 4096
INPUT = 48
"""Tokenizing an input, and building its result."""
DESCRIBED_CHARACTER = 8
"""A character of an input whose tokens, words or units are listed: one token per two characters at worst."""
OUTPUT = 160
"""An array of vectors per input, or a mean over words or spans per layer."""
ELEMENTS = 20
"""Elements of output arrays per unit."""
SPAN = 8
PAIR = 4
"""A pair of occurrences in one layer."""


def describe_cost(inputs: Iterable[Input]) -> int:
    """Return the cost of tokenizing inputs and listing their tokens, words or units."""
    return sum(
        DESCRIBED_CHARACTER * count_characters(item) + INPUT + OUTPUT + SPAN * len(item.spans) for item in inputs
    )
