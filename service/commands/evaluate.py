"""`attendant evaluate`: measures an artifact on labeled texts, with differences from a baseline, and saves them."""

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
from attendant_client.types import ModelInfo

from model.artifact.files import Artifact, ArtifactError, check_writable, update_manifest
from model.artifact.manifest import EvaluationRecord, Manifest
from service.commands.arguments import PRECISIONS, Parser, integer
from service.commands.attribution import SIMILARITY_METHODS, pair_similarities, rank_words, word_cosines
from service.commands.labeled_texts import (
    MAX_DOCUMENTS,
    AttributionLine,
    ReadFile,
    Records,
    RetrievalData,
    ScoredPair,
    TextError,
    WordPair,
    read_records,
    read_retrieval,
    read_similarity,
    read_words,
)
from service.commands.measures import (
    Estimate,
    Flags,
    Values,
    Vectors,
    cross_validate,
    estimate_auc,
    estimate_mean,
    estimate_pearson,
    estimate_spearman,
    rank_measures,
)
from service.commands.sources import TextEncoder, describe_model, model_record, run_engine
from service.config import Settings, load_settings

if TYPE_CHECKING:
    from service.engine.engine import Engine


class RowKey(NamedTuple):
    """A measure. `subject` describes the data."""

    subject: str
    method: str
    measure: str


@dataclass(frozen=True)
class Figures:
    """The figures of one task: as in the JSON output, with estimates, and as rows of the table."""

    record: dict[str, Any]
    rows: dict[RowKey, Estimate]
    notes: tuple[str, ...] = ()
    """Lines that report the figures expected from random guessing."""
    omitted: dict[str, str] = field(default_factory=dict)
    """Why attribution methods were omitted."""


EMPTY = Figures({}, {})
"""The figures of a task without a file."""


async def measure_similarity(encoder: TextEncoder, data: Records[ScoredPair], top_k: int) -> Figures:
    texts = [labeled for pair in data.lines for labeled in pair.labeled]
    similarities = await pair_similarities(encoder, data.file.path, texts)
    scores, subject = np.array([pair.score for pair in data.lines]), f"sts, {len(data.lines):,} pairs"
    spearman, pearson = estimate_spearman(similarities, scores), estimate_pearson(similarities, scores)
    rows = {RowKey(subject, "", "Spearman"): spearman, RowKey(subject, "", "Pearson"): pearson}
    return Figures({"pairs": len(scores), "spearman": spearman, "pearson": pearson}, rows)


async def measure_retrieval(encoder: TextEncoder, data: RetrievalData, top_k: int) -> Figures:
    documents = await encoder.vectors(data.file.path, data.documents, "document")
    queries = await encoder.vectors(data.file.path, data.queries, "query")
    relevant = [np.array(indices, np.int64) for indices in data.relevant]
    measures = rank_measures(Vectors(documents, queries, encoder.engine.info.similarity), relevant, top_k).T
    estimates = dict(zip(("recall", "ndcg", "mrr"), map(estimate_mean, measures), strict=True))
    subject = f"retrieval, {len(queries):,} queries, {len(documents):,} documents"
    names = (f"recall@{top_k}", "nDCG@10", "MRR")
    rows = {RowKey(subject, "", name): item for name, item in zip(names, estimates.values(), strict=True)}
    return Figures({"queries": len(queries), "documents": len(documents), "top_k": top_k} | estimates, rows)


async def measure_words(encoder: TextEncoder, data: Records[WordPair], top_k: int) -> Figures:
    same = np.array([pair.same for pair in data.lines])
    places = [place for pair in data.lines for place in pair.places]
    majority = max(float(same.mean()), 1 - float(same.mean()))
    record: dict[str, Any] = {"pairs": len(same), "majority": majority}
    rows, subject = {}, f"word-in-context, {len(same):,} pairs"
    cosines = await word_cosines(encoder, data.file.path, places)
    for name, similarities in zip(("contextual", "static"), cosines, strict=True):
        record[name] = sense_figures(similarities, same)
        rows[RowKey(subject, name, "accuracy")] = record[name]["accuracy"]
        rows[RowKey(subject, name, "AUC")] = record[name]["auc"]
    note = f"majority   {majority:.4f} of the pairs of words have the more frequent label"
    return Figures(record, rows, (note,))


def sense_figures(similarities: Values, same: Flags) -> dict[str, Any]:
    """Return the two-fold cross-validated accuracy, each fold's threshold, and the AUC."""
    correct, thresholds = cross_validate(similarities, same)
    accuracy = estimate_mean(correct.astype(np.float64))
    return {"accuracy": accuracy, "thresholds": thresholds, "auc": estimate_auc(similarities, same)}


