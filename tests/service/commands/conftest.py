"""Fixtures for the command tests: tiny models with random weights."""

from tests.model.conftest import definitions, exported, exported_labse, labse, publish, published
from tests.service.commands.embed_command import run_embed, stub_engine
from tests.service.commands.evaluate_command import evaluate, run

__all__ = [
    "definitions",
    "evaluate",
    "exported",
    "exported_labse",
    "labse",
    "publish",
    "published",
    "run",
    "run_embed",
    "stub_engine",
]
