"""Tasks of the explain lane are plain data: they can be sent to another process and give the same result there."""

import pickle
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from attendant_client.types import AttendRequest, Input, Occurrence

from model.artifact.tokenizer import TokenizerInput
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.tasks import ExplainTask
from service.operations.attend import check_attend, prepare
from service.operations.compare import CompareTask, find_occurrence
from service.operations.encode import LayerTask
from service.operations.inputs import Call
from service.operations.units import word_units
from tests.service.engine.explain.attend_cases import CHEQUE, PASSAGE, AttendFactory

MAX_BYTES_PER_TOKEN = 1500
"""Tokens, words and the matrix of units; the weights of one block are 7 MB."""


def maps_task(factory: AttendFactory, text: str) -> ExplainTask:
    return factory.case(text, kind="norm", unit="word", top_k=3).task


def layer_task(factory: AttendFactory, text: str) -> ExplainTask:
    (tokens,) = factory.model.tokenizer.encode([TokenizerInput(text)])
    return LayerTask(tokens, "mean", True, 0, (0, 3, 6))


def compare_task(factory: AttendFactory, text: str) -> ExplainTask:
    tokenizer = factory.model.tokenizer
    (tokens,) = tokenizer.encode([TokenizerInput(text)])
    occurrence = find_occurrence(Occurrence(text, word_index=2), tokens, "occurrences[0]")
    return CompareTask(tokens, word_units(tokens, tokenizer.token_texts(tokens)), {0: occurrence}, 5)


@pytest.mark.parametrize("make_task", [maps_task, layer_task, compare_task])
@pytest.mark.parametrize("text", [CHEQUE, PASSAGE], ids=["short", "long"])
def test_task_gives_the_same_result_after_serialization(
    factory: AttendFactory, model: LoadedModel, make_task: Callable[[AttendFactory, str], ExplainTask], text: str
) -> None:
    task = make_task(factory, text)
    serialized = pickle.dumps(task)
    assert len(serialized) < MAX_BYTES_PER_TOKEN * len(task.tokens)
    assert model.explain is not None
    here, there = model.explain.run([task, pickle.loads(serialized)])
    there, here = ([*result] if isinstance(result, tuple) else asdict(result) for result in (there, here))
    np.testing.assert_equal(there, here)


async def test_attend_tasks_do_not_contain_the_inputs_of_the_request(factory: AttendFactory, engine: Engine) -> None:
    """A request of many inputs has a task for each, which would otherwise all contain every text."""
    request = AttendRequest(tuple(Input(f"{number} {CHEQUE}") for number in range(20)))
    tasks = prepare(engine, request, Call(), check_attend(request, Call(), factory.manifest))
    assert len(tasks) == 20
    assert all(b"cashed" not in pickle.dumps(task.request) for task in tasks)