async def measure_attribution(encoder: TextEncoder, data: Records[AttributionLine], top_k: int) -> Figures:
    """Return the precision@1 by method. Similarity methods only cover lines with a reference."""
    precisions = await rank_words(encoder, data)
    references = precisions.reference_chances
    chance, reference_chance = float(np.mean(precisions.chances)), float(np.mean(references)) if references else None
    methods = {name: estimate_mean(np.array(values)) for name, values in precisions.by_method.items()}
    counts = {name: len(references if name in SIMILARITY_METHODS else data.lines) for name in methods}
    rows = {RowKey(f"attribution, {counts[name]:,} lines", name, "precision@1"): item for name, item in methods.items()}
    notes = [f"chance     {chance:.4f} is the precision@1 of a random order of the words"]
    if reference_chance is not None:
        notes.append(f"chance     {reference_chance:.4f} for the {len(references):,} lines with a reference")
    record: dict[str, Any] = {"lines": len(data.lines), "references": len(references), "chance": chance}
    record |= {"reference_chance": reference_chance, "methods": methods, "omitted": precisions.omitted}
    return Figures(record, rows, tuple(notes), precisions.omitted)


TASKS: dict[str, tuple[Callable[[Path, int], Any], Callable[[TextEncoder, Any, int], Awaitable[Figures]]]] = {
    "sts": (read_similarity, measure_similarity),
    "retrieval": (read_retrieval, measure_retrieval),
    "word_in_context": (read_words, measure_words),
    "attribution": (functools.partial(read_records, kind=AttributionLine), measure_attribution),
}
"""For each task, the functions that read its file and evaluate a model. They raise `TextError`."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of one artifact by task. Tasks without a file are missing."""

    info: ModelInfo
    truncated: int
    """Number of texts over the token limit."""
    files: dict[str, ReadFile]
    tasks: dict[str, Figures]

    def rows(self) -> dict[RowKey, Estimate]:
        return {key: estimate for figures in self.tasks.values() for key, estimate in figures.rows.items()}


def evaluate(settings: Settings, datasets: dict[str, Any], top_k: int) -> Evaluation:
    """Evaluate an artifact on the data of each task. Raises `ArtifactError`, `ConfigError` or `TextError`."""

    async def measure(engine: "Engine") -> Evaluation:
        encoder = TextEncoder(engine, engine.info.name)
        tasks = {name: await TASKS[name][1](encoder, data, top_k) for name, data in datasets.items()}
        files = {name: data.file for name, data in datasets.items()}
        return Evaluation(engine.info, encoder.truncated, files, tasks)

    return run_engine(settings, measure)


class SavedCard(NamedTuple):
    """The artifact's new digest, and the number of saved measures."""

    digest: str
    measures: int


def save_measures(root: Path, evaluated: Manifest, evaluation: Evaluation) -> SavedCard:
    """Save the measures to the artifact's manifest; `evaluated` is the manifest before the evaluation.

    A record replaces the one with the same task, file and measure, and others are kept. Raises `ArtifactError`.
    """
    saved: dict[tuple[str, str, str], EvaluationRecord | None] = {}
    for task, figures in evaluation.tasks.items():
        for key, estimate in figures.rows.items():
            names = {"task": task.replace("_", "-"), "file": evaluation.files[task].path.name}
            names["measure"] = f"{key.measure}, {key.method}" if key.method else key.measure
            # Four decimals, as in the printed table: further digits could differ between runs and change the digest.
            values = {name: value and round(value, 4) for name, value in _record(estimate).items()}
            record = None if estimate.value is None else EvaluationRecord(**names, **values)
            saved[names["task"], names["file"], names["measure"]] = record

    def change(manifest: Manifest) -> Manifest:
        # Keep records that another evaluation has saved in the meantime.
        if manifest.model_copy(update={"evaluations": evaluated.evaluations}) != evaluated:
            raise ArtifactError(f"{root}: changed during the evaluation. Run the command again.")
        records = {(record.task, record.file, record.measure): record for record in manifest.evaluations} | saved
        kept = tuple(record for record in records.values() if record is not None)
        return manifest.model_copy(update={"evaluations": kept})

    digest = update_manifest(root, change)
    return SavedCard(f"sha256:{digest}", sum(record is not None for record in saved.values()))


def evaluation_record(evaluation: Evaluation, baseline: Evaluation | None, saved: SavedCard | None) -> dict[str, Any]:
    """Return the evaluation as JSON, with the baseline and the differences."""
    files = {name: file.to_json() for name, file in evaluation.files.items()}
    own, *others = (
        {"model": model_record(item.info, item.truncated)}
        | {task: _record(item.tasks.get(task, EMPTY).record) or None for task in TASKS}
        for item in (evaluation, baseline)
        if item is not None
    )
    record = {"model": None, "files": files} | own | {"saved": None if saved is None else saved._asdict()}
    if baseline is None:
        return record | {"baseline": None, "difference": None}
    difference = dict.fromkeys(TASKS) | {
        task: _difference(figures.record, baseline.tasks[task].record) for task, figures in evaluation.tasks.items()
    }
    return record | {"baseline": others[0], "difference": difference}


