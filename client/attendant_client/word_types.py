"""The response of fill-mask."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """An entry of the vocabulary and its probability among all entries."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, slots=True)
class LayerPredictions:
    """The predictions of one layer, 0 to L, most probable first."""

    layer: int
    predictions: list[Prediction]


@dataclass(frozen=True, slots=True)
class FilledPosition:
    """A token of an input: its index, and characters [start, end) of a segment, 0 for the text or 1 for its pair."""

    position: int
    start: int
    end: int
    segment: int
    layers: list[LayerPredictions]


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The predicted tokens of one input, in the order of the text."""

    token_count: int
    truncated: bool
    positions: list[FilledPosition]


@dataclass(frozen=True, slots=True)
class FillMaskResponse:
    """One result per input, in input order."""

    model: str
    precision: str
    results: list[FillMaskResult]
    token_count: int
    truncated_inputs: int
