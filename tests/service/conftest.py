"""The real model in this process, and a house round it: engine, host and the REST app, without a socket."""

import asyncio
import gc
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from model.artifact import MANIFEST, WEIGHTS, Artifact, Manifest, describe_file, write_manifest
from model.tokenizer import Source
from service.auth import ApiKeys
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.engine.scheduler import Lane
from service.engine.schema.encode import EncodeRequest, EncodeResponse, EncodeTask, Input, TextVectors
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.app import make_app

GOLDEN = "money bank grows"
POISON = "zebra"
"""A word whose embedding is NaN in the poisoned model."""


@pytest.fixture(scope="session")
def model(default_artifact: Path) -> LoadedModel:
    """The default model, opened once."""
    return LoadedModel.load(Settings(model_dir=default_artifact))


@pytest.fixture(scope="session")
def manifest(model: LoadedModel) -> Manifest:
    """What the default model is."""
    return model.artifact.manifest


@pytest.fixture(scope="session")
def poisoned_model(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The default model with one word's embedding spoiled: real NaN out of a real session."""
    root = Path(shutil.copytree(default_artifact, tmp_path_factory.mktemp("poisoned") / "artifact"))
    artifact = Artifact.open(root)
    loaded = LoadedModel.load(Settings(model_dir=default_artifact))
    (number,) = loaded.tokenizer.encode([Source(POISON)])[0].ids[1:-1]
    table = np.memmap(root / WEIGHTS, "<f4", "r+", artifact.manifest.static.offset, artifact.manifest.static.shape)
    table[number] = np.nan
    table.flush()
    files = {**artifact.manifest.files, WEIGHTS: describe_file(root / WEIGHTS)}
    write_manifest(root, artifact.manifest.model_copy(update={"files": files}))
    assert (root / MANIFEST).is_file()
    yield LoadedModel.load(Settings(model_dir=root))
    shutil.rmtree(root)


@dataclass
class House:
    """All that is behind one REST port."""

    engine: Engine
    host: Lifecycle
    metrics: Metrics
    client: httpx.AsyncClient
    settings: Settings

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value now; it must exist."""
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    @property
    def batches_run(self) -> float:
        return self.sample("attendant_batch_size_count", lane="fast")

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)


@asynccontextmanager
async def open_house(model: LoadedModel, keys: ApiKeys | None = None, **options: Any) -> AsyncIterator[House]:
    """A house on this loop; `options` are Settings."""
    settings = Settings(**options)
    metrics = Metrics(CollectorRegistry())
    host = Lifecycle(metrics)
    engine = Engine(model, settings, metrics)
    host.become_ready(engine)
    transport = httpx.ASGITransport(make_app(host, settings, metrics, keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
        yield House(engine, host, metrics, client, settings)
    await engine.drain()
    await engine.close()


def fast_lane(house: House) -> Lane[EncodeTask, TextVectors]:
    """The fast lane, to hold capacity in it."""
    return house.engine._fast


@pytest.fixture
async def house(model: LoadedModel) -> AsyncIterator[House]:
    """With every option at its default."""
    async with open_house(model) as opened:
        yield opened


@pytest.fixture
def engine(house: House) -> Engine:
    """The engine of the house."""
    return house.engine


def encode_request(*texts: str | Input, **fields: Any) -> EncodeRequest:
    """A request of texts."""
    inputs = tuple(Input(Source(text)) if isinstance(text, str) else text for text in texts)
    return EncodeRequest(inputs, **fields)


async def encode(engine: Engine, *texts: str | Input, **fields: Any) -> EncodeResponse:
    """Encode texts, or ready inputs."""
    return await engine.encode(encode_request(*texts, **fields))


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Has, once the block has ended, the types of what was made in it and only a collection of garbage would free."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left.update(type(found).__name__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def cosine(left: Any, right: Any) -> float:
    a, b = np.asarray(left, np.float64).ravel(), np.asarray(right, np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def least_cosine(model: LoadedModel) -> float:
    """How near two runs of one text in different company must be."""
    return 0.999999 if model.backend.choice.precision == "float32" else 0.9999


async def gather(*work: Any) -> list[Any]:
    """Results and exceptions alike, in order."""
    return list(await asyncio.gather(*work, return_exceptions=True))
