"""`make bench`: the workloads, the ceiling beside each, peers beside both, in one run on one machine.

`make bench BENCH=quick` is a short run without peers; PEERS=0 leaves them out of a long one; PLOTS=readme also writes
the plots of tests/bench/README.md.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from model.artifact import TOKENIZER, Artifact
from model.tokenizer import Tokenizer
from service.config import Settings, load_settings
from service.engine.backends.select import Provider, choose_provider
from tests.bench import accuracy, closed, overload, plots, report
from tests.bench.attention import NORM_TOKENS, measure_attention
from tests.bench.bars import Verdict, all_reached
from tests.bench.ceiling import Bare, describe_machine
from tests.bench.closed import US, WORKLOADS, Contestant, Figure
from tests.bench.growth import measure_growth
from tests.bench.load import ROOT
from tests.bench.open_loop import allow_connections
from tests.bench.peers import serving_peers
from tests.bench.startup import measure_start, resident_mib
from tests.bench.workloads import Corpus, read_corpus
from tests.conftest import RunningServer, start_server, stop_server


@dataclass(frozen=True)
class Plan:
    """How long and how often."""

    seconds: float
    rounds: int
    overload_s: float
    growth_s: float
    texts: int
    starts: int
    peers: bool


QUICK = Plan(seconds=3, rounds=1, overload_s=4, growth_s=0.7, texts=300, starts=1, peers=False)
FULL = Plan(seconds=8, rounds=3, overload_s=10, growth_s=2, texts=2000, starts=3, peers=True)


@dataclass(frozen=True)
class Ground:
    """What every part stands on."""

    plan: Plan
    settings: Settings
    artifact: Artifact
    provider: Provider
    corpus: Corpus
    bare: Bare

    @property
    def sentences(self) -> list[str]:
        return [text for text, _ in self.corpus.sentences]

    @property
    def passages(self) -> list[str]:
        return [text for text, _ in self.corpus.passages]


def main(arguments: Sequence[str]) -> int:
    """Measure everything; the exit status says whether every bar was reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("length", nargs="?", choices=("full", "quick"), default="full")
    parser.add_argument("--no-peers", action="store_true", help="leave other servers out")
    parser.add_argument("--readme-plots", action="store_true", help="write the plots of the bench's README too")
    options = parser.parse_args(arguments)
    plan = QUICK if options.length == "quick" else FULL
    try:
        verdicts = run(plan, peers=plan.peers and not options.no_peers, readme_plots=options.readme_plots)
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        return 130
    return 0 if all_reached(verdicts) else 1


