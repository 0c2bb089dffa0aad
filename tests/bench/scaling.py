"""Growth (C8), in the engine without a server: tokens a second by the length of texts, and by texts in flight.

A packed engine should not care for either. What it must pay is attention's share, which grows with the row a text lies
in; that is set aside by counting multiplications: a token of a row of S costs 24 D^2 of linear work and 4 S D of
attention in each layer (D wide, its feed-forward 4 D), so that tokens/s are compared as if no row had the latter.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from prometheus_client import CollectorRegistry

from model.tokenizer import Source, Tokenizer
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, Input
from service.metrics import Metrics
from tests.bench.bars import Verdict, at_least
from tests.bench.workloads import Corpus

LENGTHS = (8, 16, 32, 64, 128, 256)
IN_FLIGHT = (4, 8, 16, 32, 64, 128, 256)
REQUEST_TOKENS, REQUESTS = 256, 8
"""What a request of texts of one length comes to, and how many of them are in flight."""
DISTINCT = 128
EVEN_BAR = 0.85
WARM_UP_S = 0.3


@dataclass(frozen=True)
class Growth:
    """Medians of tokens a second, by length and by texts in flight; `even` is by length, attention set aside."""

    by_length: dict[int, float]
    even: dict[int, float]
    by_flight: dict[int, float]

    def verdicts(self) -> list[Verdict]:
        return [
            at_least("C8", f"least by length, {LENGTHS[0]} to {LENGTHS[-1]} tokens", _evenness(self.even), EVEN_BAR,
                     "of the most"),
            at_least("C8", f"least by texts in flight, {IN_FLIGHT[0]} to {IN_FLIGHT[-1]}", _evenness(self.by_flight),
                     EVEN_BAR, "of the most"),
        ]  # fmt: skip

    def describe(self) -> str:
        lengths = "  ".join(f"{n}: {rate:.0f} ({self.even[n]:.0f})" for n, rate in self.by_length.items())
        flights = "  ".join(f"{n}: {rate:.0f}" for n, rate in self.by_flight.items())
        return f"tokens/s by length (attention set aside)  {lengths}\ntokens/s by texts in flight  {flights}"


def measure_growth(
    settings: Settings, corpus: Corpus, seconds: float, rounds: int, say: Callable[[str], None]
) -> Growth:
    """Each point for `seconds`, in turn, so that the machine's drift falls on all."""
    model = LoadedModel.load(settings)
    return asyncio.run(_measure(model, settings, corpus, seconds, rounds, say))


async def _measure(
    model: LoadedModel, settings: Settings, corpus: Corpus, seconds: float, rounds: int, say: Callable[[str], None]
) -> Growth:
    engine = Engine(model, settings, Metrics(CollectorRegistry()))
    long = " ".join(text for text, _ in corpus.passages)
    texts = {length: texts_of(length, long, model.tokenizer) for length in LENGTHS}
    sentences = [text for text, _ in corpus.sentences]
    lengths: dict[int, list[float]] = {length: [] for length in LENGTHS}
    flights: dict[int, list[float]] = {count: [] for count in IN_FLIGHT}
    try:
        for number in range(rounds):
            for length, found in texts.items():
                lengths[length].append(await _rate(engine, found, REQUEST_TOKENS // length, REQUESTS, seconds))
            for count in IN_FLIGHT:
                flights[count].append(await _rate(engine, sentences, 1, count, seconds))
            say(f"growth [{number + 1}/{rounds}]")
    finally:
        await engine.close()
    lengths_of_rows = model.runtime.row_lengths
    by_length = {length: float(np.median(found)) for length, found in lengths.items()}
    even = {
        length: rate * without_attention(max(lengths_of_rows.shared, lengths_of_rows.fit(length)), engine.info.width)
        for length, rate in by_length.items()
    }
    return Growth(by_length, even, {count: float(np.median(found)) for count, found in flights.items()})


async def _rate(engine: Engine, texts: Sequence[str], size: int, callers: int, seconds: float) -> float:
    """Tokens a second of `callers` that each keep one request of `size` texts in flight."""
    inputs = [Input(Source(text)) for text in texts]
    groups = [tuple(inputs[at : at + size]) for at in range(0, len(inputs) - size + 1, size)]
    turn = itertools.cycle(groups)
    tokens = 0
    begin = time.perf_counter() + WARM_UP_S
    end = begin + seconds

    async def caller() -> None:
        nonlocal tokens
        while time.perf_counter() < end:
            found = await engine.encode(EncodeRequest(next(turn)))
            if begin <= time.perf_counter() <= end:
                tokens += found.token_count

    await asyncio.gather(*(caller() for _ in range(callers)))
    return tokens / seconds


def texts_of(length: int, long: str, tokenizer: Tokenizer) -> list[str]:
    """Different parts of a long text, each of exactly `length` tokens."""
    (tokens,) = tokenizer.encode([Source(long)])
    offsets = tokens.offsets[1:-1]
    step = max(1, (len(offsets) - length) // (4 * DISTINCT))
    parts = [long[offsets[at][0] : offsets[at + length - 3][1]] for at in range(0, len(offsets) - length, step)]
    sizes = [len(found) for found in tokenizer.encode([Source(part) for part in parts], offsets=False)]
    exact = [part for part, size in zip(parts, sizes, strict=True) if size == length]
    if len(exact) < REQUEST_TOKENS // length:
        raise RuntimeError(f"only {len(exact)} texts of {length} tokens could be cut")
    return exact[:DISTINCT]


def without_attention(row: int, width: int) -> float:
    """What a rate in rows of so many tokens is multiplied by to set attention's share aside."""
    return 1 + row / (6 * width)


def _evenness(rates: dict[int, float]) -> float:
    return min(rates.values()) / max(rates.values())
