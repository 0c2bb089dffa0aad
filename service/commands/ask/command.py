"""`attendant ask`: a text's words, neighbors and attention map."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np

from model.artifact.console import EX_DATAERR
from service.commands.arguments import CommandError, Parser, import_extra, integer
from service.commands.ask.analysis import MapKind, analyze
from service.commands.lines import LabeledText, TextError, TextFile
from service.commands.neighbors import Floats, Vectors, normalize, top_neighbors
from service.commands.vector_sources import VectorOptions, VectorSource, open_source

COMMAND = "attendant ask"
MAX_LINES = 100_000
"""Maximum number of lines read from --among. Embedding them takes about a minute on two cores."""
DESCRIPTION = """\
Show how the model sees a text: its words and their tokens, its nearest neighbors among other texts by the cosine
similarity of their embeddings, and how much each word contributes to the vectors of the other words."""
EPILOG = f"""\
The map is colored on a terminal; elsewhere, or if NO_COLOR is set, it shows numbers. docs/maps.md describes the kinds.
Texts over the model's token limit are truncated at the end. At most {MAX_LINES:,} lines of FILE are read.

Engine options come from the environment (ATTENDANT_MODEL_DIR, ATTENDANT_PRECISION, ...).

examples:
  attendant ask "river bank flows" "money bank grows" "a boat on the water"
  attendant ask "He cashed a check at the bank." --rollout
  attendant ask "river bank flows" --among texts.txt --top-k 3 --server http://127.0.0.1:8080
"""


def run(arguments: list[str]) -> int:
    """Print the analysis and return the exit status. Raises `ConfigError` or `ArtifactError`."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if options.rollout and options.layer is not None:
        parser.error("--layer: not supported with --rollout, which combines all layers. Remove one of them")
    parser.check_source_options(options)
    try:
        view = import_extra("service.commands.ask.view", "data", "rich")
        among, note = _read_texts(options)
        asyncio.run(_ask(options, view, among, note))
    except CommandError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return error.status
    return 0


async def _ask(options: argparse.Namespace, view: ModuleType, among: list[LabeledText], note: str) -> None:
    async with open_source(options, VectorOptions(options.model)) as source:
        layer = -1 if options.layer is None and not options.rollout else options.layer
        analysis = await analyze(source, options.text, options.kind, layer)
        texts = [("TEXT", options.text), *among]
        vectors = normalize(await _embed(source, texts), "cosine") if among else None
    console = view.make_console()
    view.show_words(console, analysis, source.info.max_input_tokens)
    if vectors is not None:
        search = Vectors(vectors[1:], vectors[:1])
        (indices,) = top_neighbors(search, min(options.top_k, len(among)))
        similarities = search.block_similarities(slice(0, 1))[0]
        neighbors = [(float(similarities[index]), *among[index]) for index in indices]
        view.show_neighbors(console, neighbors, len(among), note)
    view.show_map(console, analysis, options.kind)


async def _embed(source: VectorSource, texts: Sequence[LabeledText]) -> Floats:
    """Return the embeddings of labeled texts, (N, D). Raises `CommandError`."""
    vectors = []
    for start in range(0, len(texts), source.batch_rows):
        batch = texts[start : start + source.batch_rows]
        for (label, _), result in zip(batch, await source.encode([text for _, text in batch]), strict=True):
            if result.vector is None:
                raise CommandError(f"{label}: {result.error}", EX_DATAERR)
            vectors.append(result.vector)
    return np.stack(vectors)


def _read_texts(options: argparse.Namespace) -> tuple[list[LabeledText], str]:
    """Return labeled texts to compare with, and a note if some lines were not read."""
    texts = [(f"text {number}", text) for number, text in enumerate(options.others, start=1)]
    if options.among is None:
        return texts, ""
    try:
        file = TextFile.read(options.among, MAX_LINES)
    except TextError as error:
        raise CommandError(str(error), EX_DATAERR) from None
    note = "" if file.is_complete else f" (only the first {MAX_LINES:,} lines of {options.among.name})"
    return texts + file.labeled, note


def _parser() -> Parser:
    parser = Parser(COMMAND, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("text", metavar="TEXT", help="text to analyze")
    add("others", nargs="*", default=[], metavar="OTHER", help="text to compare it with")
    add("--among", type=Path, metavar="FILE", help="further texts to compare it with, one per line")
    add("--top-k", type=integer(1, 1000), default=5, metavar="N", help="number of neighbors to show (default: 5)")
    add("--kind", choices=get_args(MapKind), default="projection", help="kind of map (default: projection)")
    layer = integer(-1000, 1000, "Use 1 for the first layer, or -1 for the last one")
    add("--layer", type=layer, metavar="N", help="layer of the map (default: -1, the last)")
    add("--rollout", action="store_true", help="combine all layers by attention rollout instead of showing one")
    parser.add_source_options()
    return parser
