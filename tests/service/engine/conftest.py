"""The tokenizer without the model, lanes on a fake backend, and artifacts to change between."""

import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from model.artifact.files import TOKENIZER
from model.artifact.tokenizer import Tokenizer
from service.engine.lane import Lane, LaneObserver
from service.engine.scheduling import Admission, HostQueue
from service.metrics import Metrics
from tests.manifests import with_prompts
from tests.service.engine.changing_models import BROKEN, SOURCES, change_manifest
from tests.service.engine.fake_backend import FakeBackend, FakeTask
from tests.service.engine.lane_cases import StartLane


@pytest.fixture(scope="session")
def tokenizer(default_artifact: Path) -> Tokenizer:
    return Tokenizer((default_artifact / TOKENIZER).read_bytes())


@pytest.fixture
async def start_lane() -> AsyncIterator[StartLane]:
    """A function that creates lanes and closes them after the test."""
    started: list[tuple[Lane[FakeTask, int], FakeBackend]] = []

    def make(
        backend: FakeBackend,
        *,
        max_tokens: int = 10**6,
        max_queue_ms: int = 2000,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Any:
        observer = LaneObserver(metrics or Metrics(CollectorRegistry()), "test", "m")
        lane = Lane(backend, Admission(backend, max_queue_ms, max_tokens), observer, HostQueue(2), **options)
        started.append((lane, backend))
        return lane

    yield make
    for lane, backend in started:
        backend.gate.set()
        await lane.close()


@pytest.fixture(scope="session")
def artifacts(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with artifacts that differ in a prompt, and one with a damaged file."""
    root = tmp_path_factory.mktemp("artifacts")
    for name in (*SOURCES, BROKEN):
        shutil.copytree(tiny_artifact, root / name)
        change_manifest(root / name, partial(with_prompts, prompts={"query": name}))
    (root / BROKEN / "tokenizer.json").write_text("{}")
    return root


@pytest.fixture
def fast_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collections after changes, which take a second in a process with all tests."""
    monkeypatch.setattr("service.engine.repository.release_memory", lambda: None)
