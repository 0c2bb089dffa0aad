"""A text's words and map."""

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from model.artifact.console import EX_DATAERR
from service.commands.arguments import CommandError
from service.commands.vector_sources import SourceError, VectorSource, to_array
from service.engine.schema.explain import HeadReduce

MapKind = Literal["probs", "norm", "block_norm", "projection"]
HEAD_REDUCES: dict[MapKind, HeadReduce] = {"probs": "mean", "norm": "sum", "block_norm": "none", "projection": "none"}
"""Kinds whose values are shares or norms, and how their heads are combined into one map."""


@dataclass(frozen=True)
class Analysis:
    """A text as the model sees it.

    Attributes:
        words: The token texts of each word.
        token_count: Number of tokens, including special tokens.
        truncated: Whether tokens at the end were dropped.
        units: Words of the map.
        matrix: Contribution of each word (column) to each word (row), (W, W).
        layer: Layer of the map, from 1, or None for the rollout of all layers.
    """

    words: list[list[str]]
    token_count: int
    truncated: bool
    units: list[str]
    matrix: NDArray[Any]
    layer: int | None


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
            message = "TEXT" + error.message.removeprefix("inputs[0]").removeprefix("inputs")
            raise CommandError(message, EX_DATAERR) from None
        error.message = error.message.replace("layers[0]", "--layer", 1)
        raise error.to_command_error() from None
    words: list[list[str]] = [[] for _ in encoded.words]
    for token in encoded.tokens:
        if token.word_index is not None:
            words[token.word_index].append(token.text)
    (only,) = attended.maps
    units = [attended.units[row].text for row in attended.rows]
    return Analysis(words, encoded.token_count, encoded.truncated, units, to_array(only.matrix), only.layer)
