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
from service.model_options import ModelOption

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
    def load(cls, settings: Settings, option: ModelOption | None = None) -> "LoadedModel":
        """Verify and open an artifact and warm up the backend. Takes several seconds. None selects the default model.

        Raises `ArtifactError` or `ConfigError`.
        """
        option = option or settings.served_models[0]
        artifact = Artifact.open(option.directory, option.digest)
        options = BackendOptions(
            settings.provider,
            settings.precision,
            settings.threads,
            settings.max_batch_tokens,
            Gpu(settings.gpu_device, settings.gpu_memory_limit_bytes),
        )
        choice = select_backend(options, artifact.manifest.graphs, Machine.detect())
        log.info(
            "backend selected model=%s provider=%s precision=%s streams=%d threads_per_stream=%d reason=%s",
            option.name or artifact.manifest.name, choice.provider, choice.precision, choice.streams,
            choice.threads_per_stream, choice.reason,
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
