"""`attendant evaluate`: evaluates an artifact on your labeled texts."""

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from model.artifact.console import EX_DATAERR
from model.artifact.files import Artifact, ArtifactError, check_writable
from service.commands.arguments import PRECISIONS, Parser, integer
from service.commands.evaluate.datasets import MAX_DOCUMENTS, RetrievalData
from service.commands.evaluate.model_card import save_measures
from service.commands.evaluate.report import evaluation_lines, evaluation_record
from service.commands.evaluate.tasks import TASKS, evaluate
from service.commands.lines import TextError
from service.config import load_settings

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

--baseline measures a second artifact after the first, on the same files and in the same precision. Differences are DIR
minus baseline. Their intervals are paired: each resample has the same lines or queries for both.

--save writes the measures to manifest.json, replacing those with the same task, file name and measure. If you pin
ATTENDANT_MODEL_DIGEST, set it to the new digest. After a crash, either the old or the new manifest is left, and both
are valid. A running server keeps using the manifest it loaded.

example: attendant evaluate models/tuned --baseline models/base --retrieval queries.jsonl
example: attendant evaluate models/m --sts sts.jsonl --retrieval queries.jsonl --top-k 5 --word-in-context words.jsonl
"""


def run(arguments: Sequence[str]) -> int:
    """Print the measures and return the exit status.

    Raises `ArtifactError` or `ConfigError`, or `SystemExit` for a usage error.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    paths: dict[str, Path] = {task: path for task in TASKS if (path := getattr(options, task)) is not None}
    if not paths:
        names = ", ".join(f"--{task.replace('_', '-')}" for task in TASKS)
        parser.error(f"{names}: all missing. Set at least one")
    # Run every check that can fail early before loading the first model.
    directories = [options.directory, *([] if options.baseline is None else [options.baseline])]
    artifact, *_ = [Artifact.open(directory) for directory in directories]
    if options.save:
        check_writable(artifact.root)
    settings = load_settings()
    changes = {"model_digest": None, "precision": options.precision or settings.precision}
    try:
        datasets = {task: TASKS[task][0](path, options.limit) for task, path in paths.items()}
        if "retrieval" in datasets:
            _check_top_k(parser, options.top_k, datasets["retrieval"])
        evaluation, *others = (
            evaluate(settings.model_copy(update=changes | {"model_dir": directory}), datasets, options.top_k)
            for directory in directories
        )
    except TextError as error:
        print(f"attendant evaluate: {error}", file=sys.stderr)
        return EX_DATAERR
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
    description = "pairs of texts with a word, and whether it has the same sense"
    add("--word-in-context", type=Path, metavar="FILE", help=description)
    description = "texts with a word, the words that decide its sense, and a text to compare with"
    add("--attribution", type=Path, metavar="FILE", help=description)
    add("--top-k", type=integer(1, 1000), default=10, metavar="K", help="documents per query for recall (default: 10)")
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
        parser.error(
            f"--top-k: must be less than the number of documents ({top_k}, limit {count - 1}). "
            "Reduce it or add documents"
        )
