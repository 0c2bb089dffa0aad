"""Texts and tasks for the compare tests."""

from typing import Any

import numpy as np
from attendant_client.types import Occurrence
from numpy.typing import NDArray

from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from service.engine.tasks import ModelParts
from service.operations.compare import CompareTask, OccurrenceVectors, find_occurrence
from service.operations.units import word_units
from tests.random_encoders import random_encoder, torch_layers

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
TWICE = "The bank by the river bank was shut."
LAYERS, WIDTH = 3, 32
LAYERS_OF_ENCODER = torch_layers(random_encoder(layers=LAYERS, hidden_size=WIDTH))


def tokenize(tokenizer: Tokenizer, text: str) -> TokenizedInput:
    return tokenizer.encode([TokenizerInput(text)])[0]


def make_tasks(tokenizer: Tokenizer, occurrences: list[Occurrence], top_contributors: int = 0) -> list[CompareTask]:
    """Return one task per distinct text."""
    tasks = []
    for text in dict.fromkeys(occurrence.text for occurrence in occurrences):
        tokens = tokenize(tokenizer, text)
        ranges = {
            index: find_occurrence(occurrence, tokens, f"occurrences[{index}]")
            for index, occurrence in enumerate(occurrences)
            if occurrence.text == text
        }
        units = word_units(tokens, tokenizer.token_texts(tokens))
        tasks.append(CompareTask(tokens, units, ranges, top_contributors))
    return tasks


def run_task(task: CompareTask, hidden: Floats) -> OccurrenceVectors:
    """Return the result of a task with the weights of a random encoder."""
    return task.compute(hidden, ModelParts(LAYERS_OF_ENCODER))


def plain_cosine(left: Floats, right: Floats) -> float:
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))
