"""Requests and responses of fill-mask."""

from dataclasses import dataclass

from service.engine.schema.encode import Input, Timing, Truncation, Wire


@dataclass(frozen=True, slots=True)
class FillMaskRequest:
    """A fill-mask request, as docs/api.md describes it. Other fields are as in `EncodeRequest`.

    Attributes:
        position: The index of the token to predict, in each input; None selects the mask tokens.
        top_k: The number of predictions per position and layer; None selects 5, or all targets.
        targets: The only entries of the vocabulary to return, each an entry or a text of one token; None selects all.
        returned_bytes: The size of what the adapter adds to the response.
    """

    inputs: tuple[Input, ...]
    position: int | None = None
    layers: tuple[int, ...] | None = (-1,)
    top_k: int | None = None
    targets: tuple[str, ...] | None = None
    returned_bytes: int = 0
    truncation: Truncation = "error"
    wire: Wire = "json"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """An entry of the vocabulary and its probability among all entries."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, slots=True)
class LayerPredictions:
    """The predictions of one layer, 0..L, most probable first."""

    layer: int
    predictions: list[Prediction]


@dataclass(frozen=True, slots=True)
class FilledPosition:
    """A token of an input: its index, its characters [start, end) of a segment, and its predictions."""

    position: int
    start: int
    end: int
    segment: int
    layers: list[LayerPredictions]


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    token_count: int
    truncated: bool
    positions: list[FilledPosition]


@dataclass(frozen=True, slots=True)
class FillMaskResponse:
    model: str
    precision: str
    results: list[FillMaskResult]
    token_count: int
    truncated_inputs: int
    timing: Timing
