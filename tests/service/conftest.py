"""The default model, and a harness that runs the engine and the REST application without sockets."""

import asyncio
import gc
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client.types import EncodeRequest, EncodeResponse, Input
from prometheus_client import CollectorRegistry, values

from model.artifact.files import MANIFEST, WEIGHTS, Artifact, describe_file, write_manifest
from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizerInput
from model.export.export import Variants, export
from model.source.hub import locate
from service import file_watch
from service.auth import Access, ApiKeys
from service.config import Settings
from service.engine.engine import Engine, Models
from service.engine.lane import Lane
from service.engine.model_loader import LoadedModel
from service.engine.tasks import EncodeTask, TextVectors
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.request_log import RequestLog
from service.rest.app import make_app
from tests.manifests import static_record
from tests.running import run

GOLDEN = "money bank grows"
POISON = "zebra"
"""A word whose hidden states are NaN in the poisoned model."""


@pytest.fixture(autouse=True)
def fast_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed files of this process need not stay the same for a second."""
    monkeypatch.setattr(file_watch, "SETTLE_S", 0)


@pytest.fixture(autouse=True)
def values_of_this_process() -> Iterator[None]:
    """Undo that tests of slots and supervisors store metric values in shared memory, which keeps no exemplars."""
    before = values.ValueClass
    yield
    values.ValueClass = before


@pytest.fixture(scope="session")
def causal_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifact with the default model's weights, causal attention and an int8 graph."""
    source = Path(shutil.copytree(locate("default").directory, tmp_path_factory.mktemp("causal") / "causal-minilm"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    out = source.parent / "artifact"
    export(str(source), out, revision=None, name=None, progress=lambda step: None, variants=Variants(("int8",)))
    return out


@pytest.fixture(scope="session")
def causal_model(causal_artifact: Path) -> LoadedModel:
    """The default model's weights with causal attention, loaded once."""
    return LoadedModel.load(Settings(model_dir=causal_artifact))


@pytest.fixture(scope="session")
def manifest(model: LoadedModel) -> Manifest:
    return model.artifact.manifest


@pytest.fixture(scope="session")
def poisoned_model(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The default model with one word whose embedding is so large that real sessions return NaN in every precision."""
    root = Path(shutil.copytree(default_artifact, tmp_path_factory.mktemp("poisoned") / "artifact"))
    artifact = Artifact.open(root)
    loaded = LoadedModel.load(Settings(model_dir=default_artifact))
    (number,) = loaded.tokenizer.encode([TokenizerInput(POISON)])[0].input_ids[1:-1]
    static = static_record(artifact.manifest)
    table = np.memmap(root / WEIGHTS, "<f4", "r+", static.offset, static.shape)
    table[number] = np.finfo(np.float32).max * np.repeat([1, -1], table.shape[1] // 2)
    table.flush()
    files = {**artifact.manifest.files, WEIGHTS: describe_file(root / WEIGHTS)}
    write_manifest(root, artifact.manifest.model_copy(update={"files": files}))
    assert (root / MANIFEST).is_file()
    yield LoadedModel.load(Settings(model_dir=root))
    shutil.rmtree(root)


@dataclass
class ServiceHarness:
    """A service without sockets: its engine, and a client for its REST application."""

    engine: Engine
    lifecycle: Lifecycle
    metrics: Metrics
    settings: Settings
    access: Access

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """Made when first used, because the application takes much longer to make than the engine."""
        app = make_app(self.lifecycle, self.settings, self.metrics, self.access)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    def sample(self, name: str, **labels: str) -> float:
        """Return the total over a metric's samples with these labels; at least one must exist."""
        values = [
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert values, name
        return sum(values)

    @property
    def requests(self) -> RequestLog:
        """A request log like the server's."""
        return RequestLog.of(self.settings, self.metrics)

    @property
    def batches_run(self) -> float:
        return self.sample("attendant_batch_size_count", lane="fast")

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)


@asynccontextmanager
async def open_harness(
    model: LoadedModel, keys: ApiKeys | None = None, **options: Any
) -> AsyncIterator[ServiceHarness]:
    """Open a harness on the running event loop; `options` are Settings."""
    settings = Settings(**options)
    metrics = Metrics(CollectorRegistry())
    lifecycle = Lifecycle(metrics)
    engine = Engine(model, settings, metrics)
    lifecycle.become_ready(Models([engine]))
    yield ServiceHarness(engine, lifecycle, metrics, settings, Access(keys))
    await engine.drain()
    await engine.close()


def fast_lane(harness: ServiceHarness) -> Lane[EncodeTask, TextVectors]:
    return harness.engine.fast_lane


@pytest.fixture
async def harness(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(model) as opened:
        yield opened


@pytest.fixture
def engine(harness: ServiceHarness) -> Engine:
    return harness.engine


def encode_request(*texts: str | Input, **fields: Any) -> EncodeRequest:
    inputs = tuple(Input(text) if isinstance(text, str) else text for text in texts)
    return EncodeRequest(inputs, **fields)


async def encode(engine: Engine, *texts: str | Input, **fields: Any) -> EncodeResponse:
    options = {name: fields.pop(name) for name in ("wire", "deadline", "max_inputs") if name in fields}
    return await run(engine, encode_request(*texts, **fields), **options)


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Count the objects that only the garbage collector frees after the block, by type."""
    uncollected: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield uncollected
        gc.collect()
        uncollected.update(type(item).__name__ for item in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def cosine(left: Any, right: Any) -> float:
    a, b = np.asarray(left, np.float64).ravel(), np.asarray(right, np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def min_cosine(model: LoadedModel) -> float:
    """Return the minimum cosine allowed between embeddings of the same text in different batches."""
    return 0.999999 if model.backend.choice.precision == "float32" else 0.9999


async def gather(*work: Any) -> list[Any]:
    """Return results and exceptions, in order."""
    return list(await asyncio.gather(*work, return_exceptions=True))
