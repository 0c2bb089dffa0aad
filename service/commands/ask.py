"""`attendant ask`: a text's words, neighbors and attention map, with colors on a terminal, as plain text elsewhere."""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from attendant_client.types import HeadReduce
from numpy.typing import NDArray

from model.artifact.console import EX_DATAERR
from service.commands.arguments import CommandError, Parser, import_extra, integer
from service.commands.labeled_texts import LabeledText, TextFile, label_argument
from service.commands.measures import Floats, Vectors, normalize, top_neighbors
from service.commands.sources import SourceError, VectorOptions, VectorSource, open_source

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style

MapKind = Literal["probs", "norm", "block_norm", "projection"]
HEAD_REDUCES: dict[MapKind, HeadReduce] = {"probs": "mean", "norm": "sum", "block_norm": "none", "projection": "none"}
"""Map kinds whose values are shares or norms, and how to combine their heads."""


@dataclass(frozen=True)
class Analysis:
    """A text as the model sees it. `words` are the tokens of each word, and `units` the words of the map."""

    words: list[list[str]]
    token_count: int
    truncated: bool
    units: list[str]
    matrix: NDArray[Any]
    """Contribution of each word (column) to each word (row), (W, W)."""
    layer: int | None
    """Layer of the map, from 1, or None for the rollout of all layers."""


async def analyze(source: VectorSource, text: str, kind: MapKind, layer: int | None) -> Analysis:
    """Analyze a text, truncating it at the end; `layer` None selects the rollout of all layers.

    Raises `CommandError`.
    """
    layers: dict[str, Any] = {"layer_reduce": "rollout"} if layer is None else {"layers": (layer,)}
    try:
        (encoded,) = await source.run("encode", [text], outputs=("tokens", "words"))
        (attended,) = await source.run(
            "attend", [text], kind=kind, head_reduce=HEAD_REDUCES[kind], unit="word", special_tokens="drop", **layers
        )
    except SourceError as error:
        if error.field is not None and error.field.startswith("inputs"):
            message = "TEXT" + str(error).removeprefix("inputs[0]").removeprefix("inputs")
            raise CommandError(message, EX_DATAERR) from None
        raise CommandError(str(error).replace("layers[0]", "--layer", 1), error.status) from None
    words: list[list[str]] = [[] for _ in encoded.words]
    for token in encoded.tokens:
        if token.word_index is not None:
            words[token.word_index].append(token.text)
    (only,) = attended.maps
    units = [attended.units[row].text for row in attended.rows]
    return Analysis(words, encoded.token_count, encoded.truncated, units, np.asarray(only.matrix), only.layer)


NAME_WIDTH = 16
"""Width of the word labels next to the map, in characters. Longer words are cut off."""
CELL_WIDTH = 4
PADDING = 2
"""Spaces between the columns of the neighbor table."""
MAX_WORDS = 200
MAX_CHARACTERS = 1000
"""Maximum length of a neighbor's text; no terminal is wider."""
POSITIVE, NEGATIVE = (230, 120, 20), (40, 110, 220)
"""Colors of the largest magnitudes as RGB, 0 to 255."""


def make_console() -> "Console":
    """Return a console for stdout. It has no colors if NO_COLOR is set or stdout is not a terminal."""
    from rich.console import Console

    class CommandConsole(Console):
        def on_broken_pipe(self) -> None:
            """Let the caller handle the error; rich would exit with status 1."""
            raise BrokenPipeError

    return CommandConsole(highlight=False, soft_wrap=False)


def show_words(console: "Console", analysis: Analysis, max_tokens: int) -> None:
    """Print the words, with a bar between the tokens of a word."""
    from rich.text import Text

    count = f"{_count(len(analysis.words), 'word')}, {analysis.token_count:,} tokens with special ones"
    note = f", truncated to {max_tokens} tokens" if analysis.truncated else ""
    console.print(Text(f"Words ({count}{note})", style="bold"))
    shown = " ".join("|".join(word) for word in analysis.words[:MAX_WORDS])
    further = len(analysis.words) - MAX_WORDS
    console.print(Text(_printable(shown) + (f" ... and {_count(further, 'further word')}" if further > 0 else "")))


def show_neighbors(console: "Console", neighbors: Sequence[tuple[float, str, str]], total: int, note: str) -> None:
    """Print neighbors, best first: cosine similarity, label and text."""
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(f"Nearest of {_count(total, 'text')}{note}", style="bold"))
    table = Table(box=None, padding=(0, PADDING, 0, 0), show_header=True, header_style="")
    # Only shrink the text column; rich would shrink all of them equally.
    widths = {"cosine": len("cosine"), "place": max(len(item) for item in ("place", *(row[1] for row in neighbors)))}
    for name, width in widths.items():
        table.add_column(name, justify="right" if name == "cosine" else "left", no_wrap=True, min_width=width)
    remaining = max(1, console.width - sum(widths.values()) - PADDING * (len(widths) + 1))
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=remaining)
    for cosine, label, text in neighbors:
        table.add_row(f"{cosine:.3f}", label, Text(_printable(text[:MAX_CHARACTERS])))
    console.print(table)