def evaluation_lines(evaluation: Evaluation, baseline: Evaluation | None, saved: SavedCard | None) -> Iterator[str]:
    yield f"model      {describe_model(evaluation.info)}"
    if baseline is not None:
        yield f"baseline   {describe_model(baseline.info)}"
    for name, file in evaluation.files.items():
        rest = "" if file.is_complete else "; the file has more, see --limit"
        yield f"file       {name.replace('_', '-')}: {file.path}, {file.lines_read:,} lines{rest}"
    yield from _notes(evaluation, "")
    if baseline is not None:
        yield from _notes(baseline, "baseline: ")
    for figures in evaluation.tasks.values():
        yield from figures.notes
    yield ""
    yield from _table(evaluation.rows(), None if baseline is None else baseline.rows())
    if saved is not None:
        yield ""
        yield f"saved      {saved.measures} measures; the digest of the artifact is now {saved.digest}"


def _notes(evaluation: Evaluation, prefix: str) -> Iterator[str]:
    if evaluation.truncated:
        yield f"truncated  {prefix}{evaluation.truncated:,} texts to {evaluation.info.max_input_tokens} tokens"
    for figures in evaluation.tasks.values():
        for name, reason in figures.omitted.items():
            yield f"omitted    {prefix}{name}: {reason}"


def _table(rows: dict[RowKey, Estimate], baseline: dict[RowKey, Estimate] | None) -> Iterator[str]:
    task, measure = (max(map(len, column)) + 2 for column in zip(*map(_labels, rows), strict=True))
    header = f"{'task':<{task}}{'measure':<{measure}}{'value':>9}   {'95% interval':<18}"
    if baseline is not None:
        header += f"{'baseline':>11}{'difference':>13}   95% interval"
    yield header.rstrip()
    for key, estimate in rows.items():
        name, unit = _labels(key)
        line = f"{name:<{task}}{unit:<{measure}}"
        if baseline is None and estimate.value is None:
            line += "not defined, because all similarities are equal"
        elif baseline is None:
            line += f"{_number(estimate.value)}   {_interval(estimate)}"
        else:
            other = baseline.get(key, Estimate())
            difference = estimate.minus(other)
            line += f"{_number(estimate.value)}   {_interval(estimate):<18}"
            line += f"{_number(other.value):>11}{_number(difference.value):>13}   {_interval(difference)}"
        yield line.rstrip()


def _labels(key: RowKey) -> tuple[str, str]:
    return (f"{key.subject}, {key.method}" if key.method else key.subject), key.measure


def _number(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.4f}':>9}"


