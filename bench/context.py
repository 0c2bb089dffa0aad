"""Configuration of a run, and objects shared by all sections."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from bench.limit import Limit
from bench.machine import Machine, load_average
from bench.project import Model
from bench.scaling import Scaling
from bench.targets import Verdict
from bench.workloads import Corpus, read_corpus

SECTIONS = (
    "START", "W1", "W32", "P8", "T32", "N1", "OL", "A1", "FAIR", "LIVEZ", "SCALING", "ACCURACY", "INT8",
    "API", "MODELS", "EMBED", "TLS", "TRACES",
)  # fmt: skip
CALIBRATION_TEXTS = 200


@dataclass(frozen=True)
class BenchConfig:
    """Durations in seconds, and numbers of repetitions."""

    seconds: float
    rounds: int
    peer_rounds: int
    overload_s: float
    fairness_s: float
    scaling_s: float
    calibration_s: float
    texts: int
    embed_rows: int
    starts: int
    peers: bool


QUICK = BenchConfig(
    seconds=3, rounds=1, peer_rounds=1, overload_s=4, fairness_s=6, scaling_s=1, calibration_s=0.2, texts=300,
    embed_rows=20_000, starts=1,
    peers=False,
)  # fmt: skip
FULL = BenchConfig(
    seconds=6, rounds=3, peer_rounds=2, overload_s=10, fairness_s=20, scaling_s=1.5, calibration_s=0.5, texts=2000,
    embed_rows=200_000, starts=3, peers=True,
)  # fmt: skip


@dataclass
class BenchContext:
    """A run's machine, texts, limit and results."""

    config: BenchConfig
    machine: Machine
    model: Model
    corpus: Corpus
    limit: Limit
    record: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    scaling: Scaling | None = None

    @classmethod
    def prepare(cls, config: BenchConfig) -> "BenchContext":
        """Read the machine and the texts, and calibrate the limit."""
        machine, model = Machine.read(), Model.default()
        corpus = read_corpus(model.tokenizer())
        progress(f"{machine.describe()}\n{corpus.describe()}\n{load_average()}")
        limit = Limit(model, machine.cores, machine.has_bfloat16, progress)
        limit.calibrate([text for text, _ in corpus.sentences[:CALIBRATION_TEXTS]], config.calibration_s, progress)
        context = cls(config, machine, model, corpus, limit)
        context.record |= {
            "machine": asdict(machine),
            "load_before": load_average(),
            "config": asdict(config),
            "limit": {"backend": limit.backend.name, "cosines": limit.cosines, "skipped": limit.skipped},
        }
        return context

    @property
    def sentences(self) -> list[str]:
        return [text for text, _ in self.corpus.sentences]

    @property
    def passages(self) -> list[str]:
        return [text for text, _ in self.corpus.passages]

    def add(self, name: str, result: object, verdicts: Sequence[Verdict]) -> None:
        self.record[name] = _plain(result)
        self.verdicts += verdicts


def progress(line: str) -> None:
    print(line, flush=True)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value
