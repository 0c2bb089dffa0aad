"""A model, opened: everything of an artifact that takes time to make."""

from dataclasses import dataclass

import numpy as np

from model.artifact import TOKENIZER, Artifact
from model.tokenizer import Tokenizer
from service.config import Settings
from service.engine.backends.cuda import FlatRuntime
from service.engine.backends.cuda_session import CUDA, Gpu
from service.engine.backends.onnxruntime_cpu import ExplainRuntime, Runtime
from service.engine.backends.select import Provider, choose_provider, explain_provider
from service.engine.encode.pooling import Floats, Head
from service.engine.explain.maps import BlockWeights


def open_runtime(artifact: Artifact, provider: Provider) -> Runtime | FlatRuntime:
    """The runtime of the provider's graph."""
    if provider.name != CUDA:
        return Runtime(artifact, provider)
    return FlatRuntime(artifact.manifest, provider, provider.open(artifact, artifact.manifest.graphs[provider.graph]))


@dataclass(frozen=True)
class LoadedModel:
    """What the engine works with; `explain` opens its graph when it is first asked."""

    artifact: Artifact
    tokenizer: Tokenizer
    runtime: Runtime | FlatRuntime
    explain: ExplainRuntime
    head: Head
    blocks: tuple[BlockWeights, ...]
    """What attention maps are computed from, on disk until it is touched."""
    static: Floats
    """The embedding table, `(V, E)`, on disk until its pages are touched."""

    @classmethod
    def load(cls, settings: Settings) -> "LoadedModel":
        """Verify, open and warm up; blocks for seconds. Raises `ArtifactError` or `ConfigError`."""
        artifact = Artifact.open(settings.model_dir, settings.model_sha256)
        provider = choose_provider(
            settings.provider,
            settings.precision,
            settings.threads,
            settings.row_tokens,
            artifact.manifest.graphs,
            Gpu(settings.gpu_device, settings.gpu_memory_bytes),
        )
        runtime = open_runtime(artifact, provider)
        runtime.warm_up()
        tokenizer = Tokenizer(artifact.read(TOKENIZER))
        return cls(
            artifact,
            tokenizer,
            runtime,
            ExplainRuntime(artifact, explain_provider(settings.threads)),
            Head(artifact),
            BlockWeights.of(artifact),
            np.asarray(artifact.map(artifact.manifest.static)),
        )