def show_map(console: "Console", analysis: Analysis, kind: str) -> None:
    """Print the map as colored cells on a terminal, as percentages elsewhere. Words that do not fit are left out."""
    from rich.text import Text

    names = [_shorten(name) for name in analysis.units]
    width = max((Text(name).cell_len for name in names), default=0)
    digits = len(str(len(names)))
    fitting = max(1, (console.width - digits - width - 2) // CELL_WIDTH)
    shown = min(len(names), fitting)
    cut = "" if shown == len(names) else f", first {shown} of {len(names)} words"
    layer = "rollout of all layers" if analysis.layer is None else f"layer {analysis.layer}"
    console.print()
    console.print(Text(f"Contributions ({kind}, {layer}{cut})", style="bold"))
    console.print(Text("Row: a word. Column, by its number: a word that contributes to it. In percent."))
    console.print(Text(" " * (digits + width + 2) + "".join(f"{index:>{CELL_WIDTH}}" for index in range(1, shown + 1))))
    matrix = analysis.matrix
    if kind in ("norm", "block_norm") and analysis.layer is not None:  # other kinds and rollouts consist of shares
        sums = matrix.sum(1, keepdims=True)
        matrix = np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)
    shares = matrix[:shown, :shown]
    others = np.abs(shares[~np.eye(shown, dtype=bool)])
    # A word contributes most to itself. If it set the scale, the other words would all look the same.
    largest = max(float(others.max(initial=0.0)), 1e-9)
    colored = console.is_terminal and not console.no_color and console.color_system is not None
    for row in range(shown):
        line = Text(f"{row + 1:>{digits}} {names[row]}")
        line.pad_right(digits + width + 2 - line.cell_len)
        for share in shares[row]:
            text = f"{100 * share:>{CELL_WIDTH}.0f}".replace("-0", " 0")
            line.append(text, _style(float(share) / largest) if colored else None)
        console.print(line, no_wrap=True)


def _style(value: float) -> "Style":
    """Return the text and background colors for a value, clamped to [-1, 1]."""
    from rich.style import Style

    red, green, blue = POSITIVE if value >= 0 else NEGATIVE
    strength = min(abs(value), 1.0)
    shade = [round(255 - strength * (255 - part)) for part in (red, green, blue)]
    return Style(color="rgb(0,0,0)", bgcolor="rgb({},{},{})".format(*shade))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shorten(name: str) -> str:
    from rich.text import Text

    text = Text(_printable(name))
    text.truncate(NAME_WIDTH, overflow="ellipsis")
    return text.plain


def _printable(text: str) -> str:
    """Replace line breaks and control characters, which would break the layout, with spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


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
    """Print the analysis and return the exit status. Raises `ConfigError`, `ArtifactError` or `CommandError`."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if options.rollout and options.layer is not None:
        parser.error("--layer: not supported with --rollout, which combines all layers. Remove one of them")
    parser.check_source_options(options)
    import_extra("rich", "data", "rich")
    among, note = _read_texts(options)
    asyncio.run(_ask(options, among, note))
    return 0


async def _ask(options: argparse.Namespace, among: list[LabeledText], note: str) -> None:
    async with open_source(options, VectorOptions(options.model)) as source:
        layer = -1 if options.layer is None and not options.rollout else options.layer
        analysis = await analyze(source, options.text, options.kind, layer)
        texts = [("TEXT", options.text), *among]
        vectors = normalize(await _embed(source, texts), "cosine") if among else None
    console = make_console()
    show_words(console, analysis, source.info.max_input_tokens)
    if vectors is not None:
        search = Vectors(vectors[1:], vectors[:1])
        (indices,) = top_neighbors(search, min(options.top_k, len(among)))
        similarities = search.block_similarities(slice(0, 1))[0]
        neighbors = [(float(similarities[index]), *among[index]) for index in indices]
        show_neighbors(console, neighbors, len(among), note)
    show_map(console, analysis, options.kind)


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
    label_argument("TEXT", options.text)
    texts = [label_argument(f"text {number}", text) for number, text in enumerate(options.others, start=1)]
    if options.among is None:
        return texts, ""
    file = TextFile.read(options.among, MAX_LINES)
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