def _interval(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return "not defined" if estimate.low is None else f"{estimate.low:.4f} to {estimate.high:.4f}"


def _record(figures: Any) -> Any:
    """Return figures as JSON; keys have underscores instead of spaces."""
    if isinstance(figures, Estimate):
        return {"value": figures.value, "low": figures.low, "high": figures.high}
    if isinstance(figures, dict):
        return {name.replace(" ", "_"): _record(value) for name, value in figures.items()}
    return figures


def _difference(figures: Any, baseline: Any) -> Any:
    """Return the difference of each measure as JSON, leaving out measures that the baseline lacks."""
    if isinstance(figures, Estimate):
        return _record(figures.minus(baseline))
    if not isinstance(figures, dict):
        return None
    pairs = {name: (value, baseline[name]) for name, value in figures.items() if name in baseline}
    differences = {name.replace(" ", "_"): _difference(*pair) for name, pair in pairs.items()}
    return {name: value for name, value in differences.items() if value} or None


DEFAULT_TOP_K = 10
DEFAULT_LIMIT = 10_000
MAX_LIMIT = 100_000

DESCRIPTION = """\
Evaluate an artifact on your labeled texts: correlation with similarity scores (STS), document retrieval, word senses
in context, and attention to the words that decide a sense. Files have one JSON object per line. Unknown fields are
ignored."""
EPILOG = f"""\
lines of --sts:              {{"text1": "...", "text2": "...", "score": 4.5}}
lines of --retrieval:        {{"query": "...", "positive": ["...", "..."]}} or {{"document": "..."}}
lines of --word-in-context:  {{"text1": "...", "word_index1": 4, "text2": "...", "start2": 8, "end2": 12, "same": true}}
lines of --attribution:      {{"text": "...", "word_index": 4, "deciding_index": [1, 2], "reference": "..."}}

Only the first {DEFAULT_LIMIT:,} lines are read unless --limit is set, so shuffle sorted files. Retrieving Q queries
from N distinct documents (at most {MAX_DOCUMENTS:,}) takes 4 * (Q + N) * D bytes for D dimensions, Q * N * D
multiplications, and sorting Q * N values. On two cores with 384 dimensions and {MAX_LIMIT:,} lines, the largest limit,
the search takes about 7 minutes and the intervals of --sts a minute, not counting the time to encode the texts.
--attribution encodes each text 8 times for its maps, once per left-out word, and once more per word of a text and its
reference. This takes about 1 minute of CPU time per 300 lines of 12 words, and 6 hours for the largest limit, so set
--limit.

--baseline measures a second artifact on the same files in the same precision. Differences are DIR minus baseline, with
paired intervals. --save writes the measures to manifest.json, which changes the digest (docs/evaluation.md).

example: attendant evaluate models/tuned --baseline models/base --retrieval queries.jsonl
example: attendant evaluate models/m --sts sts.jsonl --retrieval queries.jsonl --top-k 5 --word-in-context words.jsonl
"""


def run(arguments: Sequence[str]) -> int:
    """Print the measures and return the exit status. Raises `ArtifactError`, `ConfigError` or `TextError`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    paths: dict[str, Path] = {task: path for task in TASKS if (path := getattr(options, task)) is not None}
    if not paths:
        names = ", ".join(f"--{task.replace('_', '-')}" for task in TASKS)
        parser.error(f"{names}: all missing. Set at least one")
    if options.top_k is not None and options.retrieval is None:
        parser.error("--top-k: set without --retrieval. Remove it")
    # Run every check that can fail early before loading the first model.
    directories = [options.directory, *([] if options.baseline is None else [options.baseline])]
    artifact, *_ = [Artifact.open(directory) for directory in directories]
    if options.save:
        check_writable(artifact.root)
    settings = load_settings()
    changes = {"model_digest": None, "precision": options.precision or settings.precision}
    datasets = {task: TASKS[task][0](path, options.limit) for task, path in paths.items()}
    top_k = options.top_k or DEFAULT_TOP_K
    if "retrieval" in datasets:
        _check_top_k(parser, top_k, datasets["retrieval"])
    evaluation, *others = (
        evaluate(settings.model_copy(update=changes | {"model_dir": directory}), datasets, top_k)
        for directory in directories
    )
    baseline = others[0] if others else None
    saved, failure = None, None
    if options.save:
        try:
            saved = save_measures(artifact.root, artifact.manifest, evaluation)
        except ArtifactError as error:  # raised after the measures have been printed
            failure = error
    if options.json:
        print(orjson.dumps(evaluation_record(evaluation, baseline, saved), option=orjson.OPT_INDENT_2).decode())
    else:
        for line in evaluation_lines(evaluation, baseline, saved):
            print(line)
    if failure is not None:
        raise failure
    return 0


def _parser() -> Parser:
    parser = Parser("attendant evaluate", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="directory of the artifact")
    add("--sts", type=Path, metavar="FILE", help="pairs of texts with similarity scores")
    add("--retrieval", type=Path, metavar="FILE", help="queries with relevant documents, and further documents")
    add(
        "--word-in-context",
        type=Path,
        metavar="FILE",
        help="pairs of texts with a word, and whether its sense is equal",
    )
    add("--attribution", type=Path, metavar="FILE", help="texts with a word and those that decide its sense")
    add("--top-k", type=integer(1, 1000), metavar="K",
        help=f"documents per query for recall (default: {DEFAULT_TOP_K})")  # fmt: skip
    add("--limit", type=integer(1, MAX_LIMIT), default=DEFAULT_LIMIT, metavar="N",
        help=f"lines to read per file, at most {MAX_LIMIT:,} (default: {DEFAULT_LIMIT:,})")  # fmt: skip
    add("--precision", choices=PRECISIONS, help="precision (default: ATTENDANT_PRECISION)")
    add("--baseline", type=Path, metavar="DIR", help="artifact to compare with; prints paired differences")
    add("--save", action="store_true", help="save the measures to the manifest of DIR, which changes its digest")
    add("--json", action="store_true", help="print JSON")
    return parser


def _check_top_k(parser: Parser, top_k: int, data: RetrievalData) -> None:
    """Require more documents than `top_k`; otherwise the recall of any model is 1."""
    count = len(data.documents)
    if count < 2:
        raise TextError(f"{data.file.path}: too few distinct documents ({count}, limit 2). Add documents.")
    if top_k >= count:
        parser.error(f"--top-k: too many for the documents ({top_k}, limit {count - 1}). Reduce it or add documents")
