"""`make bench`: the workloads, the machine's limit, and the peers, in one run.

BENCH=quick is a short run without peers, PEERS=0 omits the peers from a full run, and SECTIONS=W1,OL selects sections.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Protocol

from bench import report
from bench.accuracy import judge_accuracy, measure_accuracy, measure_int8
from bench.attention import NORM_TOKENS, measure_attention
from bench.bulk_embed import measure_embed
from bench.closed_loop import ATTENDANT, BY_NAME, WORKLOADS, Figure, System, alternate, measure, median
from bench.costs import FLOODED, OTHER, measure_apis, measure_models, measure_option, serving_tls, serving_traces
from bench.event_loop import measure_loop
from bench.fairness import measure_fairness
from bench.limit import Limit
from bench.load import progress
from bench.machine import Machine, load_average
from bench.open_loop import Offered, allow_connections
from bench.overload import judge_overload, measure_overload
from bench.peers import serving_peers
from bench.project import Model, max_queue_ms, served_precision
from bench.responsiveness import measure_responsiveness
from bench.scaling import Scaling, measure_scaling
from bench.startup import measure_start, resident_mib
from bench.targets import Verdict, all_passed, judge, not_measured
from bench.verdicts import judge_figures
from bench.workloads import Corpus, read_corpus
from tests.conftest import RunningServer, serving

SECTIONS = (
    "START", "W1", "W32", "P8", "T32", "N1", "OL", "A1", "FAIR", "LIVEZ", "SCALING", "ACCURACY", "INT8",
    "API", "MODELS", "EMBED", "TLS", "TRACES", "LOOP",
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


class Figures(Protocol):
    """The results of a section."""

    def describe(self) -> str: ...

    def verdicts(self) -> list[Verdict]: ...


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
        limit = Limit(model, machine.cores, machine.has_bfloat16)
        limit.calibrate([text for text, _ in corpus.sentences[:CALIBRATION_TEXTS]], config.calibration_s)
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

    def serving(self, **options: Any) -> AbstractContextManager[RunningServer]:
        """Serve the default model inside a `with` block."""
        return serving(model_dir=self.model.directory, **options)

    def add(self, name: str, result: object, verdicts: Sequence[Verdict]) -> None:
        self.record[name] = _plain(result)
        self.verdicts += verdicts

    def report(self, name: str, figures: Figures) -> None:
        """Print the figures of a section, and add them."""
        progress(figures.describe())
        self.add(name, figures, figures.verdicts())


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def main(arguments: Sequence[str]) -> int:
    """Measure the selected sections; return 0 if every measured target was met."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("length", nargs="?", choices=("full", "quick"), default="full")
    parser.add_argument("--no-peers", action="store_true", help="do not measure other servers")
    parser.add_argument(
        "--sections", default=",".join(SECTIONS), help=f"comma-separated sections: {','.join(SECTIONS)}"
    )
    parser.add_argument("--readme-plots", action="store_true", help="also write the plots of the README")
    options = parser.parse_args(arguments)
    sections = tuple(options.sections.upper().split(","))
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    config = QUICK if options.length == "quick" else FULL
    try:
        verdicts = run(config, sections, config.peers and not options.no_peers, options.readme_plots)
    except KeyboardInterrupt:
        print("\ninterrupted, no results written", file=sys.stderr)
        return 130
    return 0 if all_passed(verdicts) else 1


def run(config: BenchConfig, sections: Sequence[str], peers: bool, readme_plots: bool) -> list[Verdict]:
    """Measure, print and write the results."""
    allow_connections()
    context = BenchContext.prepare(config)
    if "START" in sections:
        context.report("start", measure_start(context.model.directory, config.starts))
    figures = measure_workloads(context, sections, peers)
    offered: list[Offered] = []
    if "OL" in sections:
        with context.serving() as server:
            offered = measure_ol(context, server, figures)
    with context.serving() as server:  # a fresh server, because the overload inflated the memory of the previous one
        measure_sections(context, sections, server)
    medians = [
        figure
        for workload in WORKLOADS
        for name in dict.fromkeys(figure.system for figure in figures)
        if (figure := median(workload.name, name, figures))
    ]
    if medians:
        progress(f"\nmedians\n{report.table(medians)}\n\n{report.stage_table(medians)}\n")
    verdicts = sorted(context.verdicts, key=lambda verdict: int(verdict.target.name[1:] or 99))
    progress("\n".join(verdict.describe() for verdict in verdicts))
    progress(load_average())
    report.write(context.record | {"sections": sections, "load_after": load_average()}, verdicts)
    own = [figure for figure in medians if figure.system == ATTENDANT]
    for directory in (report.DIRECTORY, report.README) if readme_plots else (report.DIRECTORY,):
        report.plot_run(own, offered, context.scaling, directory)
    return verdicts


