"""Models that tests change while they are served: artifacts, a models file, and a REST application."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from model.artifact.files import Artifact, write_manifest
from model.artifact.manifest import Manifest
from service.config import Settings
from service.engine.engine import Models
from service.engine.repository import FileState, ModelRepository
from service.file_watch import FileWatch
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.app import make_app

SOURCES = ("one", "two", "three")
BROKEN = "broken"


def change_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> str:
    """Change the manifest of an artifact and return its new digest."""
    return write_manifest(root, change(Artifact.open(root).manifest))


@dataclass
class Serving:
    """A repository whose models file can be written, and the REST application that serves its models."""

    root: Path
    path: Path
    repository: ModelRepository
    models: Models
    watch: FileWatch[FileState]
    metrics: Metrics
    client: httpx.AsyncClient
    versions: int = 0

    async def write(self, *entries: str) -> bool:
        """Replace the file, and return whether it was applied. An entry is `name=source`, then aliases and a digest."""
        self.versions += 1
        self.path.write_text(f"# {self.versions}\n" + models_file(self.root, *entries))
        before = self.sample("reloads_total", result="success")
        await self.watch.check()
        return self.sample("reloads_total", result="success") > before

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"attendant_{name}", {"subject": "models", **labels}) or 0

    @property
    def served(self) -> dict[str, str]:
        """Digests by name and alias, as the API reports them, the default model first."""
        infos = self.models.infos
        return {name: info.digest for info in infos for name in (info.name, *info.aliases)}

    async def digest_of(self, name: str | None) -> str:
        """Return the digest in the header of a response, or the reason of its error."""
        response = await self.client.post("/v1/encode", json={"inputs": "money", "model": name})
        if response.status_code != 200:
            return str(response.json()["error"]["reason"])
        return response.headers["x-attendant-model"].rpartition("@")[2]


def models_file(root: Path, *entries: str) -> str:
    text = ""
    for entry in entries:
        name, source, *aliases = entry.replace("=", " ").split()
        digests = [alias for alias in aliases if alias.startswith("sha256:")]
        names = [alias for alias in aliases if alias not in digests]
        text += f"[[models]]\nname = '{name}'\nsource = '{root / source}'\naliases = {names}\n"
        text += f"digest = '{digests[0]}'\n" if digests else ""
    return text


async def open_serving(root: Path, path: Path, *entries: str) -> Serving:
    path.write_text(models_file(root, *entries))  # noqa: ASYNC240
    options = Settings(models_file=path)
    metrics = Metrics(CollectorRegistry())
    lifecycle, repository = Lifecycle(metrics), ModelRepository(options, metrics)
    models = repository.start(repository.load_all())
    lifecycle.become_ready(models, repository)
    watch = repository.watch()
    assert watch is not None
    transport = httpx.ASGITransport(make_app(lifecycle, options, metrics))
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    return Serving(root, path, repository, models, watch, metrics, client)


async def close(serving: Serving) -> None:
    await serving.repository._finish_retirements()
    await serving.models.close()
    await serving.client.aclose()


def digest(root: Path, source: str) -> str:
    return f"sha256:{Artifact.read_manifest(root / source)[1]}"
