"""The loaded model: sessions, tokenizer and weights of an artifact."""

import logging
from dataclasses import dataclass

import numpy as np

from model.artifact import TOKENIZER, Artifact
from service.config import Settings
from service.engine.backends.base import Backend, Gpu
from service.engine.backends.onnxruntime_cpu import ExplainBackend
from service.engine.backends.select import BackendOptions, Machine, explain_choice, open_backend, select_backend
from service.engine.encode.pooling import DenseLayers, Floats
from service.engine.explain.maps import BlockWeights
from service.engine.schema.encode import EncodeTask, TextVectors
from service.engine.tokenizer import ServingTokenizer

log = logging.getLogger("attendant.model")


@dataclass(frozen=True)
class LoadedModel:
    """An opened artifact. `tokens_per_second`: the rate of the fast graph, measured by warm-up."""

    artifact: Artifact
    tokenizer: ServingTokenizer
    backend: Backend[EncodeTask, TextVectors]
    tokens_per_second: float
    explain: ExplainBackend
    dense_layers: DenseLayers
    blocks: tuple[BlockWeights, ...]
    """Weights from which attention maps are computed, memory-mapped."""
    static: Floats
    """The embedding table, (V, E), memory-mapped."""

    @classmethod
    def load(cls, settings: Settings) -> "LoadedModel":
        """Verify and open the artifact and warm up the backend. Takes several seconds.

        Raises `ArtifactError` or `ConfigError`.
        """
        artifact = Artifact.open(settings.model_dir, settings.model_digest)
        options = BackendOptions(
            settings.provider,
            settings.precision,
            settings.threads,
            settings.max_batch_tokens,
            Gpu(settings.gpu_device, settings.gpu_memory_limit_bytes),
        )
        choice = select_backend(options, artifact.manifest.graphs, Machine.detect())
        log.info(
            "backend selected provider=%s precision=%s streams=%d threads_per_stream=%d reason=%s",
            choice.provider, choice.precision, choice.streams, choice.threads_per_stream, choice.reason,
        )  # fmt: skip
        backend = open_backend(artifact, choice)
        return cls(
            artifact,
            ServingTokenizer(artifact.read(TOKENIZER)),
            backend,
            backend.warm_up(),
            ExplainBackend(artifact, explain_choice(settings.threads)),
            DenseLayers(artifact),
            BlockWeights.of(artifact),
            np.asarray(artifact.map(artifact.manifest.static)),
        )
