"""The operations of the explain lane: from the hidden states of a text to the result of its task."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from service.engine.encode.pooling import Floats
from service.engine.encode.response import layer_vectors
from service.engine.explain.attend import attention_maps
from service.engine.explain.compare import occurrence_vectors
from service.engine.explain.maps import Layer
from service.engine.explain.words import Predict, layer_words
from service.engine.schema.tasks import ExplainOperation, ExplainTask


class ExplainOperations:
    """Executes tasks by their operation, with the model's L layers and, if it has one, its masked-LM head."""

    def __init__(self, layers: Sequence[Layer], predict: Predict | None = None) -> None:
        self._operations: dict[ExplainOperation, Callable[[Any, Floats], Any]] = {
            "layers": layer_vectors,
            "maps": partial(attention_maps, layers=layers),
            "occurrences": partial(occurrence_vectors, layers=layers),
        }
        if predict is not None:
            self._operations["words"] = layer_words(predict)

    def __call__(self, task: ExplainTask, hidden: Floats) -> Any:
        """Return the result of a task; `hidden` is (L+1, T, D)."""
        return self._operations[task.operation](task, hidden)
