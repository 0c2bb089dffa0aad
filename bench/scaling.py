"""Scaling (C8): tokens per second over gRPC, by text length and by texts in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.load import Load, bodies_file, progress
from bench.project import Tokenizer, encode_body
from bench.rpc_load import run_rpc
from bench.targets import Verdict, judge
from bench.workloads import Corpus, texts_of_length
from tests.conftest import RunningServer

LENGTHS = (8, 16, 32, 64, 128, 256)
IN_FLIGHT = (4, 16, 32, 64, 128, 256)
REQUEST_TOKENS, REQUESTS = 256, 8
"""Tokens per request of equally long texts, and requests in flight."""
DISTINCT = 128


@dataclass(frozen=True)
class Scaling:
    """Median tokens per second, by text length and by texts in flight."""

    by_length: dict[int, float]
    by_flight: dict[int, float]

    def verdicts(self) -> list[Verdict]:
        many = {count: rate for count, rate in self.by_flight.items() if count != IN_FLIGHT[0]}
        return [
            judge("length", evenness(self.by_length)),
            judge("in_flight", evenness(many)),
            judge("in_flight_4", self.by_flight[IN_FLIGHT[0]] / max(many.values())),
        ]

    def describe(self) -> str:
        lengths = "  ".join(f"{length}: {rate:.0f}" for length, rate in self.by_length.items())
        flights = "  ".join(f"{count}: {rate:.0f}" for count, rate in self.by_flight.items())
        return f"tokens/s by length  {lengths}\ntokens/s by texts in flight  {flights}"


def evenness(rates: dict[int, float]) -> float:
    """Return the slowest rate as a share of the fastest."""
    return min(rates.values()) / max(rates.values())


def measure_scaling(
    server: RunningServer,
    corpus: Corpus,
    tokenizer: Tokenizer,
    seconds: float,
    rounds: int,
) -> Scaling:
    """Measure the points in turn, `seconds` each, so that machine drift affects all of them equally."""
    long = " ".join(text for text, _ in corpus.passages)
    lengths: dict[int, list[float]] = {length: [] for length in LENGTHS}
    flights: dict[int, list[float]] = {count: [] for count in IN_FLIGHT}
    mean_tokens = float(np.mean([size for _, size in corpus.sentences]))
    requests = {length: _requests(texts_of_length(length, long, tokenizer, DISTINCT), length) for length in LENGTHS}
    for number in range(rounds):
        for length, groups in requests.items():
            rate = _rate(server, groups, REQUESTS, seconds)
            lengths[length].append(rate * len(groups[0]) * length)
        for count in IN_FLIGHT:
            rate = _rate(server, [[text] for text, _ in corpus.sentences], count, seconds)
            flights[count].append(rate * mean_tokens)
        progress(f"scaling [{number + 1}/{rounds}]")
    return Scaling(_medians(lengths), _medians(flights))


def _requests(texts: Sequence[str], length: int) -> list[list[str]]:
    size = REQUEST_TOKENS // length
    if len(texts) < size:
        raise RuntimeError(f"only {len(texts)} texts of {length} tokens available")
    return [list(texts[at : at + size]) for at in range(0, len(texts) - size + 1, size)]


def _rate(server: RunningServer, groups: Sequence[Sequence[str]], calls: int, seconds: float) -> float:
    with bodies_file([encode_body(group) for group in groups]) as bodies:
        return run_rpc(Load(server.grpc, calls, bodies), seconds).per_second


def _medians(rates: dict[int, list[float]]) -> dict[int, float]:
    return {point: float(np.median(values)) for point, values in rates.items()}
