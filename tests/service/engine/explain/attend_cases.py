"""Attend tasks for the default model and decoded results, for the attention map tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from attendant_client.types import Array, AttendRequest, AttendResult, AttentionMap, Input, SparseMatrix
from numpy.typing import NDArray

from model.artifact.manifest import Manifest
from model.artifact.tokenizer import Offsets, Tokenizer
from service.engine.layers import ArtifactLayers, Layer
from service.engine.model_loader import LoadedModel
from service.operations.attend import AttendTask, check_attend
from service.operations.inputs import Call, tokenizer_inputs
from service.operations.units import find_units

Floats = NDArray[Any]
CHEQUE = "He cashed a check at the bank."
SPANS = ((25, 29), (3, 9), (12, 17))
PASSAGE = (
    "The ferry left the harbour before the sun was up, and the two sisters stood at the rail with their collars "
    "turned against the wind. Nobody spoke. A gull followed them as far as the lighthouse, where the water changes "
    "from green to a heavy grey, and then it wheeled round and went home. The younger one had packed bread, cheese and "
    "a jar of plums; the older one had packed nothing but letters, forty of them, tied with kitchen string. At noon "
    "the engineer came on deck, wiped his hands on a rag and told them that the island's only shop would be closed, as "
    "it was every Thursday, so they had better be polite to the baker's wife."
)


@dataclass
class AttendCase:
    """A request with one input, and the task that the engine creates for it."""

    request: AttendRequest
    task: AttendTask
    layers: Sequence[Layer]

    def run(self, hidden: Floats) -> AttendResult:
        """Return the result for these hidden states, (L+1, T, D)."""
        return compute(self.task, hidden, self.layers)


def compute(task: AttendTask, hidden: Floats, layers: Sequence[Layer]) -> AttendResult:
    """Return the maps of a task with these layers."""
    return task.compute(hidden, SimpleNamespace(layers=layers))  # type: ignore[arg-type]


@dataclass
class AttendFactory:
    """Creates tasks for the default model and runs them."""

    model: LoadedModel
    manifest: Manifest

    @cached_property
    def layers(self) -> Sequence[Layer]:
        return ArtifactLayers(self.model.artifact, 1)

    def case(self, text: str = CHEQUE, pair: str | None = None, wire: Any = None, **fields: Any) -> AttendCase:
        """Create a case. Raises `InvalidArgument` for requests that `check_attend` rejects."""
        spans: tuple[Offsets, ...] = SPANS if fields.get("unit") == "span" else ()
        item = Input(text, pair, spans)
        request = AttendRequest((item,), **fields)
        call = Call(wire=wire or ("base64" if request.encoding_format == "base64" else "json"))
        spec = check_attend(request, call, self.manifest)
        tokenizer: Tokenizer = self.model.tokenizer
        (tokens,) = tokenizer.encode(tokenizer_inputs([item]))
        units = find_units(item, tokens, tokenizer.token_texts(tokens), request, "inputs[0]")
        return AttendCase(request, AttendTask(tokens, units, spec, request, call), self.layers)

    def run(self, case: AttendCase) -> AttendResult:
        assert self.model.explain is not None
        (result,) = self.model.explain.run([case.task])
        assert isinstance(result, AttendResult)
        return result


def map_values(attention_map: AttentionMap) -> Array:
    if attention_map.sparse is not None:
        return attention_map.sparse.values
    assert attention_map.matrix is not None
    return attention_map.matrix


def decoded(array: Array) -> NDArray[np.float64]:
    """Decode an array like a client would."""
    values = array.astype(np.float64)
    return (values / 255) ** 2 if array.dtype == np.uint8 else values


def stacked(result: AttendResult) -> NDArray[np.float64]:
    return np.stack([decoded(map_values(attention_map)) for attention_map in result.maps])


def layers_and_heads(result: AttendResult) -> list[tuple[int | None, int | None]]:
    return [(attention_map.layer, attention_map.head) for attention_map in result.maps]


def dense(sparse: SparseMatrix, columns: Sequence[int]) -> NDArray[np.float64]:
    values = decoded(sparse.values)
    column_of_unit = {unit: column for column, unit in enumerate(columns)}
    full = np.zeros((len(sparse.indptr) - 1, len(columns)))
    for row, (start, end) in enumerate(pairwise(sparse.indptr)):
        for entry in range(start, end):
            full[row, column_of_unit[sparse.indices[entry]]] = values[entry]
    return full
