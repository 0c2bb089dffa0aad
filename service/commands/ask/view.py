"""Renders words, neighbors and a map, with colors on a terminal and as plain text elsewhere."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from service.commands.ask.analysis import Analysis

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


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the caller handle the error; rich would exit with status 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Return a console for stdout. It has no colors if NO_COLOR is set or stdout is not a terminal."""
    return _Console(highlight=False, soft_wrap=False)


def show_words(console: Console, analysis: Analysis, max_tokens: int) -> None:
    """Print the words, with a bar between the tokens of a word."""
    count = f"{_count(len(analysis.words), 'word')}, {analysis.token_count:,} tokens with special ones"
    note = f", truncated to {max_tokens} tokens" if analysis.truncated else ""
    console.print(Text(f"Words ({count}{note})", style="bold"))
    shown = " ".join("|".join(word) for word in analysis.words[:MAX_WORDS])
    further = len(analysis.words) - MAX_WORDS
    console.print(Text(_printable(shown) + (f" ... and {_count(further, 'further word')}" if further > 0 else "")))


def show_neighbors(console: Console, neighbors: Sequence[tuple[float, str, str]], total: int, note: str) -> None:
    """Print neighbors, best first: cosine similarity, label and text."""
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


def show_map(console: Console, analysis: Analysis, kind: str) -> None:
    """Print the map as colored cells on a terminal, as percentages elsewhere. Words that do not fit are left out."""
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
    matrix = analysis.matrix if analysis.layer is None else to_shares(analysis.matrix, kind)
    shares = matrix[:shown, :shown]  # a rollout consists of shares, whatever its kind
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


def to_shares(matrix: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    """Return each row as shares: norms are divided by their row sum; other kinds are already shares."""
    if kind in ("norm", "block_norm"):
        sums = matrix.sum(1, keepdims=True)
        matrix = np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)
    return matrix


def _style(value: float) -> Style:
    """Return the text and background colors for a value, clamped to [-1, 1]."""
    red, green, blue = POSITIVE if value >= 0 else NEGATIVE
    strength = min(abs(value), 1.0)
    shade = [round(255 - strength * (255 - part)) for part in (red, green, blue)]
    return Style(color="rgb(0,0,0)", bgcolor="rgb({},{},{})".format(*shade))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shorten(name: str) -> str:
    text = Text(_printable(name))
    text.truncate(NAME_WIDTH, overflow="ellipsis")
    return text.plain


def _printable(text: str) -> str:
    """Replace line breaks and control characters, which would break the layout, with spaces."""
    return "".join(character if character.isprintable() else " " for character in text)
