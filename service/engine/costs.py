"""The cost of work outside of inference, which decides whether it runs on the event loop or in a thread.

One unit is the time to tokenize one character, 0.25 us on AMD Zen 5 and 0.5 us on an AMD EPYC with AVX2
(all-MiniLM-L6-v2). The factors are measured and rounded up: every kind of request within `INLINE_COST` holds the event
loop for at most 2 ms.
"""

from model.manifest import Manifest
from service.engine.admission import count_characters, estimate_tokens
from service.engine.schema.encode import EncodeRequest, Input, TokenizeRequest
from service.engine.schema.explain import AttendRequest, CompareRequest

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


def encode_cost(request: EncodeRequest, manifest: Manifest, prompt_length: int) -> int:
    """Return the cost of preparing a request with explicit layers, or of building its results."""
    assert request.layers is not None
    inputs, layers = request.inputs, len(request.layers)
    lengths = [prompt_length + count_characters(item) for item in inputs]
    cost = sum(lengths) + INPUT * len(inputs)
    arrays = [output for output in request.outputs if output != "pooled"]
    if layers > 1 and "pooled" in request.outputs:
        cost += layers * manifest.hidden_size * len(inputs) // ELEMENTS
    if not arrays:
        return cost
    spans = sum(len(item.spans) for item in inputs)
    means = layers * sum(output in ("words", "spans") for output in arrays)
    tokens = sum(estimate_tokens((2 * length for length in lengths), manifest.max_input_tokens))
    elements = (tokens + spans) * manifest.hidden_size * layers * len(arrays) if layers > 1 else 0
    cost += (DESCRIBED_CHARACTER - 1) * sum(lengths) + OUTPUT * (len(arrays) + means) * len(inputs)
    return cost + SPAN * spans + elements // ELEMENTS


def describe_cost(request: AttendRequest | TokenizeRequest) -> int:
    """Return the cost of tokenizing inputs and listing their tokens, words or units."""
    return sum(_described(item) + SPAN * len(item.spans) for item in request.inputs)


def compare_cost(request: CompareRequest, inputs: list[Input], layers: int) -> int:
    """Return the cost of preparing a comparison, or of building its results; `inputs` are the distinct texts."""
    count = len(request.occurrences)
    return sum(map(_described, inputs)) + OUTPUT * count + PAIR * layers * count * count


def _described(item: Input) -> int:
    return DESCRIBED_CHARACTER * count_characters(item) + INPUT + OUTPUT
