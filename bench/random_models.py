"""Models of real sizes with random weights, exported and served."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import transformers

from bench.project import checkpoint_directory
from model.export.export import Variants, export
from tests.conftest import RunningServer, serving

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def save(model: transformers.PreTrainedModel, directory: Path) -> None:
    """Save a model with the default model's tokenizer."""
    model.save_pretrained(directory)
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes((checkpoint_directory() / name).read_bytes())


def export_silently(source: Path, artifact: Path) -> None:
    """Export without the graph of attention maps."""
    export(
        str(source), artifact, revision=None, name="bench", progress=lambda step: None,
        variants=Variants(explain=False),
    )  # fmt: skip


def served(artifact: Path, **options: Any) -> AbstractContextManager[RunningServer]:
    """Serve an artifact with a long queue inside a `with` block."""
    return serving(model_dir=artifact, max_queue_ms=60_000, **options)


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
