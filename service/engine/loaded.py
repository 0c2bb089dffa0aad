"""A model, opened: everything of an artifact that takes time to make."""

from dataclasses import dataclass

import numpy as np

from model.artifact import TOKENIZER, Artifact
from model.tokenizer import Tokenizer
from service.config import Settings
from service.engine.maps import BlockWeights
from service.engine.pooling import Floats, Head
from service.engine.providers import choose_provider, explain_provider
from service.engine.runtime import ExplainRuntime, Runtime


@dataclass(frozen=True)
class LoadedModel:
    """What the engine works with; `explain` opens its graph when it is first asked."""

    artifact: Artifact
    tokenizer: Tokenizer
    runtime: Runtime
    explain: ExplainRuntime
    head: Head
    blocks: tuple[BlockWeights, ...]
    """What attention maps are computed from, on disk until it is touched."""
    static: Floats
    """The embedding table, `(V, E)`, on disk until its pages are touched."""

    @classmethod
    def load(cls, settings: Settings) -> "LoadedModel":
        """Verify, open and warm up; blocks for seconds. Raises `ArtifactError` or `ConfigError`."""
        provider = choose_provider(settings.provider, settings.precision, settings.threads, settings.row_tokens)
        artifact = Artifact.open(settings.model_dir, settings.model_sha256)
        runtime = Runtime(artifact, provider)
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
