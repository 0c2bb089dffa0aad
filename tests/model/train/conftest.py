"""Small corpora and configurations for training runs."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

WORDS = ("river", "bank", "money", "water", "boat", "check", "teller", "mud", "loan", "fish", "rain", "vault")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Return random sentences of 3 to 12 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) + "." for _ in range(count)]


def to_toml(document: dict[str, dict[str, Any]]) -> str:
    """Return flat tables as a TOML document."""
    import json

    lines = []
    for table, options in document.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in options.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train with one thread: on a busy machine, several threads that wait for each other are slow."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The smallest useful configuration, with its corpus in `tmp_path`."""
    (tmp_path / "train.txt").write_text("\n".join(sentences(300)))
    (tmp_path / "validation.txt").write_text("\n".join(sentences(40, seed=1)))
    return {
        "model": {"name": "tiny", "license": "apache-2.0", "hidden_size": 24, "num_hidden_layers": 2,
                  "num_attention_heads": 3, "intermediate_size": 32, "max_input_tokens": 24},
        "tokenizer": {"vocab_size": 60},
        "data": {"train": ["train.txt"], "validation": ["validation.txt"], "shuffle_texts": 50},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 4},
        "run": {"steps": 12, "rows_per_batch": 4, "batches_per_step": 2, "checkpoint_steps": 3,
                "validation_steps": 6, "validation_batches": 2},
    }  # fmt: skip


@pytest.fixture
def config_file(document: dict[str, dict[str, Any]], tmp_path: Path) -> Path:
    """The configuration as a file."""
    path = tmp_path / "config.toml"
    path.write_text(to_toml(document))
    return path