def run(plan: Plan, *, peers: bool, readme_plots: bool) -> list[Verdict]:
    allow_connections()
    ground = prepare(plan)
    machine = describe_machine(ground.provider)
    say(f"{machine}\n{describe_corpus(ground.corpus)}\n{report.busyness()}")
    start = measure_start(ground.artifact.root, plan.starts)
    say(start.describe())
    growth = measure_growth(ground.settings, ground.corpus, plan.growth_s, plan.rounds, say)
    say(growth.describe())
    with serving(ground) as server:
        figures, left_out = contest(ground, server, peers)
        loaded_mib = resident_mib(server.pid)
        url = f"{server.rest}/v1/encode"
        capacity = ours(figures, "W1 c=64").texts_per_second
        offered = overload.measure_overload(
            url, ground.sentences, capacity, plan.overload_s, ground.settings.max_queue_tokens, say
        )
    with serving(ground) as server:  # another one, with nothing of the overload left in it
        say("attention maps, alone and beside W1")
        passage = next(text for text, size in ground.corpus.passages if size > NORM_TOKENS)
        attention = measure_attention(server, ground.sentences, passage, plan.seconds, plan.rounds)
        say(f"{attention.describe()}\naccuracy over {plan.texts} texts, three ways")
        texts = [*ground.sentences, *ground.passages][-plan.texts :]
        distances = accuracy.measure_accuracy(f"{server.rest}/v1/encode", texts, ground.bare)
    verdicts = closed.judge(figures) + attention.verdicts() + growth.verdicts() + overload.judge(offered)
    verdicts += start.verdicts() + accuracy.judge(distances, ground.provider.precision, len(texts))
    verdicts.sort(key=lambda verdict: int(verdict.bar[1:] or 99))
    names = dict.fromkeys(figure.contestant for figure in figures)
    medians = [
        found for workload in WORKLOADS for name in names if (found := closed.median(workload.name, name, figures))
    ]
    say(f"\nmedians\n{report.table(medians)}\n\n{report.stage_table(medians)}\n")
    say(f"memory after the load {loaded_mib:.0f} MiB; {report.busyness()}")
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    say("\n".join(verdict.describe() for verdict in verdicts))
    record: dict[str, Any] = {
        "machine": machine,
        "busy": report.busyness(),
        "plan": asdict(plan),
        "start": asdict(start),
        "rss_after_load_mib": loaded_mib,
        "figures": [asdict(figure) for figure in figures],
        "left_out": left_out,
        "offered": [asdict(one) for one in offered],
        "attention": asdict(attention),
        "growth": asdict(growth),
        "distances": distances,
    }
    report.write(record, verdicts)
    ours_alone = [figure for figure in medians if figure.contestant == US]
    for directory in (report.DIRECTORY, plots.README) if readme_plots else (report.DIRECTORY,):
        plots.plot_run(ours_alone, offered, growth, directory)
    return verdicts


def prepare(plan: Plan) -> Ground:
    settings = load_settings(environ={})
    settings = settings.model_copy(update={"model_dir": ROOT / settings.model_dir})
    artifact = Artifact.open(settings.model_dir)
    provider = choose_provider("auto", "auto")
    corpus = read_corpus(Tokenizer(artifact.read(TOKENIZER)))
    return Ground(plan, settings, artifact, provider, corpus, Bare(artifact, provider))


def contest(ground: Ground, server: RunningServer, peers: bool) -> tuple[list[Figure], dict[str, str]]:
    """Every workload on every contestant, in rounds; who goes first within a workload changes with the round."""
    texts = [*ground.sentences[:64], *ground.passages[:8]]
    contestants, left_out = [Contestant.ours(server)], dict[str, str]()
    figures: list[Figure] = []
    with ExitStack() as stack:
        if peers:
            others, left_out = stack.enter_context(serving_peers(texts, ground.bare.reference(texts), say))
            contestants += others
        for number in range(ground.plan.rounds):
            turned = contestants[number % len(contestants) :] + contestants[: number % len(contestants)]
            for workload in WORKLOADS:
                measured = closed.measure(workload, turned, ground.bare, ground.corpus, ground.plan.seconds)
                figures += measured
                for figure in measured:
                    say(f"[{number + 1}/{ground.plan.rounds}] {figure.describe()}")
    return figures, left_out


def ours(figures: Sequence[Figure], workload: str) -> Figure:
    found = closed.median(workload, US, figures)
    assert found is not None
    return found


@contextmanager
def serving(ground: Ground) -> Iterator[RunningServer]:
    server = start_server(model_dir=ground.artifact.root)
    try:
        yield server
    finally:
        stop_server(server)


def describe_corpus(corpus: Corpus) -> str:
    lengths = [size for _, size in corpus.sentences]
    quantiles = "/".join(f"{q:.0f}" for q in np.quantile(lengths, (0.05, 0.25, 0.5, 0.75, 0.95)))
    return (
        f"{len(lengths)} sentences, mean {np.mean(lengths):.1f} tokens, quantiles 5/25/50/75/95 % {quantiles}; "
        f"{len(corpus.passages)} passages, mean {np.mean([size for _, size in corpus.passages]):.0f}"
    )


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