def measure_workloads(context: BenchContext, sections: Sequence[str], peers: bool) -> list[Figure]:
    """Measure the closed-loop workloads in rounds. The order of systems changes every round."""
    workloads = [workload for workload in WORKLOADS if workload.section in sections]
    figures: list[Figure] = []
    if not workloads:
        return figures
    config, texts = context.config, [*context.sentences[:64], *context.passages[:8]]
    skipped: dict[str, str] = {}
    with context.serving() as server, ExitStack() as stack:
        own = System.attendant(server)
        systems = [own]
        if peers:
            others, skipped = stack.enter_context(serving_peers(texts, context.limit.reference(texts)))
            systems += others
        for number in range(config.rounds):
            turn = number % len(systems)
            order = systems[turn:] + systems[:turn] if number < config.peer_rounds else [own]
            for workload in workloads:
                measured = measure(workload, order, context.limit, context.corpus, config.seconds)
                figures += measured
                for figure in measured:
                    progress(f"[{number + 1}/{config.rounds}] {figure.describe()}")
        if "N1" in sections:
            measure_connections(context, own)
        context.record["rss_after_load_mib"] = resident_mib(server.pid)
    for name, reason in skipped.items():
        progress(f"skipped: {name}: {reason}")
    context.record |= {"skipped": skipped}
    context.add("figures", figures, judge_figures(figures, context.machine.has_bfloat16))
    return figures


def measure_connections(context: BenchContext, own: System) -> None:
    """C13: compare new with persistent connections, and gzip with plain responses, alternating."""
    seconds, rounds = context.config.seconds / 2, 2 * context.config.rounds
    connections = alternate((BY_NAME["N1"], BY_NAME["W1 c=16"]), own, context.corpus, seconds, rounds)
    gzip = alternate((BY_NAME["W1 c=64"], BY_NAME["W1 c=64 plain"]), own, context.corpus, seconds, rounds)
    verdicts = [judge("new_connections", connections), judge("gzip", gzip)]
    context.add("connections", {"new": connections, "gzip": gzip}, verdicts)


def measure_ol(context: BenchContext, server: RunningServer, figures: Sequence[Figure]) -> list[Offered]:
    """C9: offer W1 at multiples of the measured W1 rate at 64 connections."""
    figure = median("W1 c=64", ATTENDANT, figures)
    if figure is None:
        own = System.attendant(server)
        (figure,) = measure(BY_NAME["W1 c=64"], [own], context.limit, context.corpus, context.config.seconds)
    offered = measure_overload(
        server, context.sentences, figure.texts_per_second, context.config.overload_s, max_queue_ms()
    )
    context.add("offered", offered, judge_overload(offered, max_queue_ms()))
    return offered


def measure_sections(context: BenchContext, sections: Sequence[str], server: RunningServer) -> None:
    """Measure the sections that only need a server."""
    config, sentences, directory = context.config, context.sentences, context.model.directory
    seconds, rounds = config.seconds, config.rounds
    if "A1" in sections:
        passage = next(text for text, size in context.corpus.passages if size > NORM_TOKENS)
        context.report("attention", measure_attention(server, sentences, passage, seconds, rounds))
    if "FAIR" in sections:
        context.report("fairness", measure_fairness(server, sentences, context.passages, config.fairness_s))
    if "API" in sections:
        context.report("apis", measure_apis(server, sentences, seconds, 2 * rounds))
    if "MODELS" in sections:
        with context.serving(models=f"{FLOODED}={directory},{OTHER}={directory}") as two:
            context.report("models", measure_models(two, sentences, seconds, 2 * rounds))
    measure_options(context, sections, server)
    if "EMBED" in sections:
        embed = measure_embed(context.model, context.corpus.sentences, config.embed_rows, context.limit)
        context.report("embed", embed)
    if "LOOP" in sections:
        context.report("loop", measure_loop(directory, context.corpus, seconds / 2))
    if "LIVEZ" in sections:
        context.report("responsiveness", measure_responsiveness(server))
    if "SCALING" in sections:
        tokenizer = context.model.tokenizer()
        context.scaling = measure_scaling(server, context.corpus, tokenizer, config.scaling_s, rounds)
        context.report("scaling", context.scaling)
    if {"ACCURACY", "INT8"} & set(sections):
        measure_precisions(context, sections, server)


def measure_options(context: BenchContext, sections: Sequence[str], server: RunningServer) -> None:
    """Measure what TLS and traces cost."""
    seconds, rounds = context.config.seconds, 2 * context.config.rounds
    for name, serving_option in (("tls", serving_tls), ("traces", serving_traces)):
        if name.upper() in sections:
            with serving_option(context.model.directory) as other:
                context.report(name, measure_option(name, server, other, context.sentences, seconds, rounds))


def measure_precisions(context: BenchContext, sections: Sequence[str], server: RunningServer) -> None:
    """Measure the accuracy of each precision, and the speed of int8."""
    config = context.config
    texts = spread([*context.sentences, *context.passages], config.texts)
    reference = context.limit.reference(texts)
    if "ACCURACY" in sections:
        precision = served_precision(server.rest)
        progress(f"accuracy over {len(texts)} texts in {precision} and float32")
        cosines = measure_accuracy(server.rest, texts, reference)
        context.add("cosines", {precision: cosines}, judge_accuracy(cosines, precision, len(texts)))
        if precision != "float32":
            with context.serving(precision="float32") as other:
                cosines = measure_accuracy(other.rest, texts, reference)
            context.add("cosines_float32", cosines, judge_accuracy(cosines, "float32", len(texts)))
    if "INT8" in sections:
        if context.machine.has_vnni:
            context.report("int8", measure_int8(texts, reference, config.seconds, config.rounds))
        else:
            context.add("int8", None, [not_measured("int8_rate", "this CPU has no VNNI")])


def spread(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` evenly spaced texts, which cover all lengths."""
    return [texts[number * len(texts) // count] for number in range(count)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
