"""Words that a masked-LM head predicts from the hidden states of several layers (nostalgebraist 2020, "logit lens")."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from model.artifact.tokenizer import TokenizedInput
from service.engine.encode.pooling import Floats
from service.engine.schema.tasks import ExplainOperation, PredictedWords, WordQuery


@dataclass(frozen=True, slots=True)
class WordTask:
    """One tokenized input of the explain lane, for words at the layers `layers`, 0..L."""

    operation: ClassVar[ExplainOperation] = "words"

    tokens: TokenizedInput
    query: WordQuery
    layers: tuple[int, ...]


class Predict(Protocol):
    """Returns the words of a query, given the hidden states (T, D) of a layer."""

    def __call__(self, hidden: Floats, query: WordQuery, *, last_layer: bool) -> PredictedWords: ...


def layer_words(predict: Predict) -> Callable[[WordTask, Floats], list[PredictedWords]]:
    """Return the operation: the words of a task in each of its layers; the hidden states are (L+1, T, D)."""

    def predict_layers(task: WordTask, hidden: Floats) -> list[PredictedWords]:
        last = len(hidden) - 1
        return [predict(hidden[layer], task.query, last_layer=layer == last) for layer in task.layers]

    return predict_layers
